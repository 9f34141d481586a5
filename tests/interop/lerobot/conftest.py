"""Policies and recorded numbers of LeRobot itself, see fixtures/README.md."""

import hashlib
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.data.formats.lerobot_layout import obs_name

FIXTURES = Path(__file__).parent / "fixtures"
DTYPES = {"F32": np.float32, "I64": np.int64}


def drawn(seed, name, low, high, entry):
    """A tensor of a recipe: uniform numbers of numpy's PCG64, seeded by the name."""
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    count = int(np.prod(entry["shape"], dtype=np.int64))
    raw = np.atleast_1d(np.random.PCG64(key).random_raw(count))
    unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (low + (high - low) * unit).astype(DTYPES[entry["dtype"]])


def write_weights(folder, recipe, kept):
    """Write the model.safetensors that a fixture leaves out, byte for byte."""
    header = json.loads(recipe["header"])
    header.pop("__metadata__", None)
    data = bytearray(max(entry["data_offsets"][1] for entry in header.values()))
    for name, entry in header.items():
        limits = recipe["drawn"].get(name)
        value = kept[name] if limits is None else drawn(recipe["seed"], name, *limits, entry)
        start, stop = entry["data_offsets"]
        data[start:stop] = np.ascontiguousarray(value).tobytes()
    text = recipe["header"].encode()
    content = struct.pack("<Q", len(text)) + text + bytes(data)
    assert hashlib.sha256(content).hexdigest() == recipe["sha256"]
    (folder / "model.safetensors").write_bytes(content)


class Recorded:
    """A policy, and the actions that LeRobot took with it."""

    def __init__(self, name, folder):
        source = FIXTURES / name
        shutil.copytree(source / "pretrained", folder)
        recipe = source / "weights.json"
        if recipe.is_file():
            kept = source / "kept.npz"
            tensors = dict(np.load(kept)) if kept.is_file() else {}
            write_weights(folder, json.loads(recipe.read_text()), tensors)
        self.folder = folder
        self.vectors = dict(np.load(source / "vectors.npz"))

    @property
    def config(self):
        return json.loads((self.folder / "config.json").read_text())

    def change(self, file="config.json", **values):
        path = self.folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    def observation(self, step):
        return {
            obs_name(key.removeprefix("obs/")): value[step]
            for key, value in self.vectors.items()
            if key.startswith("obs/")
        }

    def error(self, agent):
        """The largest difference of an action in the recorded episode."""
        policy, _ = policy_from_checkpoint(ckpt_path=agent, device="cpu")
        policy.start_episode()
        actions = []
        for step in range(len(self.vectors["action"])):
            torch.manual_seed(1000 + step)
            actions.append(policy(self.observation(step)))
        return np.abs(np.stack(actions) - self.vectors["action"]).max()

    def batch(self):
        """The batch of the recorded loss, raw."""
        obs = {
            obs_name(key.removeprefix("loss/")): torch.as_tensor(value)
            for key, value in self.vectors.items()
            if key.startswith("loss/observation")
        }
        return {
            "obs": obs,
            "actions": torch.as_tensor(self.vectors["loss/action"]),
            "pad_mask": torch.as_tensor(~self.vectors["loss/action_is_pad"]),
        }


@pytest.fixture
def recorded(tmp_path):
    """From a fixture's name to a copy of it."""
    return lambda name: Recorded(name, tmp_path / name)
