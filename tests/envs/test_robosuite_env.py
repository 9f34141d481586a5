import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from imitate.envs import Env
from imitate.envs import robosuite_env as module
from imitate.envs.robosuite_env import RobosuiteEnv
from imitate.envs.scene_check import check_scene
from imitate.errors import EnvError, UserError
from imitate.system.trust import VARIABLE, trust

pytestmark = pytest.mark.robosuite


@pytest.fixture(scope="module")
def lift():
    env = RobosuiteEnv("Lift")
    yield env
    env.close()


@pytest.fixture(scope="module")
def recorded(lift):
    """The first state of an episode."""
    lift.reset(seed=0)
    return lift.get_state()


def actions(count, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (count, 7))


def test_offers_the_protocol_and_robomimics_observations(lift):
    assert isinstance(lift, Env)
    obs, info = lift.reset(seed=0)
    sizes = {"eef_pos": 3, "eef_quat": 4, "eef_quat_site": 4, "gripper_qpos": 2, "gripper_qvel": 2}
    sizes |= dict.fromkeys(
        [f"joint_{key}" for key in ("acc", "pos", "pos_cos", "pos_sin", "vel")], 7
    )
    shapes = {"object": (10,), **{f"robot0_{key}": (size,) for key, size in sizes.items()}}
    assert {key: value.shape for key, value in obs.items()} == shapes
    assert (info, lift.action_dim) == ({"success": False}, 7)
    assert (lift.action_low.tolist(), lift.action_high.tolist()) == ([-1.0] * 7, [1.0] * 7)


def test_observations_belong_to_the_state_after_the_step(lift, recorded):
    lift.reset_to(recorded)
    for action in actions(10):
        obs, reward, terminated, truncated, info = lift.step(action)
        # cube in the gripper's place, from two sensors of one instant; robosuite's own are 2 ms apart
        beside = obs["object"][:3] - obs["robot0_eef_pos"]
        np.testing.assert_allclose(obs["object"][7:10], beside, atol=1e-12)
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    assert info["joint_speed"] == pytest.approx(np.abs(obs["robot0_joint_vel"]).max())


def test_contact_force_of_one_fingertip_is_mujocos_external_force(lift):
    lift.reset(seed=0)
    model, data = lift.base_env.sim.model, lift.base_env.sim.data
    arm = model.body_rootid == model.body_name2id("robot0_base")
    forces = {0: [], 1: [], 2: []}
    for _ in range(30):
        *_, info = lift.step(np.array([0.6, 0, -1, 0.5, 0, 0, -1]))
        touching = arm[model.geom_bodyid[data.contact.geom]].sum(axis=1) == 1
        pairs = len({tuple(pair) for pair in data.contact.geom[touching].tolist()})
        total = np.linalg.norm(data.cfrc_ext[arm, 3:].sum(axis=0))
        forces[min(pairs, 2)].append((info["contact_force"], total))
    assert forces[0][0] == (0.0, 0.0)
    ours, total = np.transpose(forces[1])
    assert total.min() > 1.0
    np.testing.assert_allclose(ours, total)


def test_state_is_what_a_demonstration_file_holds(lift, recorded):
    state = recorded
    lift.reset()
    lift.reset(seed=0)
    assert lift.get_state()["model"] == state["model"]  # the cube's random size too
    assert state["states"].shape == (32,)  # time, 16 positions, 15 velocities
    assert state["model"].startswith("<mujoco")
    assert json.loads(state["ep_meta"]) == {}


def test_reward_and_success_when_the_cube_is_up(lift, recorded):
    states = recorded["states"].copy()
    states[1 + 9 + 2] = 0.9  # the cube's height; the limit is 4 cm over the table's 0.8 m
    lift.reset_to({"states": states})
    assert lift.is_success() == {"task": True}
    _, reward, terminated, _, info = lift.step(np.zeros(7))
    assert (reward, terminated, info["success"]) == (1.0, False, True)


def test_no_opengl_for_states_alone(monkeypatch):
    def refuse():
        raise AssertionError("OpenGL was asked for")

    monkeypatch.setattr(module, "prepare_gl", refuse)
    env = RobosuiteEnv("Lift")
    assert env.base_env.has_offscreen_renderer is False
    with pytest.raises(EnvError, match="render=True"):
        env.render()
    env.close()


@pytest.mark.usefixtures("recorded")
def test_errors_say_what_to_do(lift):
    with pytest.raises(EnvError, match="did you mean 'Lift'"):
        RobosuiteEnv("Lft")
    with pytest.raises(EnvError, match="no_such_argument"):
        RobosuiteEnv("Lift", {"no_such_argument": 1})
    with pytest.raises(EnvError, match=r"shape \(3,\), but this scene has \(32,\)"):
        lift.reset_to({"states": np.zeros(3)})


PICTURE = "<texture type='2d' file='{}'/>"
SCENES = {
    "a file": (PICTURE.format("/etc/hostname"), "model_file to '/etc/hostname'.* --trust /etc/hostname"),
    "a file above robosuite": (PICTURE.format("/x/robosuite/../../../etc/a.png"), "sets model_file to"),
    "a face of a cube": ("<texture type='cube' fileup='/etc/a.png'/>", "model_file to '/etc/a.png'"),
    "a file in the working folder": (PICTURE.format("a.png"), "model_file to 'a.png'"),
    "another scene": ("<include file='/etc/a.xml'/>", "a part <include>"),
    "a folder for all files": ("<compiler strippath='true' meshdir='/etc'/>", "a part <compiler>"),
    "copies": ("<replicate count='1000000000'/>", "a part <replicate>"),
    "a large texture": ("<texture builtin='flat' width='100000' height='100000'/>", "more than 268,435,456"),
    "memory": ("<size memory='9000G'/>", "more than 268,435,456"),
    "no XML": ("<", "model_file is "),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_a_recorded_scene_reads_no_files_of_this_machine(lift, recorded, name):
    part, words = SCENES[name]
    model = recorded["model"].replace("</asset>", f"{part}</asset>")
    with pytest.raises(EnvError, match=words):
        lift.reset_to({**recorded, "model": model})


def test_a_scene_may_name_what_the_environment_names_or_the_user_trusts(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "")
    scene, own = (f"<mujoco><mesh file='{tmp_path}/{name}.stl'/></mujoco>" for name in "ab")
    named = re.escape(shlex.quote(f"{tmp_path}/a.stl"))
    with pytest.raises(EnvError, match=f"--trust {named}"):
        check_scene(scene, "Lift", Path("/x"), lambda: "<mujoco/>")
    check_scene(scene, "Lift", Path("/x"), lambda: own)
    trust(f"{tmp_path}/a.stl")
    check_scene(scene, "Lift", Path("/x"), lambda: "<mujoco/>")


def test_metadata_of_an_episode_is_an_object(lift):
    for text in ("[]", "{", '{"a":' * 5000):
        with pytest.raises(UserError, match="ep_meta"):
            lift.reset_to({**lift.get_state(), "ep_meta": text})


@pytest.mark.render
@pytest.mark.slow("draws in software")
def test_images_are_right_side_up():
    env = RobosuiteEnv("Lift", render=True, camera_names=["agentview"], camera_size=64)
    obs, _ = env.reset(seed=0)
    image = obs["agentview_image"]
    assert (image.shape, image.dtype) == ((64, 64, 3), np.uint8)
    # the white table is below, the grey wall is above
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
