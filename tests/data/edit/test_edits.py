"""Rescaled actions: the numbers, the way back, and that nothing takes them for commands."""

import json

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.collect.recorded import commands
from imitate.config import load_config
from imitate.data import DatasetFile, build_datasets
from imitate.data.file.action_scale import recorded_scale
from imitate.errors import DatasetError


def run(*args):
    return CliRunner().invoke(app, ["dataset", *map(str, args)])


@pytest.fixture
def file(demo_file):
    """Two demos, three dimensions: 0 to 4; always 0.3; -0.5 to 0.5."""
    path = demo_file(num_demos=2, length=5, action_dim=3)
    with h5py.File(path, "r+") as opened:
        for demo in opened["data"].values():
            demo["actions"][:] = np.stack(
                [np.arange(5.0), np.full(5, 0.3), np.linspace(-0.5, 0.5, 5)], axis=1
            )
    return path


def actions_of(path):
    with h5py.File(path) as opened:
        return opened["data/demo_1/actions"][()]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("min_max", [[-1, -0.5, 0, 0.5, 1], [0] * 5, [-1, -0.5, 0, 0.5, 1]]),
        ("gaussian", [np.arange(-2, 3) / 2**0.5, [0] * 5, np.arange(-2, 3) / 2**0.5]),
    ],
)
def test_there_and_back(file, tmp_path, mode, wanted):
    out, back = tmp_path / "out.hdf5", tmp_path / "back.hdf5"
    before = file.read_bytes()
    assert run("normalize-actions", file, "--mode", mode, "-o", out).exit_code == 0
    assert file.read_bytes() == before
    np.testing.assert_allclose(actions_of(out), np.transpose(wanted), atol=1e-6)
    with DatasetFile(out) as opened:
        scale = recorded_scale(opened)
        np.testing.assert_allclose(scale.offset, [2, 0.3, 0], atol=1e-6)
        assert scale.scale[1] == 1, "a constant is shifted, never scaled"
        assert scale.mode == mode
        np.testing.assert_allclose(commands(opened, "demo_1"), actions_of(file), atol=1e-6)
    assert run("normalize-actions", out, "--undo", "-o", back).exit_code == 0
    np.testing.assert_allclose(actions_of(back), actions_of(file), atol=1e-6)
    assert actions_of(back).dtype == actions_of(file).dtype
    with h5py.File(file) as old, h5py.File(back) as new:
        assert dict(new["data"].attrs) == dict(old["data"].attrs)


def test_training_refuses_them(file, tmp_path):
    out = tmp_path / "out.hdf5"
    run("normalize-actions", file, "-o", out)
    tree = {
        "algo_name": "bc",
        "train": {"data": str(out)},
        "observation": {"modalities": {"obs": {"low_dim": ["object"]}}},
    }
    with pytest.raises(DatasetError, match="normalize-actions .*out.hdf5 --undo") as caught:
        build_datasets(load_config(tree))
    assert "train.action_config.actions.normalization=min_max" in str(caught.value)
    assert "\n" not in str(caught.value)
    tree["train"]["data"] = str(file)
    tree["train"]["action_config"] = {"actions": {"normalization": "min_max"}}
    build_datasets(load_config(tree))


@pytest.mark.parametrize("mode", ["min_max", "gaussian"])
def test_the_doctor_knows_them_and_brings_them_back(file, tmp_path, mode):
    out, back = tmp_path / "out.hdf5", tmp_path / "back.hdf5"
    run("normalize-actions", file, "--mode", mode, "-o", out)
    codes = [f["code"] for f in json.loads(run("doctor", out, "--json").stdout)["findings"]]
    assert "rescaled_actions" in codes
    assert "action_range" not in codes, "to clip them would spoil them"
    assert run("doctor", out, "--fix", "--only", "rescaled_actions", "-o", back).exit_code != 2
    np.testing.assert_allclose(actions_of(back), actions_of(file), atol=1e-6)


def test_merge_refuses_two_scales(file, tmp_path):
    out, both = tmp_path / "out.hdf5", tmp_path / "both.hdf5"
    run("normalize-actions", file, "-o", out)
    done = run("merge", file, out, "-o", both)
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    assert "--undo" in done.output
    assert run("merge", out, out, "-o", both).exit_code == 0
    with DatasetFile(both) as opened:
        assert recorded_scale(opened).mode == "min_max"


def test_errors_are_one_line(file, tmp_path):
    out = tmp_path / "out.hdf5"
    assert "nothing to undo" in run("normalize-actions", file, "--undo", "-o", out).output
    run("normalize-actions", file, "-o", out)
    again = run("normalize-actions", out, "-o", tmp_path / "again.hdf5")
    assert (again.exit_code, "already" in again.output) == (2, True)
    with h5py.File(file, "r+") as opened:
        opened["data/demo_0/actions"][2, 1] = np.nan
    done = run("normalize-actions", file, "-o", tmp_path / "nan.hdf5")
    assert (done.exit_code, "NaN" in done.output, len(done.output.splitlines())) == (2, True, 1)
    with h5py.File(out, "r+") as opened:
        del opened["data"].attrs["action_scale"]
    done = run("normalize-actions", out, "--undo", "-o", tmp_path / "x.hdf5")
    assert (done.exit_code, "two lists" in done.output) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demos.hdf5", "out.hdf5"]
