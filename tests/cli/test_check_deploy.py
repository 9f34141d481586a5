"""``imitate check-deploy`` with a trained policy, here and behind a server."""

import json
import signal
import subprocess

import h5py
import numpy as np
import pytest

from imitate.data.dataset_file import DatasetFile
from imitate.policy.checkpoint import load_checkpoint, save_checkpoint
from tests.calling import call
from tests.demo_files import features
from tests.deploy.check.test_deploy_check import on, written
from tests.tiny import tiny_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A policy that has learned action = tanh(joints[:2]) from a file, and the file."""
    folder = tmp_path_factory.mktemp("trained")
    data = written(folder / "training.hdf5", seed=0, demos=20)
    run_dir = tiny_run(
        folder,
        obs={"joints": 3},
        data=data,
        hidden=[64],
        experiment={"epoch_every_n_steps": 300},
        train={"num_epochs": 1, "batch_size": 100},
        algo={"optim_params": {"policy": {"learning_rate": {"initial": 0.003}}}},
    )
    return run_dir / "checkpoints" / "last.pth", data


def check(*words, code=0):
    return call("check-deploy", *words, code=code).output


def test_the_checkpoint_knows_what_it_was_trained_on(trained):
    saved = load_checkpoint(trained[0])["provenance"]["observations"]
    with DatasetFile(trained[1]) as file:
        joints = np.concatenate([file.read(demo, "obs/joints") for demo in file.demos()])
    np.testing.assert_allclose(saved["joints"]["mean"], joints.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(saved["joints"]["max"], joints.max(axis=0), atol=1e-6)
    assert set(saved) == {"joints"}


def test_the_right_data_are_ok(trained, tmp_path):
    seen = written(tmp_path / "seen.hdf5", seed=1)
    text = check(trained[0], seen, "--max-demos", 3)
    assert "3 demos, 90 steps; training: the checkpoint" in text
    assert text.endswith("verdict: ok\n")
    told = json.loads(check(trained[0], seen, "--json"))
    assert told["verdict"] == "ok" and told["actions"]["overall"] < 0.5
    assert told["latency_ms"]["p50"] > 0
    assert len(told["demos"]) == 5


def test_joints_in_degrees_fail(trained, tmp_path):
    seen = written(tmp_path / "seen.hdf5", 1, on("joints", np.rad2deg))
    names = {"obs/joints": ["pan", "lift", "roll"], "actions": ["x", "y"]}
    with h5py.File(seen, "r+") as file:
        file["data"].attrs["features"] = features(**names)
    text = check(trained[0], seen, code=1)
    assert "degrees instead of radians?" in text
    assert "joints[0 (pan), 1 (lift)" in text and "\n1 (y) " in text
    assert text.endswith("verdict: fails\n")


def test_an_old_checkpoint_is_compared_with_a_file_that_is_named(trained, tmp_path):
    ckpt = load_checkpoint(trained[0])
    ckpt["provenance"] = {"datasets": [{"path": "gone.hdf5"}]}
    old = tmp_path / "old.pth"
    save_checkpoint(ckpt, old)
    seen = written(tmp_path / "seen.hdf5", 1, on("joints", np.rad2deg))
    assert "give --training FILE" in check(old, seen, "--tolerance", 1e9)
    assert "degrees" in check(old, seen, "--training", trained[1], "--tolerance", 1e9, code=1)


def test_demos_of_a_mask(trained, tmp_path):
    seen = written(tmp_path / "seen.hdf5", 1)
    with h5py.File(seen, "a") as file:
        file["mask/good"] = np.array([b"demo_1", b"demo_4"])
    told = json.loads(check(trained[0], seen, "--filter-key", "good", "--json"))
    assert told["demos"] == ["demo_1", "demo_4"]


def test_through_a_server(trained, preloaded_commands, tmp_path):
    seen = written(tmp_path / "seen.hdf5", seed=1)
    server = subprocess.Popen(
        [str(preloaded_commands / "imitate"), "serve", str(trained[0]), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = json.loads(server.stdout.readline())["url"]
        words = (url, seen, "--demos", "demo_0", "--training", trained[1])
        told = json.loads(check(*words, "--json"))
        assert told["verdict"] in ("ok", "warnings")  # a busy machine may make a call late
        assert told["training"] == f"the file {trained[1]}"
        here = json.loads(check(trained[0], *words[1:], "--json"))
        np.testing.assert_allclose(told["actions"]["mean"], here["actions"]["mean"], rtol=1e-5)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=600)
