"""``imitate dataset migrate-env``."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetFile

LIFT = Path(__file__).parents[1] / "data" / "fixtures" / "robosuite_1.4.1_lift.hdf5"


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copy(LIFT, tmp_path / "old.hdf5"))


def run(*args):
    return CliRunner().invoke(app, ["dataset", "migrate-env", *map(str, args)])


def test_dry_run_says_what_would_change(old):
    done = run(old, "--dry-run", "--check", 1)
    assert done.exit_code == 0, done.output
    for words in (
        'control_delta: true -> input_type "delta" (renamed)',
        "model_file of the demos: ",
        "demo_0: 33 steps played, hand at most ",
        "recorded: solved, now: solved",
        "nothing is written (--dry-run)",
    ):
        assert words in done.output
    assert [path.name for path in old.parent.iterdir()] == ["old.hdf5"]


def test_in_place_keeps_the_old_file(old):
    before = old.read_bytes()
    done = run(old, "--in-place", "--check", 0, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["written"]
    assert report["not_checked"] == "not wanted"
    assert {"key", "old", "new", "reason"} == set(report["changes"][0])
    assert (old.parent / "old.hdf5.bak").read_bytes() == before
    with DatasetFile(old) as file:
        assert file.env_meta["env_kwargs"]["controller_configs"]["type"] == "BASIC"
    again = run(old, "--in-place")
    assert again.exit_code == 0
    assert "nothing to change" in again.output
