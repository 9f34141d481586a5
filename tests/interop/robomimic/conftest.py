"""Checkpoints and recorded numbers of robomimic itself, see tests/policy/fixtures/robomimic/README.md."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate.policy.checkpoint import algo_from_checkpoint, converted, load_checkpoint
from imitate.system.torch_archive import read_tensors

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "policy" / "fixtures" / "robomimic"
MORE = FIXTURES / "more"


def _record():
    spec = importlib.util.spec_from_file_location(
        "record", ROOT / "tools" / "record" / "robomimic_0_5.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recorded:
    """One checkpoint, and what robomimic computed with it."""

    def __init__(self, name):
        folder = FIXTURES if (FIXTURES / f"{name}.npz").is_file() else MORE
        self.path = folder / f"{name}.pth"
        with np.load(folder / f"{name}.npz") as file:
            self.arrays = {key: file[key] for key in file.files}

    def __getitem__(self, key):
        return self.arrays[key]

    def tensor(self, key):
        return torch.as_tensor(self.arrays[key])

    def group(self, prefix):
        return {k[len(prefix) :]: v for k, v in self.arrays.items() if k.startswith(prefix)}

    def checkpoint(self):
        return load_checkpoint(self.path) if self.path.is_file() else converted(self.raw())

    def raw(self):
        if self.path.is_file():
            return read_tensors(self.path)
        return _record().filled(json.loads(self.path.with_suffix(".json").read_text()))

    def algo(self):
        algo = algo_from_checkpoint(self.checkpoint())
        algo.set_eval()
        return algo

    def prepared(self, algo):
        """The observations of the recorded sequence as networks see them, as one batch."""
        return algo.preprocess.prepare_obs(self.group("seq/obs/"))

    def batch(self):
        """The recorded batch, as a dataset gives it."""
        batch = {
            key: self.tensor(f"batch/{key}").float()
            for key in ("actions", "rewards", "dones")
            if f"batch/{key}" in self.arrays
        }
        for group in ("obs", "next_obs"):
            values = self.group(f"batch/{group}/")
            if values:
                batch[group] = {key: torch.as_tensor(value) for key, value in values.items()}
        return batch


def names():
    """The checkpoints of the manifest."""
    manifest = json.loads((FIXTURES / "manifest.json").read_text())
    return [entry["name"] for entry in manifest["entries"]]


def further():
    """Names of the policies that ``tools/record/robomimic_0_5.py`` recorded."""
    return sorted(path.stem for path in MORE.glob("*.npz"))


@pytest.fixture(scope="session")
def recorded():
    """Recordings by name, each read once."""
    known = {}

    def get(name):
        if name not in known:
            known[name] = Recorded(name)
        return known[name]

    return get


def pytest_generate_tests(metafunc):
    """`every` is the name of each recording of the manifest, `other` of the others."""
    for fixture, known in (("every", names()), ("other", further())):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, known)
