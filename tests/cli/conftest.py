"""Commands that are called in this process."""

import pytest

from tests.calling import Caller


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A `Caller` in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return Caller()
