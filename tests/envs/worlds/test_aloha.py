import sys

import gymnasium
import numpy as np
import pytest

from imitate.collect.demonstrate import Plan, demonstrate
from imitate.envs import make_env
from imitate.envs.experts.aloha import Arm
from imitate.envs.worlds.aloha import TRANSFER, AlohaStateEnv
from imitate.errors import EnvError

NAME = f"gym_aloha:{TRANSFER}"
STATE = {"env_name": NAME, "type": 2, "env_kwargs": {"obs_type": "state"}}


@pytest.fixture(scope="module")
def env():
    made = make_env(STATE)
    yield made
    made.close()


def test_the_cube_lies_where_gym_aloha_has_it_for_a_seed(env):
    from gym_aloha.utils import sample_box_pose

    obs, _ = env.reset(seed=3)
    np.testing.assert_allclose(obs["object_pos"], sample_box_pose(3)[:3])
    assert obs["agent_pos"].shape == (14,)
    assert obs["agent_pos"][6] == obs["agent_pos"][13] == pytest.approx(0.0999, abs=0.001)
    assert (env.reset(seed=4)[0]["object_pos"][:2] != obs["object_pos"][:2]).all()


def test_actions_are_angles_and_openings_to_go_to(env):
    obs, _ = env.reset(seed=3)
    goal = obs["agent_pos"].copy()
    goal[[0, 7]] += 0.2, -0.1
    goal[13] = 0.8
    for _ in range(60):
        obs = env.step(goal)[0]
    np.testing.assert_allclose(obs["agent_pos"][[0, 7, 13]], goal[[0, 7, 13]], atol=0.03)


def test_the_expert_hands_the_cube_over_and_lets_go_with_the_right_arm():
    meta = {**STATE, "env_kwargs": {"obs_type": "state", "reward_shaping": True}}
    demos = [demonstrate(Plan(meta, seed=1, hold_steps=80), number) for number in range(2)]
    for demo in demos:
        assert demo.success and demo.attempts == 1
        # Stage by stage: nothing, touched, lifted, in the left gripper.
        first = [int(np.argmax(demo.rewards >= stage)) for stage in (1, 2, 4)]
        assert first == sorted(first)
        assert set(demo.rewards) >= {0.0, 2.0, 4.0}
        assert demo.rewards[-1] == 4.0 and demo.next_obs["agent_pos"][-1][13] > 0.9
        assert demo.next_obs["object_pos"][-1][2] > 0.15
        assert demo.attrs["language"].startswith("hand the cube")


def test_kinematics_reach_a_pose_and_the_arms_mirror_each_other():
    left, right = Arm("left"), Arm("right")
    np.testing.assert_allclose(left.tip * [-1, 1, 1], right.tip, atol=1e-4)
    goal = np.array([0.1, 0.55, 0.2])
    for _ in range(60):
        right.go(goal, right.level)
    tip, axes = right.pose(right.command)
    np.testing.assert_allclose(tip, goal, atol=1e-3)
    np.testing.assert_allclose(axes, right.level, atol=1e-2)


def test_a_missing_package_is_named_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "gym_aloha", None)
    monkeypatch.delitem(sys.modules, "imitate.envs.worlds.aloha")
    with pytest.raises(EnvError, match="gym_aloha: .*pip install 'gym-aloha>=0.1.4,<0.2'"):
        make_env(STATE)


def test_other_kinds_of_observations_are_gym_alohas_own(monkeypatch):
    """Its class is asked for; it needs dm_control, which is not installed beside this mujoco."""
    made = []
    fake = type(sys)("gym_aloha.env")
    fake.AlohaEnv = lambda task, **kwargs: made.append((task, kwargs)) or AlohaStateEnv()
    monkeypatch.setitem(sys.modules, "gym_aloha.env", fake)
    gymnasium.make(TRANSFER, obs_type="pixels_agent_pos", disable_env_checker=True)
    assert made == [("transfer_cube", {"obs_type": "pixels_agent_pos"})]
