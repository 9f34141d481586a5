import json

import numpy as np
import pytest

from imitate.envs import Env, make_env
from imitate.envs import robosuite_env as module
from imitate.envs.robosuite_env import RobosuiteEnv
from imitate.errors import EnvError

pytestmark = pytest.mark.robosuite

# The acceleration depends on the torques of the moment, which a recorded state does not hold.
UNRESTORED = "robot0_joint_acc"


@pytest.fixture(scope="module")
def lift():
    env = RobosuiteEnv("Lift")
    yield env
    env.close()


def difference(first, second):
    assert first.keys() == second.keys()
    return max(np.abs(first[key] - second[key]).max() for key in first if key != UNRESTORED)


def actions(count, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (count, 7))


def test_offers_the_protocol_and_robomimics_observations(lift):
    assert isinstance(lift, Env)
    obs, info = lift.reset(seed=0)
    shapes = {key: value.shape for key, value in obs.items()}
    assert shapes == {
        "object": (10,),
        "robot0_eef_pos": (3,),
        "robot0_eef_quat": (4,),
        "robot0_eef_quat_site": (4,),
        "robot0_gripper_qpos": (2,),
        "robot0_gripper_qvel": (2,),
        "robot0_joint_acc": (7,),
        "robot0_joint_pos": (7,),
        "robot0_joint_pos_cos": (7,),
        "robot0_joint_pos_sin": (7,),
        "robot0_joint_vel": (7,),
    }
    assert info == {"success": False}
    assert lift.action_dim == 7
    assert lift.action_low.tolist() == [-1.0] * 7
    assert lift.action_high.tolist() == [1.0] * 7


def test_seed_fixes_the_initial_state_whatever_happened_before(lift):
    first, _ = lift.reset(seed=3)
    state = lift.get_state()
    for action in actions(5):
        lift.step(action)
    lift.reset()
    np.random.seed(0)  # noqa: NPY002  the global generator must not matter
    again, _ = lift.reset(seed=3)
    assert all((first[key] == again[key]).all() for key in first)
    assert lift.get_state()["model"] == state["model"]  # the cube's random size too
    other, _ = lift.reset(seed=4)
    assert np.abs(first["object"][:2] - other["object"][:2]).max() > 1e-3


def test_reset_leaves_numpys_global_generator_alone(lift):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    lift.reset(seed=1)
    lift.reset()
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_observations_belong_to_the_state_after_the_step(lift):
    lift.reset(seed=0)
    for action in actions(10):
        obs, reward, terminated, truncated, info = lift.step(action)
        # cube in the gripper's place, from two sensors of one instant; robosuite's own are 2 ms apart
        np.testing.assert_allclose(
            obs["object"][7:10], obs["object"][:3] - obs["robot0_eef_pos"], atol=1e-12
        )
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"success": False})


def test_reset_to_restores_observations(lift):
    first, _ = lift.reset(seed=5)
    recorded = [(lift.get_state(), first)]
    for action in actions(12):
        obs, *_ = lift.step(action)
        recorded.append((lift.get_state(), obs))
    lift.reset(seed=6)
    for state, obs in (recorded[0], recorded[12], recorded[7]):
        assert difference(lift.reset_to(state), obs) < 1e-6
    # without the scene, as within one demonstration
    assert difference(lift.reset_to({"states": recorded[3][0]["states"]}), recorded[3][1]) < 1e-6


def test_actions_play_back_from_a_restored_first_state(lift):
    lift.reset(seed=7)
    start = lift.get_state()
    recorded = [lift.step(action)[0] for action in actions(25)]
    lift.reset(seed=8)
    lift.reset_to(start)
    for action, obs in zip(actions(25), recorded, strict=True):
        assert difference(lift.step(action)[0], obs) == 0.0


def test_state_is_what_a_demonstration_file_holds(lift):
    lift.reset(seed=0)
    state = lift.get_state()
    assert state["states"].shape == (32,)  # time, 16 positions, 15 velocities
    assert state["model"].startswith("<mujoco")
    assert json.loads(state["ep_meta"]) == {}


def test_reward_and_success_when_the_cube_is_up(lift):
    lift.reset(seed=0)
    states = lift.get_state()["states"].copy()
    states[1 + 9 + 2] = 0.9  # the cube's height; the limit is 4 cm over the table's 0.8 m
    lift.reset_to({"states": states})
    assert lift.is_success() == {"task": True}
    _, reward, terminated, _, info = lift.step(np.zeros(7))
    assert (reward, terminated, info["success"]) == (1.0, False, True)


def test_chosen_observations_only():
    env = RobosuiteEnv("Lift", obs_keys=["robot0_eef_pos", "object"])
    assert list(env.reset(seed=0)[0]) == ["robot0_eef_pos", "object"]
    env.close()


def test_files_of_older_robosuite_can_be_used():
    """The flat controller description of robosuite 1.4 files, with their physics stepping."""
    controller = {
        "type": "OSC_POSE",
        "input_max": 1,
        "input_min": -1,
        "output_max": [0.05, 0.05, 0.05, 0.5, 0.5, 0.5],
        "output_min": [-0.05, -0.05, -0.05, -0.5, -0.5, -0.5],
        "kp": 150,
        "damping": 1,
        "impedance_mode": "fixed",
        "kp_limits": [0, 300],
        "damping_limits": [0, 10],
        "position_limits": None,
        "orientation_limits": None,
        "uncouple_pos_ori": True,
        "control_delta": True,
        "interpolation": None,
        "ramp_ratio": 0.2,
    }
    meta = {
        "env_name": "Lift",
        "env_version": "1.4.1",
        "type": 1,
        "env_kwargs": {
            "has_renderer": False,
            "has_offscreen_renderer": True,
            "ignore_done": True,
            "use_object_obs": True,
            "use_camera_obs": True,
            "control_freq": 20,
            "controller_configs": controller,
            "robots": ["Panda"],
            "camera_depths": False,
            "camera_heights": 84,
            "camera_widths": 84,
            "reward_shaping": False,
            "camera_names": ["agentview", "robot0_eye_in_hand"],
            "render_gpu_device_id": 0,
        },
    }
    env = make_env(meta)
    start, _ = env.reset(seed=0)
    for _ in range(5):
        obs, *_ = env.step(np.array([1.0, 0, 0, 0, 0, 0, 0]))
    assert env.action_dim == 7
    assert obs["robot0_eef_pos"][0] - start["robot0_eef_pos"][0] > 0.02
    kwargs = env.serialize()["env_kwargs"]
    assert kwargs["lite_physics"] is False
    assert kwargs["has_offscreen_renderer"] is False
    env.close()


def test_description_makes_the_same_environment(lift):
    meta = lift.serialize()
    assert (meta["env_name"], meta["type"]) == ("Lift", 1)
    json.dumps(meta)
    twin = make_env(meta)
    assert twin.serialize() == meta
    assert difference(twin.reset(seed=2)[0], lift.reset(seed=2)[0]) == 0.0
    twin.close()


def test_no_opengl_for_states_alone(monkeypatch):
    def refuse():
        raise AssertionError("OpenGL was asked for")

    monkeypatch.setattr(module, "prepare_gl", refuse)
    env = RobosuiteEnv("Lift")
    assert env.base_env.has_offscreen_renderer is False
    with pytest.raises(EnvError, match="render=True"):
        env.render()
    env.close()


def test_errors_say_what_to_do(lift):
    with pytest.raises(EnvError, match="did you mean 'Lift'"):
        RobosuiteEnv("Lft")
    with pytest.raises(EnvError, match="no_such_argument"):
        RobosuiteEnv("Lift", {"no_such_argument": 1})
    with pytest.raises(EnvError, match="did you mean 'robot0_eef_pos'"):
        RobosuiteEnv("Lift", obs_keys=["robot0_eef_po"]).reset(seed=0)
    lift.reset(seed=0)
    with pytest.raises(EnvError, match=r"shape \(5,\).*takes \(7,\)"):
        lift.step(np.zeros(5))
    with pytest.raises(EnvError, match=r"shape \(3,\), this scene has \(32,\)"):
        lift.reset_to({"states": np.zeros(3)})


@pytest.mark.render
def test_images_are_right_side_up():
    env = RobosuiteEnv("Lift", render=True, camera_names=["agentview"], camera_size=64)
    obs, _ = env.reset(seed=0)
    image = obs["agentview_image"]
    assert (image.shape, image.dtype) == ((64, 64, 3), np.uint8)
    # the white table lies below, the grey wall is above
    assert image[-16:].mean() > image[:8].mean() + 50
    frame = env.render(height=64, width=64, camera_name="agentview")
    assert np.abs(frame.astype(int) - image).mean() < 1.0
    wide = env.render(height=32, width=48)
    assert (wide.shape, wide.dtype) == ((32, 48, 3), np.uint8)
    with pytest.raises(EnvError, match="did you mean 'agentview'"):
        env.render(camera_name="agentvew")
    stepped, *_ = env.step(np.zeros(7))
    assert stepped["agentview_image"].shape == (64, 64, 3)
    assert env.serialize()["env_kwargs"]["camera_heights"] == 64
    env.close()
