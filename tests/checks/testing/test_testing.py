"""The checks as users' tests call them, in a pytest of its own over a small package."""

import os
from pathlib import Path

import pytest

from imitate.checks import testing
from imitate.checks.testing import CheckFailedError
from tests import fork_server

HERE = Path(__file__).parent


@pytest.mark.slow("a pytest of its own")
def test_a_package_s_own_tests_pass_and_find_the_fault(tmp_path):
    words = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, "--import-mode=importlib")
    tests = HERE / "example_package_tests.py"
    _, printed = fork_server.run_module("pytest", tests, *words, folder=tmp_path, path=[HERE])
    # Five tests of the package, and none of the imported checks themselves.
    assert "1 failed, 4 passed" in printed, printed
    assert "CheckFailedError: example_package:Slide-v0: " in printed
    assert "seeding: the same seed and actions gave two different episodes" in printed


def test_what_does_not_hold_is_named():
    class Stuck:
        name, action_dim = "stuck", 1
        action_low, action_high = 1.0, 1.0

    with pytest.raises(CheckFailedError, match="limits: action_low has shape") as raised:
        testing.test_environment(Stuck)
    assert any(finding.verdict == "error" for finding in raised.value.findings)
    assert isinstance(raised.value, AssertionError)


def test_pytest_does_not_collect_the_checks():
    names = [name for name in testing.__all__ if name.startswith("test_")]
    assert len(names) == 4 and not any(getattr(testing, name).__test__ for name in names)
