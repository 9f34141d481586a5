"""Environments with PettingZoo's parallel API: agents, spaces, opponents, pictures, faults."""

import sys
import types

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from imitate.envs import pettingzoo_env
from imitate.envs.pettingzoo_env import AGENT_ID, PettingZooEnv
from imitate.errors import EnvError
from imitate.system.trust import VARIABLE, trust

MODULE = "walkers_of_tests"


class Walkers(ParallelEnv):
    """Observations are the steps so far; agent ``c`` leaves after the first step, and all after the third."""

    metadata = {"name": "walkers"}

    def __init__(self, wide=None, render_mode=None, late=()):
        self.possible_agents, self.agents = ["a", "b", "c"], []
        self.wide, self.render_mode, self.late = wide, render_mode, late
        self.given, self.closed = [], False

    def observation_space(self, agent):
        return spaces.Box(0, 9, (2 if agent == self.wide else 1,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, seed=None, options=None):
        self.seed, self.steps = seed, 0
        self.agents = [agent for agent in self.possible_agents if agent not in self.late]
        return {agent: self.seen(agent) for agent in self.agents}, {}

    def seen(self, agent):
        return np.full(2 if agent == self.wide else 1, self.steps, np.float32)

    def step(self, actions):
        self.given.append({agent: action.tolist() for agent, action in actions.items()})
        self.steps += 1
        present = list(self.agents)
        ended = {agent: agent == "c" or self.steps == 3 for agent in present}
        self.agents = [agent for agent in present if not ended[agent]]
        return (
            {agent: self.seen(agent) for agent in present},
            {agent: float(ord(agent)) for agent in present},
            {agent: ended[agent] and agent != "b" for agent in present},
            {agent: ended[agent] and agent == "b" for agent in present},
            {agent: {"success": ended[agent], "x": agent} for agent in present},
        )

    def render(self):
        return np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

    def close(self):
        self.closed = True


@pytest.fixture
def make(monkeypatch):
    """Makes the environment of a trusted module."""
    module = types.ModuleType(MODULE)
    module.parallel_env = module.walkers = Walkers
    module.turns = lambda: types.SimpleNamespace(possible_agents=["a"], agent_iter=None)
    module.single = object
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setenv(VARIABLE, "")
    for name in ("", ":walkers", ":turns", ":single", ":nothing"):
        trust(MODULE + name)
    return lambda kwargs=None, factory="", **how: PettingZooEnv(
        f"pettingzoo:{MODULE}{factory}", kwargs, **how
    )


ACTIONS = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])


def test_each_agent_is_a_lane_with_its_number(make):
    env = make()
    assert env.agents == ("a", "b", "c")
    assert (env.action_dim, env.num_choices) == (2, 0)
    assert env.action_low.tolist() == [-1, -1] and env.action_high.tolist() == [1, 1]
    seen, info = env.reset(seed=5)
    assert info == {} and env.parallel.seed == 5
    assert [obs[AGENT_ID].tolist() for obs in seen] == np.eye(3).tolist()
    assert env.is_success() == {"task": None, "a": None, "b": None, "c": None}
    first = env.step(ACTIONS)
    obs, reward, terminated, truncated, info = first[0]
    assert (reward, terminated, truncated) == (97.0, False, False)
    assert info == {"success": False, "x": "a"} and obs[AGENT_ID].tolist() == [1, 0, 0]
    assert first[2][2] is True and first[2][4]["success"] is True
    assert env.parallel.given[0]["b"] == pytest.approx([0.3, 0.4])
    assert env.is_success() == {"task": False, "a": False, "b": False, "c": True}
    second = env.step(ACTIONS)
    assert second[2] is None and second[1][1] == 98.0
    third = env.step(ACTIONS)
    assert third[0][2:4] == (True, False) and third[1][2:4] == (False, True)
    assert env.is_success()["task"] is True
    env.reset()
    assert env.is_success()["c"] is None
    assert not env.gives_mask
    env.close()
    assert env.parallel.closed


def test_the_number_of_rows_is_that_of_the_agents(make):
    env = make()
    env.reset()
    with pytest.raises(EnvError, match=r"shape \(2, 2\), wanted one row for each of the 3 agents"):
        env.step(ACTIONS[:2])


def test_opponents_are_no_lanes_and_act_at_random(make):
    env = make({"opponents": {"b|c": "random"}})
    assert env.agents == ("a",)
    (obs,), _ = env.reset(seed=0)
    assert obs[AGENT_ID].tolist() == [1, 0, 0]
    assert len(env.step(ACTIONS[:1])) == 1
    assert set(env.parallel.given[0]) == {"a", "b", "c"}
    assert set(env.is_success()) == {"task", "a"}


def test_an_opponent_begins_each_episode_and_sees_its_observation(make, monkeypatch):
    class Opponent:
        begun, seen = 0, []

        def start_episode(self):
            self.begun += 1

        def __call__(self, obs):
            self.seen.append(obs[AGENT_ID].tolist())
            return np.array([0.5, -0.5])

    players = []

    def opponent_of(policy, space):
        players.append((policy, space.dim, Opponent()))
        return players[-1][2]

    monkeypatch.setattr("imitate.evaluate.environments.opponent_of", opponent_of)
    env = make({"opponents": {"b": "first", "[bc]": "second"}})
    assert [player[:2] for player in players] == [("first", 2), ("second", 2)]
    for _ in range(2):
        env.reset()
    assert [player[2].begun for player in players] == [2, 2]
    env.step(ACTIONS[:1])
    assert env.parallel.given[-1]["b"] == env.parallel.given[-1]["c"] == [0.5, -0.5]
    assert Opponent.seen == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"opponents": {".": "random"}}, r"match all agents \(a, b, c\): leave one"),
        ({"opponents": ["a"]}, r"is \['a'\]; expected a dict of policies"),
        ({"opponents": {"(": "random"}}, "has '\\(', which is not a regular expression"),
        ({"opponents": {"d": "random"}}, "names 'd', which matches none of the agents a, b, c"),
        ({"wide": "c"}, r"observation_space of 'a' is .* but of 'c' .*needs equal spaces"),
        ({"more": 1}, "does not accept its env_kwargs"),
    ],
)
def test_arguments_that_do_not_fit(make, kwargs, words):
    with pytest.raises(EnvError, match=words):
        make(kwargs)


def test_an_opponent_may_have_other_spaces(make):
    env = make({"wide": "c", "opponents": {"c": "random"}})
    env.reset()
    assert env.agents == ("a", "b") and len(env.step(ACTIONS[:2])) == 2


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (":nothing", "MODULE with a function parallel_env, or pettingzoo:MODULE:FACTORY"),
        (":turns", "returned a SimpleNamespace; wanted PettingZoo's parallel API"),
        (":single", "returned a object; wanted PettingZoo's parallel API"),
    ],
)
def test_functions_that_make_no_parallel_environment(make, factory, words):
    with pytest.raises(EnvError, match=words):
        make(factory=factory)
    assert make(factory=":walkers").agents == ("a", "b", "c")


def test_all_agents_begin_an_episode(make):
    with pytest.raises(EnvError, match="no observation of 'b', only of a, c"):
        make({"late": ["b"]}).reset()


def test_pictures_and_the_description(make):
    env = make({"render_mode": "human", "late": []}, render=True)
    assert env.parallel.render_mode == "rgb_array"
    frame = env.render(height=4, width=2)
    assert frame.shape == (4, 2, 3) and frame[:, 0, 0].tolist() == [0, 0, 12, 12]
    assert frame[0, :, 0].tolist() == [0, 6] and frame.dtype == np.uint8
    assert env.render().shape == (256, 256, 3)
    assert env.serialize() == {
        "env_name": f"pettingzoo:{MODULE}",
        "type": 2,
        "env_kwargs": {"late": []},
    }
    blind = make()
    assert blind.parallel.render_mode is None
    with pytest.raises(EnvError, match="without a renderer"):
        blind.render()
    for call in (blind.get_state, lambda: blind.reset_to({})):
        with pytest.raises(EnvError, match="can be neither read nor set"):
            call()


def test_a_missing_package_and_a_missing_module_are_named(make, monkeypatch):
    trust("no_such_module_of_tests")
    with pytest.raises(EnvError, match="^pettingzoo:no_such_module_of_tests: cannot be imported"):
        PettingZooEnv("pettingzoo:no_such_module_of_tests")
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(EnvError, match=f"^pettingzoo:{MODULE}: the package 'pettingzoo' is not"):
        make()


def test_triton_is_loaded_before_a_renderer_or_images(make, monkeypatch):
    loaded = []
    monkeypatch.setattr(pettingzoo_env, "load_triton", lambda: loaded.append(True))
    make()
    assert loaded == []
    make(render=True)
    assert loaded == [True]

    def space(self, agent):
        shape = (4, 4, 3) if agent == "a" else (1,)
        return spaces.Box(0, 255, shape, np.uint8)

    monkeypatch.setattr(Walkers, "observation_space", space)
    make({"opponents": {"[bc]": "random"}})
    assert loaded == [True, True]


def test_infos_may_be_missing(make, monkeypatch):
    step = Walkers.step
    monkeypatch.setattr(
        Walkers,
        "reset",
        lambda self, seed=None, options=None, reset=Walkers.reset: (reset(self)[0], None),
    )
    monkeypatch.setattr(
        Walkers, "step", lambda self, actions: (*step(self, actions)[:4], {"a": None})
    )
    env = make()
    assert env.reset()[1] == {}
    outcomes = env.step(ACTIONS)
    assert [outcome[4] for outcome in outcomes] == [{"success": None}] * 3
