"""Conversions of the tests in this folder."""

from contextlib import ExitStack

import pytest

from imitate.data import DatasetFile
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert


@pytest.fixture
def converted(tmp_path):
    """Function that converts a dataset, with options; gives the report and the open file, o.hdf5."""
    with ExitStack() as opened:

        def run(source, **options):
            report = convert(source, tmp_path / "o.hdf5", options=Options(**options))
            return report, opened.enter_context(DatasetFile(tmp_path / "o.hdf5"))

        yield run
