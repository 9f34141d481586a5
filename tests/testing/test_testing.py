"""The checks as users' tests call them, in a pytest of its own over a small package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from imitate import testing
from imitate.testing import CheckFailedError

HERE = Path(__file__).parent


def test_a_package_s_own_tests_pass_and_find_the_fault(tmp_path):
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(HERE / "example_package_tests.py"), "-q", "-p"]
        + ["no:cacheprovider", "-c", os.devnull, "--import-mode=importlib"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    # Five tests of the package, and none of the imported checks themselves.
    assert "1 failed, 4 passed" in done.stdout, done.stdout
    assert "CheckFailedError: example_package:Slide-v0: " in done.stdout
    assert "seeding: the same seed and actions gave two different episodes" in done.stdout


def test_what_does_not_hold_is_named():
    class Stuck:
        name, action_dim = "stuck", 1
        action_low, action_high = 1.0, 1.0

    with pytest.raises(
        CheckFailedError, match="environment: limits: action_low has shape"
    ) as raised:
        testing.test_environment(Stuck)
    assert any(finding.verdict == "error" for finding in raised.value.findings)
    assert isinstance(raised.value, AssertionError)


def test_pytest_does_not_collect_the_checks():
    names = [name for name in testing.__all__ if name.startswith("test_")]
    assert len(names) == 4 and not any(getattr(testing, name).__test__ for name in names)
