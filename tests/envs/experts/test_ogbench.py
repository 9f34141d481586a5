"""OGBench's oracles as experts: the environment plays, and the oracle gives the action."""

import sys
import types

import numpy as np
import pytest

from imitate.envs.experts.ogbench import OGBenchDataset, OGBenchOracle, expert_of
from imitate.errors import EnvError

from .hands import PLAIN


class Scene:
    """Counts the calls."""

    def __init__(self):
        self.plays = 0
        self.unwrapped = self

    def play(self):
        self.plays += 1

    def oracle_action(self):
        return np.array([float(self.plays)])


def test_the_oracle_plays_in_the_environment_behind_the_wrappers():
    scene = Scene()
    oracle = OGBenchDataset("ogbench:x")(PLAIN)
    assert isinstance(oracle, OGBenchOracle)
    oracle.attach(types.SimpleNamespace(unwrapped=scene))
    assert scene.plays == 1
    assert oracle.act({}).tolist() == [1.0]


def test_datasets_by_name(monkeypatch):
    adapter = types.ModuleType("imitate.envs.worlds.ogbench")  # the package may not be installed
    adapter.DATASETS = {"pointmaze-giant-stitch-v0": types.SimpleNamespace(steps=200)}
    monkeypatch.setitem(sys.modules, adapter.__name__, adapter)
    found = expert_of("ogbench:pointmaze-giant-stitch-v0")
    assert (found.env_name, found.horizon) == ("ogbench:pointmaze-giant-stitch-v0", 200)
    assert OGBenchDataset("ogbench:x").horizon == 1000
    assert found.motion_axes == 0 and found.plays and not found.acts_as_person
    assert found.instruction is None and found.dense_kwargs is None
    with pytest.raises(EnvError, match="ogbench has no dataset 'cube'"):
        expert_of("ogbench:cube")
