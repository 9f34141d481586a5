"""Rescaled actions: the numbers, the way back, and that nothing takes them for commands."""

import h5py
import numpy as np
import pytest

from imitate.collect.recorded import commands
from imitate.config import load_config
from imitate.data import DatasetFile, build_datasets
from imitate.data.file.action_scale import recorded_scale
from imitate.errors import DatasetError
from tests.calling import call


def run(verb, *words, code=0):
    return call(f"dataset {verb}", *words, code=code).output


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
    run("normalize-actions", file, "--mode", mode, "-o", out)
    assert file.read_bytes() == before
    np.testing.assert_allclose(actions_of(out), np.transpose(wanted), atol=1e-6)
    with DatasetFile(out) as opened:
        scale = recorded_scale(opened)
        np.testing.assert_allclose(scale.offset, [2, 0.3, 0], atol=1e-6)
        assert scale.scale[1] == 1, "a constant is shifted, never scaled"
        assert scale.mode == mode
        np.testing.assert_allclose(commands(opened, "demo_1"), actions_of(file), atol=1e-6)
    run("normalize-actions", out, "--undo", "-o", back)
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
    findings = call.json("dataset doctor", out, code=None)["findings"]
    codes = [finding["code"] for finding in findings]
    assert "rescaled_actions" in codes
    assert "action_range" not in codes, "to clip them would spoil them"
    run("doctor --fix --only rescaled_actions", out, "-o", back, code=None)
    np.testing.assert_allclose(actions_of(back), actions_of(file), atol=1e-6)


def test_merge_refuses_two_scales(file, tmp_path):
    out, both = tmp_path / "out.hdf5", tmp_path / "both.hdf5"
    run("normalize-actions", file, "-o", out)
    told = run("merge", file, out, "-o", both, code=2)
    assert "--undo" in told and told.count("\n") == 1
    run("merge", out, out, "-o", both)
    with DatasetFile(both) as opened:
        assert recorded_scale(opened).mode == "min_max"


def test_errors_are_one_line(file, tmp_path):
    out = tmp_path / "out.hdf5"
    undo = "normalize-actions --undo"
    assert "nothing to undo" in run(undo, file, "-o", out, code=2)
    run("normalize-actions", file, "-o", out)
    again = tmp_path / "again.hdf5"
    assert "already" in run("normalize-actions", out, "-o", again, code=2)
    with h5py.File(file, "r+") as opened:
        opened["data/demo_0/actions"][2, 1] = np.nan
    told = run("normalize-actions", file, "-o", again, code=2)
    assert "NaN" in told and told.count("\n") == 1
    with h5py.File(out, "r+") as opened:
        del opened["data"].attrs["action_scale"]
    assert "two lists" in run(undo, out, "-o", again, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demos.hdf5", "out.hdf5"]
