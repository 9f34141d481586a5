import sys

import gymnasium
import numpy as np
import pytest

from imitate.collect.demonstrate import Plan, demonstrate
from imitate.envs import make_env
from imitate.envs.experts.aloha import Arm
from imitate.envs.worlds.aloha import TRANSFER, AlohaStateEnv
from imitate.envs.worlds.drawing import ModelCameras
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


def test_spaces_rewards_and_stages(env, monkeypatch):
    made = AlohaStateEnv()
    assert made.metadata == {"render_modes": ["rgb_array"], "render_fps": 50}
    assert {key: box.shape for key, box in made.observation_space.items()} == {
        "agent_pos": (14,),
        "object_pos": (3,),
        "object_quat": (4,),
    }
    for box in made.observation_space.values():
        assert np.isneginf(box.low).all() and np.isposinf(box.high).all()
    assert made.action_space.shape == (14,)
    np.testing.assert_allclose(made.action_space.low, -np.pi, rtol=1e-6)
    np.testing.assert_allclose(made.action_space.high, np.pi, rtol=1e-6)
    observed = AlohaStateEnv(camera_names=["top"]).observation_space["top_image"]
    assert (observed.shape, observed.low.max(), observed.high.min()) == ((84, 84, 3), 0, 255)
    shaped = AlohaStateEnv(reward_shaping=True)
    for world in (made, shaped):
        world.reset(seed=0)
        for stage in (3, 4):
            monkeypatch.setattr(world, "stage", lambda stage=stage: stage)
            _, reward, ended, over, info = world.step(np.zeros(14))
            assert reward == (stage if world is shaped else stage == 4)
            assert (ended, over, info) == (False, False, {"success": stage == 4, "stage": stage})
    drawn = []
    for camera, height, width in ((None, 480, 640), ("top", 3, 4)):
        monkeypatch.setattr(ModelCameras, "draw", lambda self, *frame: drawn.append(frame))
        made.render() if camera is None else made.draw(camera, height, width)
    assert drawn == [("angle", 480, 640), ("top", 3, 4)]


def test_contacts_decide_the_stage(env, monkeypatch):
    world = AlohaStateEnv()
    world.reset(seed=0)
    number = {world.model.geom(n).name: n for n in range(world.model.ngeom)}
    left, right, table = (
        number[name]
        for name in (
            "vx300s_left/10_left_gripper_finger",
            "vx300s_right/10_right_gripper_finger",
            "table",
        )
    )
    box = number["red_box"]
    for touched, stage in (
        ([], 0),
        ([table], 0),
        ([right, table], 1),
        ([right], 2),
        ([left, table], 3),
        ([left, right], 4),
    ):
        contacts = [type("Contact", (), {"geom": (box, other)}) for other in touched]
        contacts.append(type("Contact", (), {"geom": (left, right)}))  # without the cube
        monkeypatch.setattr(world, "data", type("Data", (), {"contact": contacts}))
        assert world.stage() == stage


def test_without_a_seed_the_random_sequence_of_the_last_one_continues(env, monkeypatch):
    found = []
    for _ in range(2):
        env.reset(seed=7)
        found.append([env.reset()[0]["object_pos"].tolist() for _ in range(2)])
    assert found[0] == found[1] and found[0][0] != found[0][1]
    closed = []
    monkeypatch.setattr(ModelCameras, "close", lambda self: closed.append(True))
    AlohaStateEnv().close()
    assert closed == [True]
