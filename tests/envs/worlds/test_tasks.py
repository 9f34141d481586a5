"""Small tasks by hand: doors, recalls, ledges, a speed limit."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from imitate.envs.worlds import tasks
from imitate.envs.worlds.tasks import DOORS, OPEN, ROOMS, Doors, Ledge, Recall, SpeedLimit


def test_the_numbers_of_the_rooms():
    assert (ROOMS, DOORS, OPEN, tasks.WIDTH) == (8, 6, 2, 8)
    env = Doors()
    assert env.action_space.n == 6 and env.observation_space.shape == (8,)
    assert (env.observation_space.low[0], env.observation_space.high[0]) == (0.0, 1.0)


def test_open_doors_lead_through_all_rooms_and_pay_by_their_number():
    env = Doors()
    obs, info = env.reset(seed=0)
    for room in range(ROOMS):
        assert obs.tolist() == np.eye(ROOMS)[room].tolist()
        assert info["action_mask"].sum() == 2
        door = int(np.flatnonzero(info["action_mask"])[-1])
        obs, reward, terminated, truncated, info = env.step(door)
        assert reward == door / 5
        assert (terminated, truncated) == (room == 7, False)
        assert info["success"] == (room == 7)
    assert obs.sum() == 0.0


def test_a_closed_door_ends_the_walk_where_it_is():
    env = Doors()
    before, info = env.reset(seed=0)
    closed = int(np.flatnonzero(info["action_mask"] == 0)[-1])
    obs, reward, terminated, _, info = env.step(closed)
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    np.testing.assert_array_equal(obs, before)


def test_the_mask_is_where_it_is_asked_for():
    obs, info = Doors("observation").reset(seed=0)
    assert set(obs) == {"observation", "action_mask"} and info == {}
    assert Doors("observation").observation_space["action_mask"].n == 6
    obs, info = Doors("none").reset(seed=0)
    assert obs.shape == (ROOMS,) and info == {}
    env = Doors()
    _, first = env.reset(seed=0)
    kept = first["action_mask"].copy()
    env.reset(seed=1)
    np.testing.assert_array_equal(first["action_mask"], kept)  # a copy
    masks = [tuple(env.reset(seed=seed)[1]["action_mask"]) for seed in (3, 3, 4, 5, 6)]
    assert masks[0] == masks[1] and len(set(masks)) > 2


@pytest.mark.parametrize(("continuous", "right", "wrong"), [(False, 1, 0), (True, [0.5], [-2.0])])
@pytest.mark.parametrize("delay", [0, 2])
def test_only_the_answer_counts(continuous, right, wrong, delay):
    for answer, reward in ((right, 0.5 if continuous else 1.0), (wrong, -1.0)):
        env = Recall(continuous, delay)
        assert isinstance(env.action_space, spaces.Box if continuous else spaces.Discrete)
        cue = 0.0
        seed = 0
        while cue != 1.0:
            obs, info = env.reset(seed=seed)
            cue, seed = obs[0], seed + 1
        assert obs.tolist() == [1.0, 0.0] and info == {}
        for step in range(delay + 1):
            obs, got, over, truncated, info = env.step(right)
            assert (got, over, truncated, info["success"]) == (0.0, False, False, False)
            assert obs.tolist() == [0.0, float(step == delay)]
        _, got, over, _, info = env.step(np.array(answer) if continuous else answer)
        assert (got, over, info["success"]) == (reward, True, reward > 0)
    assert Recall().delay == 6


def test_a_ledge_has_one_way():
    env = Ledge(3)
    obs, _ = env.reset()
    assert obs.tolist() == np.eye(8)[5].tolist()
    way = np.random.default_rng(7).integers(4, size=8)
    for place in (5, 6, 7):
        obs, reward, terminated, truncated, info = env.step(way[place])
        end = place == 7
        assert (reward, terminated, truncated, info["success"]) == (float(end), end, False, end)
        assert obs.tolist() == ([0.0] * 8 if end else np.eye(8)[place + 1].tolist())
    env.reset()
    obs, reward, terminated, _, info = env.step((way[5] + 1) % 4)
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert obs.tolist() == np.eye(8)[5].tolist()


def test_stages_of_a_ledge_begin_with_the_next_episode():
    env = Ledge()
    assert env.action_space.n == 4 and env.observation_space.shape == (8,)
    assert env.reset()[0].tolist() == np.eye(8)[0].tolist()
    env.set_stage({"length": 2})
    assert env.reset()[0].tolist() == np.eye(8)[6].tolist()
    env.set_stage({})
    assert env.reset()[0].tolist() == np.eye(8)[0].tolist()


@pytest.mark.parametrize(
    ("action", "speed", "cost"), [(0.5, 0.5, 0.25), (-0.5, -0.5, 0.25), (3.0, 1.0, 1.0), (-3.0, -1.0, 1.0)]
)  # fmt: skip
def test_speed_costs_its_square(action, speed, cost):
    env = SpeedLimit()
    assert (env.action_space.low[0], env.action_space.high[0]) == (-1.0, 1.0)
    first, _ = env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(np.array([action]))
    assert (reward, info) == (speed, {"cost": cost})
    assert not terminated and not truncated
    noise = [float(env.reset(seed=seed)[0][0]) for seed in range(100)]
    assert -1 <= min(noise) < -0.9 and 0.9 < max(noise) <= 1
    assert noise[0] == first[0]


@pytest.mark.parametrize(
    ("name", "steps", "actions"),
    [
        ("Doors-v0", None, 6),
        ("Recall-v0", None, 2),
        ("RecallContinuous-v0", None, None),
        ("Ledge-v0", None, 4),
        ("SpeedLimit-v0", 50, None),
        ("CartPoleNoVelocity-v1", None, 2),
        ("PendulumNoVelocity-v1", None, None),
    ],
)
def test_registered(name, steps, actions):
    assert gymnasium.spec(name).max_episode_steps == steps
    env = gymnasium.make(name)
    assert getattr(env.action_space, "n", None) == actions
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert env.observation_space.shape == obs.shape


def test_hidden_velocities_keep_the_limits_of_the_rest():
    whole, part = gymnasium.make("CartPole-v1"), gymnasium.make("CartPoleNoVelocity-v1")
    np.testing.assert_array_equal(part.observation_space.high, whole.observation_space.high[[0, 2]])
    np.testing.assert_array_equal(part.observation_space.low, whole.observation_space.low[[0, 2]])
    np.testing.assert_array_equal(part.reset(seed=0)[0], whole.reset(seed=0)[0][[0, 2]])
    part = gymnasium.make("PendulumNoVelocity-v1")
    np.testing.assert_array_equal(
        part.reset(seed=0)[0], gymnasium.make("Pendulum-v1").reset(seed=0)[0][:2]
    )
