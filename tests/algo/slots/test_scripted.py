"""Policies that are programs: as algorithm, frozen policy, warm-up and agent of an evaluation."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from imitate.algo.slots.scripted import scripted_algo
from imitate.cli.eval import _made
from imitate.cli.eval_jobs import short_name
from imitate.cli.main import app
from imitate.config.algorithms import is_scripted
from imitate.errors import ConfigError, EnvError
from imitate.evaluate.environments import check_named, trust_named, untrusted_in
from imitate.policy.checkpoint import checkpoint_dict
from imitate.policy.loading import policy_from_checkpoint
from imitate.system.trust import VARIABLE, trust
from imitate.train.online.collector import LocalCollector, WarmUp
from imitate.train.online.env_group import EnvGroup
from imitate.train.start import adopt_frozen
from tests.tiny import tiny_algo, tiny_config

NAME = "own_expert:half"
SHAPES = {"s": (2,), "image": (3, 8, 8)}


@pytest.fixture(autouse=True)
def own_expert(monkeypatch):
    module = types.ModuleType("own_expert")
    module.half = lambda obs: 0.5 * obs["s"][:1]
    module.long = lambda obs: np.zeros(3)
    module.other = lambda obs: obs["t"]
    module.random = module.half
    module.text, module.number, module.kind = (lambda obs: "left"), 3, dict
    monkeypatch.setitem(sys.modules, "own_expert", module)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


def test_a_function_acts_on_raw_vectors_within_the_limits():
    trust(NAME)
    algo = scripted_algo(NAME, "", SHAPES, 1)
    limits = {"action_low": [-1.0], "action_high": [1.0]}
    ckpt = checkpoint_dict(algo, env_metadata={}, shape_metadata=limits)
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_dict=ckpt)
    policy.start_episode()
    given = [policy({"s": np.array([x, 9.0])}).tolist() for x in (0.5, -1.0, 6.0)]
    assert given == [[0.25], [-0.5], [1.0]]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        (NAME, EnvError, "own_expert:half"),
        ("own_expert:long", ConfigError, "wanted 1 finite numbers"),
        ("own_expert:other", ConfigError, "reads the observation 't', but sees only s"),
        ("own_expert:none", ConfigError, "cannot be loaded"),
        ("own_expert:text", ConfigError, "returned 'left': wanted 1 finite numbers"),
        ("own_expert:number", ConfigError, "is of int: name a function of the observation"),
        ("own_expert:kind", ConfigError, "is a class: name a function"),
        ("scripted", EnvError, "no scripted expert for 'nowhere:No-v0'"),
    ],
)
def test_refused(name, error, words):
    if name != NAME:
        trust(name)
    with pytest.raises(error, match=words):
        algo = scripted_algo(name, "nowhere:No-v0", SHAPES, 1)
        algo.act({"s": torch.zeros(1, 2)}, algo.initial_state(1))


class Counts:
    """An expert whose action is the number of its step."""

    def __init__(self, style):
        self.steps = 0

    def act(self, obs):
        self.steps += 1
        return np.array([self.steps])


def test_each_episode_has_an_expert_of_its_own(monkeypatch):
    monkeypatch.setattr("imitate.envs.experts.find_expert", lambda task: Counts)
    algo = scripted_algo("scripted", "counts", SHAPES, 1)
    obs, state = {"s": torch.zeros(2, 2)}, algo.initial_state(2)
    for _ in range(2):
        step = algo.act(obs, state)
        state = step.state
    assert step.action.flatten().tolist() == [2, 2]
    state = algo.reset_state(state, torch.tensor([False, True]))
    assert algo.act(obs, state).action.flatten().tolist() == [3, 1]


@pytest.mark.parametrize("name", ["residual", "ppo_bc", "ibrl"])
def test_it_is_the_frozen_policy_of_another_whose_checkpoint_needs_trust(name, monkeypatch):
    trust(NAME)
    algo = tiny_algo(name, obs={"s": 2}, algo={"base": {"checkpoint": NAME}})
    adopt_frozen(algo, {"env_name": "any"})
    obs = {"s": torch.tensor([[0.5, 9.0]])}
    action, _ = algo.base.act(obs, algo.base.initial_state(1), algo.preprocess)
    assert action.tolist() == [[0.25]]
    saved = algo.serialize()
    again = tiny_algo(name, obs={"s": 2}, seed=4)
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(EnvError, match=NAME):
        again.deserialize(saved)


def test_names_in_a_configuration_pass_the_door():
    sections = {
        "algo": {"base": {"checkpoint": NAME}},
        "train": {"online": {"warmup_policy": "own_expert:other"}},
    }
    config = tiny_config("residual", **sections)
    assert {named.name for named in untrusted_in(config)} >= {NAME, "own_expert:other"}
    with pytest.raises(EnvError, match="own_expert"):
        check_named(config)
    trust_named(config)
    check_named(config)


class Walk:
    """The place is the number of the step, from the seed's last digit on."""

    name, action_dim = "walk", 1
    action_low, action_high = np.array([-2.0]), np.array([2.0])

    def reset(self, *, seed=None):
        self.place = 0.0
        return self.obs(), {}

    def obs(self):
        return {"s": np.array([self.place, 1.0], np.float32)}

    def step(self, action):
        self.place += 1.0
        return self.obs(), 0.0, False, False, {}

    def close(self):
        pass


@pytest.mark.parametrize("needs_act", [True, False])
def test_it_takes_the_steps_before_the_first_update(needs_act):
    trust(NAME)
    group = EnvGroup(Walk, np.arange(2), seed=0, horizon=3)
    algo = tiny_algo("td3", obs={"s": 2})
    algo.random_needs_act = needs_act
    limits = Walk.action_low, Walk.action_high
    collector = LocalCollector(group, algo, *limits, warmup=WarmUp(NAME, "", SHAPES, *limits))
    steps = collector.collect(5, random=True).steps
    assert [step.actions[:, 0].tolist() for step in steps] == [[x, x] for x in (0, 0.5, 1, 0, 0.5)]
    (policy,) = collector.collect(1).steps
    assert policy.actions[0, 0] != 1.0


def test_an_ended_episode_of_the_warm_up_gets_a_new_expert(monkeypatch):
    monkeypatch.setattr("imitate.envs.experts.find_expert", lambda task: Counts)
    warmup = WarmUp("scripted", "counts", SHAPES, np.array([-9.0]), np.array([3.0]))
    obs = {"s": np.zeros((2, 2), np.float32), "image": np.zeros((2, 8, 8, 3), np.uint8)}
    warmup.end(np.array([True, True]))  # before the first action nothing has begun
    given = []
    for ends in ([False, False], [False, True], [False, False], [False, False]):
        given.append(warmup.actions(obs, 2)[:, 0].tolist())
        warmup.end(np.array(ends))
    assert given == [[1, 1], [2, 2], [3, 1], [3, 2]]  # the limit is 3


def test_programs_of_one_name_in_two_modules_are_two_policies():
    paths, drawn = _made([Path(NAME), Path("own_expert:random"), Path("random")], ["Pendulum-v1"])
    assert [short_name(str(path)) for path in paths] == [NAME, "own_expert:random", "random"]
    assert drawn == {paths[2]}


def test_names_of_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("scripted", "random", NAME, "best.pth", "runs/bc")
    assert [word for word in words if is_scripted(word)] == ["scripted", "random", NAME]
    (tmp_path / "scripted").mkdir()
    assert not is_scripted("scripted")


@pytest.mark.slow("workers of an evaluation start")
def test_an_evaluation_of_a_random_policy():
    said = CliRunner().invoke(
        app, ["eval", "--agent", "random", "--env", "CartPole-v1", "-n", "4", "-w", "1"]
    )
    assert said.exit_code == 0 and "random " in said.output


def test_an_error_of_the_users_function_is_told_apart_from_a_missing_observation(
    tmp_path, monkeypatch
):
    words = "TABLE = {}\ndef look(obs):\n    return TABLE['left']\ndef act(obs):\n    return look(obs)\n"
    (tmp_path / "failing_expert.py").write_text(words)
    monkeypatch.syspath_prepend(tmp_path)
    trust("failing_expert:act")
    algo = scripted_algo("failing_expert:act", "", SHAPES, 1)
    with pytest.raises(
        ConfigError, match=r"failed at .*failing_expert.py, line 3: KeyError: 'left'"
    ):
        algo.act({"s": torch.zeros(1, 2)}, algo.initial_state(1))
