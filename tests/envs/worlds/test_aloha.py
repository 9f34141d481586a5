import sys

import gymnasium
import mujoco
import numpy as np
import pytest

from imitate.collect.demonstrate import Plan, demonstrate
from imitate.envs import make_env
from imitate.envs.experts.aloha import Arm
from imitate.envs.worlds.aloha import TRANSFER, AlohaStateEnv, make_transfer
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


def test_commands_and_observations_by_their_places(monkeypatch):
    from gym_aloha.constants import DT, START_ARM_POSE

    world, steps = AlohaStateEnv(), []
    assert AlohaStateEnv("rgb_array").render_mode == "rgb_array" and world.render_mode is None
    obs, info = world.reset(seed=2)
    assert info == {"success": False}
    np.testing.assert_allclose(world.data.qpos[:16], START_ARM_POSE)
    np.testing.assert_allclose(world.data.ctrl, START_ARM_POSE)
    np.testing.assert_array_equal(obs["object_quat"], world.data.qpos[19:23])
    monkeypatch.setattr(mujoco, "mj_step", lambda model, data, count: steps.append(count))
    action = np.arange(14) / 10.0
    action[[6, 13]] = 0.0, 1.0
    world.step(action)
    assert steps == [10] and world.model.opt.timestep * 10 == pytest.approx(DT)
    closed, opened = 0.01844, 0.058  # of the puppet's fingers, in m
    wanted = [*action[:6], closed, -closed, *action[7:13], opened, -opened]
    np.testing.assert_allclose(world.data.ctrl, wanted, atol=1e-9)
    world.data.qpos[:16] = np.arange(16) / 100.0
    world.data.qpos[[6, 14]] = closed, opened
    seen = world.step(action)[0]["agent_pos"]
    arms = [*(np.arange(6) / 100), 0.0, *(np.arange(8, 14) / 100), 1.0]
    np.testing.assert_allclose(seen, arms, atol=1e-9)


def test_a_state_is_restored_exactly():
    world, actions = AlohaStateEnv(), np.random.default_rng(0).uniform(-0.5, 0.5, (4, 14))
    world.reset(seed=1)
    for action in actions[:2]:
        before = world.step(action)[0]
    state = world.get_sim_state()
    assert state.shape == (mujoco.mj_stateSize(world.model, mujoco.mjtState.mjSTATE_INTEGRATION),)
    follows = world.step(actions[2])[0]
    world.reset(seed=2)
    again = world.set_sim_state(state)
    np.testing.assert_array_equal(world.get_sim_state(), state)
    for key, value in world.step(actions[2])[0].items():
        np.testing.assert_array_equal(again[key], before[key])
        np.testing.assert_array_equal(value, follows[key])


def test_other_tasks_of_the_package(monkeypatch):
    made = []
    fake = type(sys)("gym_aloha.env")
    fake.AlohaEnv = lambda task, **kwargs: made.append((task, kwargs))
    monkeypatch.setitem(sys.modules, "gym_aloha.env", fake)
    make_transfer()
    make_transfer("pixels", "insertion", more=1)
    assert made == [
        ("transfer_cube", {"obs_type": "pixels"}),
        ("insertion", {"obs_type": "pixels", "more": 1}),
    ]
    assert isinstance(make_transfer("state"), AlohaStateEnv)
    assert gymnasium.spec(TRANSFER).entry_point is make_transfer
