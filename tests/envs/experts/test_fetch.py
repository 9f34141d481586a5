import numpy as np
import pytest

from imitate.collect.demonstrate import Plan, demonstrate
from imitate.envs.experts import find_expert
from imitate.envs.experts.fetch import pick_and_place, push

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
