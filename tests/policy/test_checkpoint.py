"""Checkpoints: what is refused, and what survives."""

import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config, policy_from_checkpoint
from imitate.errors import CheckpointError
from imitate.policy import checkpoint as checkpoints
from imitate.policy.checkpoint import checkpoint_dict, load_checkpoint, save_checkpoint


def make_checkpoint(seed=0, **shape_metadata):
    torch.manual_seed(seed)
    config = load_config(
        {
            "algo_name": "bc",
            "algo": {"actor_layer_dims": [16]},
            "observation": {"modalities": {"obs": {"low_dim": ["state"]}}},
        }
    )
    algo = algo_factory("bc", config, {"state": (3,)}, 2, "cpu")
    return checkpoint_dict(
        algo,
        env_metadata={"env_name": "Lift", "type": 1},
        shape_metadata=shape_metadata,
        train_state={"epoch": np.int64(3), "rng": torch.get_rng_state()},
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.pth"
    save_checkpoint(make_checkpoint(action_low=np.full(2, -0.5)), path)
    return path


def test_round_trip_keeps_plain_values(file):
    ckpt = load_checkpoint(file)
    assert ckpt["train_state"]["epoch"] == 3
    assert ckpt["shape_metadata"]["action_low"] == [-0.5, -0.5]
    assert ckpt["env_metadata"]["env_name"] == "Lift"
    assert torch.equal(
        ckpt["model"]["nets"]["policy.mlp.layers.0.weight"],
        make_checkpoint()["model"]["nets"]["policy.mlp.layers.0.weight"],
    )


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.pth: there is no such"):
        load_checkpoint(tmp_path / "gone.pth")


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_checkpoint_cut_short_is_refused(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(CheckpointError, match=r"model\.pth.*(cut short|damaged)"):
        load_checkpoint(file)


def test_flipped_bytes_never_crash(file):
    data = bytearray(file.read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(60):
        broken = bytearray(data)
        for position in rng.integers(len(data), size=20):
            broken[position] ^= 0xFF
        file.write_bytes(broken)
        try:
            load_checkpoint(file)
        except CheckpointError as error:
            assert "model.pth" in str(error)


def test_an_end_that_names_other_disks_is_damage(file):
    """zipfile raises for it instead of saying no: a locator of a 64-bit end whose archive has three disks."""
    data = bytearray(file.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    locator = b"PK\x06\x07" + (0).to_bytes(4, "little") + bytes(8) + (3).to_bytes(4, "little")
    file.write_bytes(bytes(data[:end]) + locator + bytes(data[end:]))
    with pytest.raises(CheckpointError, match="model.pth"):
        load_checkpoint(file)


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def test_a_pickle_payload_is_refused_and_not_run(tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "evil.pth"
    torch.save({"format_version": 1, "model": Payload(marker)}, path)
    with pytest.raises(CheckpointError, match=r"evil\.pth: holds Python objects"):
        load_checkpoint(path)
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(CheckpointError, match=r"evil\.pth"):
        load_checkpoint(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 99}, "upgrade imitate"),
        ({"format_version": None}, "format_version"),
        ({"model": None}, "lacks model"),
    ],
)
def test_foreign_and_newer_files_are_refused(tmp_path, change, words):
    ckpt = {**make_checkpoint(), **change}
    torch.save({k: v for k, v in ckpt.items() if v is not None}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path / "x.pth")


def test_weights_that_do_not_fit_are_refused():
    ckpt = make_checkpoint()
    ckpt["config"] = ckpt["config"].replace("16", "17")
    with pytest.raises(CheckpointError, match="do not fit"):
        policy_from_checkpoint(ckpt_dict=ckpt, device="cpu")


def test_either_a_path_or_a_dict():
    with pytest.raises(CheckpointError, match="either"):
        policy_from_checkpoint()


def test_a_full_disk_leaves_the_earlier_checkpoint(file, monkeypatch):
    before = file.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.torch, "save", full)
    with pytest.raises(CheckpointError, match=r"model\.pth.*No space left.*earlier checkpoints"):
        save_checkpoint(make_checkpoint(seed=1), file)
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["model.pth"]


SAVE_FOREVER = """
import sys, torch
from imitate.policy.checkpoint import save_checkpoint
print("ready", flush=True)
n = 0
while True:
    n += 1
    save_checkpoint({"n": n, "x": torch.full((200_000,), float(n))}, sys.argv[1])
"""


def test_kill_while_saving_leaves_a_whole_checkpoint(tmp_path):
    path = tmp_path / "last.pth"
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOREVER, str(path)], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    while not path.exists():
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved = torch.load(path, weights_only=True)
    assert torch.all(saved["x"] == saved["n"])


def test_permissions_are_those_of_any_new_file(file):
    """A temporary file is private; a checkpoint is as readable as the user's umask says."""
    other = file.parent / "other"
    other.touch()
    assert file.stat().st_mode == other.stat().st_mode
