import numpy as np
import pytest

from imitate.collect.demonstrate import Plan, demonstrate
from imitate.envs.experts import find_expert
from imitate.envs.experts.fetch import expert_of, pick_and_place, push, reach
from imitate.errors import EnvError

PACKAGE = "gymnasium_robotics"


def seen(to_block, way, width=0.1):
    """An observation: from the gripper to the block, from the block to the goal, opening of the fingers."""
    observation = np.zeros(25)
    observation[6:9], observation[9:11] = to_block, width / 2
    return {
        "observation": observation,
        "achieved_goal": np.zeros(3),
        "desired_goal": np.asarray(way, dtype=float),
    }


@pytest.mark.parametrize(
    ("task", "steps"), [("FetchReach-v4", 10), ("FetchPickAndPlace-v4", 40), ("FetchPush-v4", 40)]
)
def test_the_expert_solves_its_task(task, steps):
    env_meta = {"env_name": f"{PACKAGE}:{task}", "type": 2, "env_kwargs": {}}
    plan = Plan(env_meta, seed=1, noise=0.0, keep_failures=True, hold_steps=2)
    demos = [demonstrate(plan, number) for number in range(5)]
    assert all(demo.success and len(demo.actions) <= steps for demo in demos)
    assert {demo.attrs["language"] for demo in demos} == {
        find_expert(env_meta["env_name"]).instruction
    }


def test_the_block_is_grasped_before_it_is_carried():
    above = pick_and_place(seen((0.1, 0.0, -0.05), (0.0, 0.0, 0.2)))
    assert above[0] == 1.0
    assert above[2] > 0.0  # high until it is over the block
    assert above[3] == 1.0
    at = seen((0.0, 0.0, 0.0), (0.0, 0.0, 0.2))
    assert pick_and_place(at).tolist() == [0.0, 0.0, 0.0, -1.0]
    held = seen((0.0, 0.0, 0.0), (0.0, 0.0, 0.2), width=0.05)
    assert pick_and_place(held).tolist() == [0.0, 0.0, 1.0, -1.0]


def test_the_block_is_pushed_from_behind_and_gone_around_from_ahead():
    behind = push(seen((0.05, 0.0, 0.0), (0.2, 0.0, 0.0)))
    assert behind[0] > 0.5 and behind[1] == behind[2] == 0.0
    ahead = push(seen((-0.05, 0.0, 0.0), (0.2, 0.0, 0.0)))
    assert ahead[0] < -0.5
    assert ahead[2] > 0.5  # over the block
    assert push(seen((0.05, 0.0, 0.0), (0.005, 0.0, 0.0))).tolist() == [0.0, 0.0, 0.0, -1.0]


def test_reaching_is_12_per_metre_within_the_limits():
    obs = {"observation": np.full(25, 0.1), "desired_goal": np.array([0.15, -0.1, 0.1])}
    np.testing.assert_allclose(reach(obs), [0.6, -1.0, 0.0, 0.0], atol=1e-9)


@pytest.mark.parametrize(
    ("to_block", "width", "action"),
    [
        # descends inside a funnel: 4 (0.02 - 0.008) above the block
        ((0.02, 0.0, -0.05), 0.1, [0.24, 0.0, 12 * (-0.05 + 0.048), 1.0]),
        ((0.006, 0.0, -0.02), 0.1, [0.072, 0.0, -0.24, 1.0]),  # straight down, but not below
        ((0.019, 0.0, -0.019), 0.1, [0.228, 0.0, -0.228, -1.0]),
        ((0.0, 0.5, -0.05), 0.1, [0.0, 1.0, 12 * (-0.05 + 0.08), 1.0]),
        ((0.0, 0.0, 0.01), 0.052, [0.0, 0.0, 0.12, -1.0]),  # not yet held
        ((0.0, 0.0, 0.01), 0.0519, [0.0, 0.6, 0.0, -1.0]),
    ],
)
def test_a_grasp_by_hand(to_block, width, action):
    found = pick_and_place(seen(to_block, (0.0, 0.05, 0.0), width))
    np.testing.assert_allclose(found, action, atol=1e-9)


@pytest.mark.parametrize(
    ("to_block", "way", "action"),
    [
        # at least 0.02, at most 0.08 m ahead, half of the way between, and twice what it is beside
        ((0.05, 0.0, 0.01), (0.04, 0.0), [0.48, 0.0, 0.12, -1.0]),
        ((0.05, 0.01, 0.0), (0.2, 0.0), [0.96, 0.24, 0.0, -1.0]),
        ((0.05, 0.0, 0.024), (0.04, 0.0), [0.48, 0.0, 0.288, -1.0]),
        # not behind it, too far beside, too high: to 0.075 m behind, above until it is near
        ((0.02, 0.0, 0.0), (0.2, 0.0), [-0.66, 0.0, 0.96, -1.0]),
        ((0.06, 0.015, 0.0), (0.2, 0.0), [-0.18, 0.18, 0.96, -1.0]),
        ((0.06, 0.0, -0.025), (0.2, 0.0), [-0.18, 0.0, 0.66, -1.0]),
        ((0.07, 0.0, -0.025), (0.2, 0.0), [-0.06, 0.0, -0.3, -1.0]),
        # seen from the other side
        ((0.0, -0.05, 0.0), (0.0, -0.04), [0.0, -0.48, 0.0, -1.0]),
        ((0.05, 0.0, 0.0), (0.0, 0.01), [0.6, -0.9, 0.96, -1.0]),
        ((0.05, 0.0, 0.0), (0.0099, 0.0), [0.0, 0.0, 0.0, -1.0]),
    ],
)
def test_a_push_by_hand(to_block, way, action):
    np.testing.assert_allclose(push(seen(to_block, (*way, 0.0))), action, atol=1e-9)


def test_experts_by_name():
    task = expert_of(f"{PACKAGE}:FetchPushDense-v2")
    assert (task.rule, task.horizon, task.motion_axes) == (push, 50, 3)
    assert not task.acts_as_person
    assert expert_of("FetchReach-v4").rule is reach
    with pytest.raises(EnvError, match="no scripted expert for 'FetchSlide-v4'"):
        expert_of("FetchSlide-v4")
