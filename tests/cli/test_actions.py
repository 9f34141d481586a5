"""``imitate dataset actions``."""

import json

import h5py
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from tests.demo_files import make_demo_file

REAL = {"env_name": "arm", "type": 4, "env_kwargs": {}}
POSES = ("--pose-keys", "hand_pos,hand_quat")


@pytest.fixture
def file(tmp_path):
    return make_demo_file(
        tmp_path / "real.hdf5",
        num_demos=2,
        length=5,
        obs_dims={"hand_pos": 3, "hand_quat": 4},
        env_meta=REAL,
    )


def run(*args):
    return CliRunner().invoke(app, ["dataset", "actions", *map(str, args)])


def test_says_what_was_written(file, tmp_path):
    out = tmp_path / "abs.hdf5"
    done = run(
        file, "--out", out, "--to", "absolute", "--action-dict", *POSES, "--scale", "0.05,0.5"
    )
    assert done.exit_code == 0, done.output
    assert "2 demos, 10 steps, delta -> absolute, axis_angle" in done.output
    assert "action_dict/abs_rot_6d" in done.output
    assert "poses from observations; clipped in 0 steps (0.0%)" in done.output
    with h5py.File(out) as written:
        assert written["data/demo_1/actions"].shape == (5, 7)


def test_json(file, tmp_path):
    done = run(file, "--out", tmp_path / "six.hdf5", "--rotation", "rot6d", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert (report["was"], report["now"], report["rotation"]) == ("delta", "delta", "rot6d")
    assert report["keys"] == ["actions"]


def test_in_place_keeps_the_old_file(file):
    before = file.read_bytes()
    assert run(file, "--in-place", "--rotation", "euler").exit_code == 0
    assert file.with_name("real.hdf5.bak").read_bytes() == before
