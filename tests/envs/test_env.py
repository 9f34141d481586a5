"""Success, rewards, random actions and agents of environments, by hand."""

import types

import numpy as np
import pytest

from imitate.envs.env import (
    OneAgent,
    ever,
    first_observation,
    has_team,
    lanes_of,
    named_reward,
    num_agents,
    of_all,
    one_reward,
    random_actions,
    stage_setter,
    success_in,
    watched,
)
from imitate.errors import RewardError
from tests.refusals import refused


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({}, None),
        ({"success": None}, None),
        ({"success": np.bool_(True)}, True),
        ({"success": 0, "is_success": 1}, False),
        ({"success": None, "is_success": 1.0}, True),
        ({"is_success": False}, False),
    ],
)
def test_success_of_an_info(info, success):
    assert success_in(info) is success


@pytest.mark.parametrize(
    ("so_far", "now", "then"),
    [
        *((None, now, now) for now in (None, False, True)),
        *((True, now, True) for now in (None, False, True)),
        *((False, now, now is True) for now in (None, False, True)),
    ],
)
def test_success_of_an_episode(so_far, now, then):
    assert ever(so_far, now) is then


@pytest.mark.parametrize(
    ("each", "together"),
    [([None, None], None), ([None, True], False), ([True, True], True), ([True, False], False)],
)
def test_success_of_all_agents(each, together):
    assert of_all(iter(each)) is together


def test_the_stage_is_set_in_the_environment_or_behind_its_wrappers():
    inner = types.SimpleNamespace(set_stage=lambda kwargs: "inner")
    assert stage_setter(inner)({}) == "inner"
    assert stage_setter(types.SimpleNamespace(unwrapped=inner))({}) == "inner"
    assert stage_setter(types.SimpleNamespace()) is None
    own = types.SimpleNamespace(set_stage=lambda kwargs: "own", unwrapped=inner)
    assert stage_setter(own)({}) == "own"


@pytest.mark.parametrize(
    ("reward", "number"),
    [(0.5, 0.5), (np.float64(2), 2.0), (np.array([3]), 3.0), (np.float32(0.25), 0.25), (True, 1.0)],
)
def test_one_reward(reward, number):
    found = one_reward(reward, "Env")
    assert found == number and type(found) is float


def test_several_rewards_are_refused():
    with refused("Env: the reward has shape (2,)|algo.rewards", error=RewardError):
        one_reward(np.zeros(2), "Env")


def test_rewards_by_their_names():
    info = {"speed": np.array([0.5]), "reward:1": 3.0}
    assert named_reward("reward", 2, info) == 2.0
    assert named_reward("info:speed", 2.0, info) == 0.5
    assert named_reward("reward:1", 2.0, info) == 3.0
    assert named_reward("info:none", 2.0, info) is None


def test_random_actions_between_the_limits():
    share = np.array([[0.0, 0.25, 0.5], [0.5, 0.75, 0.999]])
    found = random_actions(share, np.array([-2.0, -np.inf, 0.0]), np.array([2.0, np.inf, 8.0]))
    np.testing.assert_allclose(found, [[-2.0, -0.5, 4.0], [0.0, 0.5, 7.992]])
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("share", "mask", "choice"),
    [
        (0.0, None, 0),
        (0.34, None, 1),
        (0.999, None, 2),
        (0.49, [1, 0, 1], 0),
        (0.5, [1, 0, 1], 2),
        (0.9, [0, 0.5, 0], 1),
    ],
)
def test_random_choices(share, mask, choice):
    found = random_actions(
        np.array([[share, 0.0, 0.0, 0.5]]),
        np.zeros(4),
        np.ones(4),
        3,
        None if mask is None else np.array([mask]),
    )
    assert found[0].tolist() == [*np.eye(3)[choice], 0.5]


class Door:
    """An environment with one agent that notes its calls."""

    def __init__(self, agents=None):
        self.calls, self.agents = [], agents

    def reset(self, *, seed=None):
        self.calls.append(seed)
        return ("seen" if self.agents is None else ["first", "second"]), {"of": "reset"}

    def step(self, action):
        if action is None:
            raise ValueError("stuck")
        return action

    def reset_to(self, state):
        return state

    def render(self, **size):
        return size

    def close(self):
        self.calls.append("close")


def test_lanes_of_one_agent_and_of_a_team():
    door = Door()
    lanes = lanes_of(door)
    assert isinstance(lanes, OneAgent) and lanes.agents == ("",)
    assert lanes.reset(seed=3) == (["seen"], {"of": "reset"})
    assert lanes.step(np.array([[1.0]])) == [np.array([1.0])]
    lanes.close()
    assert door.calls == [3, "close"]
    team = Door(("a", "b"))
    assert lanes_of(team) is team
    assert (has_team(door), has_team(team), num_agents(door), num_agents(team)) == (
        False,
        True,
        1,
        2,
    )


def test_the_first_observation():
    assert first_observation(Door()) == "seen"
    team = Door(("a", "b"))
    assert first_observation(team) == "first" and team.calls == [0]
    robot = Door()
    robot.observe = lambda: "looked"
    assert first_observation(robot) == "looked" and robot.calls == []


def test_calls_are_reported():
    beats, door = [], Door()
    assert watched(lambda: door, None) is door
    env = watched(lambda: door, beats.append)
    begun, _ = beats[:2]
    assert begun and beats == [begun, ""]
    assert env.reset(seed=1)[0] == "seen" and env.step(2) == 2
    assert env.reset_to({"states": 3}) == {"states": 3} and env.render(height=4) == {"height": 4}
    with pytest.raises(ValueError, match="stuck"):
        env.step(None)
    assert env.calls == [1]
    assert beats[2:] == [
        "reset()",
        "",
        "step()",
        "",
        "reset_to()",
        "",
        "render()",
        "",
        "step()",
        "",
    ]
