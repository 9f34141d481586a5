"""robosuite's adapter with a stand-in for the package: calls in their order, arguments, states, forces, refusals."""

import logging
import os
import sys
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from imitate.envs import robosuite_env as module
from imitate.envs.cameras import Camera
from imitate.envs.robosuite_env import (
    RobosuiteEnv,
    free_simulator,
    import_robosuite,
    lean_build,
    restore_get_xml,
)
from imitate.errors import EnvError
from tests.refusals import refused

SCENE = (
    '<mujoco><worldbody><body name="a" pos="0 0 1" euler="1 0 0"/><body name="b" pos="1 2 3" euler="1 0 0"/>'
    '<body/><body name="c" axisangle="1 0 0 1"/></worldbody></mujoco>'
)
log = []


class Model:
    """Seven bodies: the world, a robot's two, its base elsewhere, and a, b, c."""

    def __init__(self):
        self._model = SimpleNamespace(
            body_rootid=np.array([0, 1, 1, 3, 4, 5, 6]), geom_bodyid=np.array([0, 2, 4, 5])
        )
        self.body_pos = np.zeros((7, 3))
        self.body_pos[4:] = [0, 0, 1], [1, 2, 3.5], [0.5e-9, 0, 0]
        self.body_quat = np.tile([1.0, 0, 0, 0], (7, 1))
        self.camera_names = ("agentview", "front")

    def body_name2id(self, name):
        return {"base": 1, "a": 4, "b": 5, "c": 6}[name]

    def get_xml(self):
        return "<compiled/>"


class Controller:
    ref_pos, origin_pos = [0.1, 0.2, 0.3], [1.0, 1, 1]
    ref_ori_mat, origin_ori = np.eye(3), 2 * np.eye(3)

    def update(self, force=False):
        log.append(("update", force))

    def update_initial_joints(self, joints):
        log.append(("joints", joints.tolist()))


class Robot:
    arms = ("right",)
    robot_model = SimpleNamespace(naming_prefix="robot0_", root_body="base")
    _ref_joint_vel_indexes, _ref_joint_pos_indexes = [0, 1], [1, 2]

    def __init__(self):
        self.composite_controller = SimpleNamespace(
            update_state=lambda: log.append("base"), part_controllers={"right": Controller()}
        )


class Observable:
    def update(self, **words):
        log.append(words)


class Task:
    """The environment that ``robosuite.make`` returns."""

    action_spec, action_dim, hard_reset = ([-1, -2], [1, 2]), 2, True
    observation_names = ("robot0_joint_pos", "robot0_eef_vel", "robot0_eef_pos")
    success = False

    def __init__(self, **kwargs):
        if "wrong" in kwargs:
            raise KeyError("wrong")
        if "empty" in kwargs:
            raise AssertionError
        self.kwargs, self.rng = kwargs, np.random.default_rng(0)
        self.robots, self.meta, self.closed = [Robot()], {}, 0
        self.model = SimpleNamespace(get_xml=lambda: SCENE)
        self._obs_cache, self._observables = {"cache": 1}, {"x": Observable()}
        self.state = np.arange(4.0)
        self.build()

    def build(self):
        log.append("build")
        contacts = SimpleNamespace(geom=np.zeros((0, 2), int), frame=np.zeros((0, 9)))
        data = SimpleNamespace(
            _data=SimpleNamespace(contact=contacts),
            qvel=np.array([0.5, -2.0, 9.0]),
            qpos=np.array([5.0, 6, 7]),
        )
        self.sim = SimpleNamespace(
            model=Model(),
            data=data,
            forward=lambda: log.append("forward"),
            get_state=lambda: SimpleNamespace(flatten=lambda: self.state),
            set_state_from_flattened=lambda state: log.append(("state", state.tolist())),
            _render_context_offscreen=None,
        )

    def modify_observable(self, name, attribute, value):
        log.append((name, attribute, value))

    def unset_ep_meta(self):
        self.meta = {}

    def set_ep_meta(self, meta):
        self.meta = meta

    def get_ep_meta(self):
        return self.meta

    def reset(self):
        self.drawn = self.rng.random()
        self.build()

    def reset_from_xml_string(self, xml):
        log.append(("scene", xml))
        self.build()

    def edit_model_xml(self, xml):
        log.append("edit")
        return xml

    def step(self, action):
        log.append(("step", action.tolist()))

    def reward(self, action):
        return action.sum()

    def _get_observations(self):
        names = ("robot0_eef_pos", "robot0_proprio-state", "cube_pos", "object-state")
        return {name: np.full(2, float(n)) for n, name in enumerate(names)}

    def _check_success(self):
        return self.success

    def close(self):
        self.closed += 1


@pytest.fixture
def package(monkeypatch):
    """The package's modules, and MuJoCo's as far as they are used."""
    log.clear()
    robosuite, base, robots = (ModuleType(name) for name in "abc")
    robosuite.__version__, robosuite.made = "1.5.9", []
    robosuite.__file__ = "/packages/robosuite/__init__.py"

    def make(name, **kwargs):
        robosuite.made.append((name, kwargs))
        return Task(**kwargs)

    robosuite.make = make
    base.REGISTERED_ENVS = {"Lift": None, "TwoArmLift": None}
    robots.RobotModel = type("RobotModel", (), {"set_mujoco_model": lambda self: "compiled"})

    def wrench(model, data, number, found):
        found[:3] = data.forces[number]

    mujoco = SimpleNamespace(
        MjModel=SimpleNamespace(from_xml_string=lambda xml: log.append(("compile", xml))),
        mj_contactForce=wrench,
    )
    for name, each in (
        ("robosuite", robosuite),
        ("robosuite.environments.base", base),
        ("robosuite.models.robots.robot_model", robots),
        ("mujoco", mujoco),
    ):
        monkeypatch.setitem(sys.modules, name, each)
    monkeypatch.setattr(module, "return_freed_memory", lambda: log.append("freed"))
    monkeypatch.setattr(module, "check_scene", lambda *words: log.append(("check", *words[1:3])))
    return SimpleNamespace(robosuite=robosuite, robots=robots, mujoco=mujoco)


@pytest.fixture
def env(package):
    made = RobosuiteEnv("Lift")
    log.clear()
    return made


# ---- building ------------------------------------------------------------------------------------


def test_the_package_is_imported_quietly(package, monkeypatch):
    logger = logging.getLogger("robosuite_logs")
    logger.setLevel(logging.DEBUG)
    for setting in (None, "osmesa"):
        if setting is None:
            monkeypatch.delenv("MUJOCO_GL", raising=False)
        else:
            monkeypatch.setenv("MUJOCO_GL", setting)

        def load(name, setting=setting):
            assert name == "robosuite" and logger.disabled
            os.environ["MUJOCO_GL"] = "egl"
            return package.robosuite

        with monkeypatch.context() as patch:
            patch.setattr(module.importlib, "import_module", load)
            assert import_robosuite() is package.robosuite
        assert os.environ.get("MUJOCO_GL") == (None if setting is None else "egl")
        assert not logger.disabled and logger.level == logging.ERROR
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with refused("robosuite cannot be used: |pip install 'robosuite>=", error=EnvError):
        import_robosuite()
    assert not logger.disabled


def test_robots_are_not_compiled_while_a_scene_is_built(package):
    compile_robot = package.robots.RobotModel.set_mujoco_model
    with lean_build():
        assert package.robots.RobotModel().set_mujoco_model() is None
        assert package.robots.RobotModel().set_mujoco_model(3) is None and log == []
    assert package.robots.RobotModel.set_mujoco_model is compile_robot
    with pytest.raises(KeyError), lean_build():
        raise KeyError
    assert package.robots.RobotModel.set_mujoco_model is compile_robot
    assert log == [("compile", "<mujoco/>")] * 2


@pytest.mark.parametrize("scene", [None, "<other/>"])
def test_a_scene_is_compiled_again_when_its_text_is_asked_for(env, scene):
    task = env.base_env
    restore_get_xml(task, scene)
    assert task.sim.model.get_xml() == "<compiled/>"
    assert log == ["edit", ("compile", scene or SCENE), ("compile", "<mujoco/>")]


def test_a_simulator_is_freed(env):
    sim = env.base_env.sim
    free_simulator(env.base_env)
    assert vars(sim.data)["_data"] is None and vars(sim.model)["_model"] is None
    free_simulator(SimpleNamespace(sim=None))
    env.close()
    assert env.base_env.closed == 1 and log[-1] == "freed"


QUIET = {
    **{"has_renderer": False, "has_offscreen_renderer": False, "use_camera_obs": False},
    **{"use_object_obs": True, "ignore_done": True},
}


def test_arguments_of_the_package(package, monkeypatch):
    monkeypatch.setattr(module, "prepare_gl", lambda: log.append("gl"))
    env = RobosuiteEnv("Lift")
    defaults = {"robots": "Panda", "control_freq": 20, "reward_shaping": False}
    assert package.robosuite.made == [("Lift", {**defaults, **QUIET})]
    assert env.serialize() == {
        **{"env_name": "Lift", "env_version": "1.5.9", "type": 1},
        "env_kwargs": {**defaults, **QUIET},
    }
    assert log == [
        *("build", ("compile", "<mujoco/>")),
        *((name, "active", True) for name in ("robot0_joint_pos", "robot0_eef_vel")),
    ]
    assert (env.action_low.tolist(), env.action_high.tolist(), env.action_dim) == (
        [-1, -2],
        [1, 2],
        2,
    )
    assert env.action_low.dtype == np.float64 and env.cameras == ()
    RobosuiteEnv("TwoArmLift", {"control_freq": 5, "has_renderer": True, "camera_names": "x"})
    name, kwargs = package.robosuite.made[1]
    assert kwargs == {**defaults, **QUIET, "robots": ["Panda", "Panda"], "control_freq": 5}
    seeing = RobosuiteEnv("Lift", camera_names=["front"], camera_size=(4, 6))
    assert seeing.cameras == (Camera("front", 4, 6),) and "gl" in log
    drawn = {**QUIET, "has_offscreen_renderer": True}
    assert package.robosuite.made[2][1] == {**defaults, **drawn}
    seen = seeing.serialize()["env_kwargs"]
    assert seen["use_camera_obs"] is True and seen["camera_heights"] == 4
    RobosuiteEnv("Lift", render=True)
    assert package.robosuite.made[3][1]["has_offscreen_renderer"] is True
    with refused("no camera 'fornt'; did you mean 'front'", error=EnvError):
        RobosuiteEnv("Lift", camera_names=["fornt"])


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("Lft", {}, "robosuite 1.5.9 has no environment 'Lft'; did you mean 'Lift'"),
        ("Lift", {"wrong": 1}, "robosuite 1.5.9 does not accept env_kwargs of 'Lift': 'wrong'; correct"),
        ("Lift", {"empty": 1}, "does not accept env_kwargs of 'Lift': AssertionError; correct env_args"),
    ],
)  # fmt: skip
def test_what_cannot_be_made(package, name, kwargs, words):
    with refused(words, error=EnvError):
        RobosuiteEnv(name, kwargs)


# ---- episodes ------------------------------------------------------------------------------------

TWICE = [{"timestep": 0.0, "obs_cache": {"cache": 1}, "force": True}] * 2
SETTLED = [("update", True), ("joints", [6.0, 7.0])]


def test_a_reset_follows_from_its_seed(env, monkeypatch):
    task = env.base_env
    task.meta = {"a": 1}
    rng, old = task.rng, task.sim
    obs, info = env.reset(seed=3)
    assert task.drawn == np.random.default_rng(3).random() and task.rng is rng
    assert task.meta == {} and info == {"success": False}
    assert log == ["build", ("compile", "<mujoco/>"), *SETTLED, *TWICE]
    assert vars(old.data)["_data"] is None
    assert {key: value.tolist() for key, value in obs.items()} == {
        "robot0_eef_pos": [0, 0],
        "object": [3, 3],
    }
    env.reset()
    assert task.drawn == np.random.default_rng(3).random(2)[1]
    task.hard_reset, kept = False, task.sim
    env.reset()
    assert vars(kept.data)["_data"] is not None
    some = RobosuiteEnv("Lift", obs_keys=["object"])
    assert list(some.reset()[0]) == ["object"]
    with refused("Lift: the environment has no observation 'objct'; did you", error=EnvError):
        RobosuiteEnv("Lift", obs_keys=["objct"]).reset()


def test_a_step(env):
    obs, reward, ended, over, info = env.step([0.5, 0.25])
    assert log == [("step", [0.5, 0.25]), "forward", *TWICE]
    assert (reward, ended, over) == (0.75, False, False) and set(obs) == {
        "robot0_eef_pos",
        "object",
    }
    assert info == {"success": False, "joint_speed": 2.0, "contact_force": 0.0}
    with refused("Lift: the action has shape (3,), but the environment takes (2,)", error=EnvError):
        env.step(np.zeros(3))
    env.base_env.success = {"task": 1, "first": 0}
    assert env.is_success() == {"task": True, "first": False}
    assert env.step(np.zeros(2))[4]["success"] is True


def test_the_greatest_force_between_a_robot_and_another_body(env):
    data = vars(env.base_env.sim.data)["_data"]
    turned = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]]).ravel()
    # geoms: 0 of the world, 1 of the robot, 2 and 3 of a and b
    data.contact.geom = np.array([[1, 2], [1, 2], [1, 1], [2, 3], [0, 1]])
    data.contact.frame = np.stack([np.eye(3).ravel(), turned, *[np.eye(3).ravel()] * 3])
    data.forces = np.array([[3.0, 0, 0], [4, 0, 0], [90, 0, 0], [80, 0, 0], [0, 0, 4.5]])
    assert env.step(np.zeros(2))[4]["contact_force"] == 5.0  # 3 along x and 4 along y
    data.forces[4, 2] = 6.0
    assert env.step(np.zeros(2))[4]["contact_force"] == 6.0


def test_states(env):
    env.reset()
    state = env.get_state()
    assert state["states"].tolist() == [0, 1, 2, 3] and state["ep_meta"] == "{}"
    bodies = {
        body.get("name"): body.attrib
        for body in ElementTree.fromstring(state["model"]).iter("body")
    }
    assert bodies["a"] == {"name": "a", "pos": "0 0 1", "euler": "1 0 0"}
    assert bodies["b"] == {"name": "b", "pos": "1.0 2.0 3.5", "quat": "1.0 0.0 0.0 0.0"}
    assert bodies["c"] == {"name": "c", "axisangle": "1 0 0 1"}
    assert env.get_state()["model"] is state["model"]
    log.clear()
    env.reset_to({"states": [4, 5, 6, 7]})
    assert log == [("state", [4, 5, 6, 7]), "forward", *SETTLED, *TWICE]
    with refused(
        "Lift: the recorded state has shape (3,), but this scene has (4,)", error=EnvError
    ):
        env.reset_to({"states": np.zeros(3)})
    env.reset()
    env.base_env.sim.model.body_pos[4] = 9
    assert "9.0 9.0 9.0" in env.get_state()["model"]  # of the new scene


def test_recorded_scenes(env):
    scene = '<mujoco><site name="robot0_right_center"/></mujoco>'
    env.reset_to({"states": np.zeros(4), "model": scene, "ep_meta": None})
    built = ["build", ("compile", "<mujoco/>")]
    checked = [
        "edit",
        ("check", "Lift", module.Path("/packages/robosuite")),
        ("scene", scene),
        *built,
    ]
    assert log[: len(checked)] == checked and env.base_env.meta == {}
    assert env.get_state()["model"] == scene
    log.clear()
    env.base_env.sim.model.get_xml()
    assert log[1] == ("compile", scene)
    log.clear()
    env.reset_to({"states": np.zeros(4), "model": scene, "ep_meta": '{"a": 1}'})
    assert log[: 2 + len(checked)] == [*built, *checked] and env.base_env.meta == {"a": 1}
    with refused("Lift: ep_meta is [1]; expected a JSON object", error=EnvError):
        env.reset_to({"states": np.zeros(4), "model": scene, "ep_meta": "[1]"})
    env.base_env.edit_model_xml = lambda xml: xml.missing
    with refused(
        "Lift: model_file is not a scene of robosuite (|): remove the demo", error=EnvError
    ):
        env.reset_to({"states": np.zeros(4), "model": scene})


# ---- the rest ------------------------------------------------------------------------------------


def test_poses_of_arms(env):
    ((position, rotation, base, base_rotation),) = env.arm_poses()
    assert log == ["base", ("update", True)]
    assert (position.tolist(), base.tolist()) == ([0.1, 0.2, 0.3], [1, 1, 1])
    assert rotation.tolist() == np.eye(3).tolist() and base_rotation[0, 0] == 2


def test_frames_and_cameras(env, monkeypatch):
    seen = []

    def observe(task, camera):
        seen.append(camera)
        return {key: key for key in camera.keys}

    monkeypatch.setattr(module.views, "observe", observe)
    monkeypatch.setattr(module.views, "camera_info", lambda task, camera: camera.height)
    with refused("Lift: the environment was made without a renderer: make it with", error=EnvError):
        env.render()
    monkeypatch.setattr(module, "prepare_gl", lambda: None)
    seeing = RobosuiteEnv("Lift", camera_names=["front"], camera_size=5)
    assert seeing.render() == "agentview_image"
    assert seeing.render(height=3, width=4, camera_name="front") == "front_image"
    assert seen == [Camera("agentview", 256, 256), Camera("front", 3, 4)]
    assert seeing.reset()[0]["front_image"] == "front_image"
    assert seeing.camera_info() == {"front": 5} and env.camera_info() == {}
    monkeypatch.setattr(module, "planned_paths", lambda task, actions: [actions, 2 * actions])
    monkeypatch.setattr(module.views, "project", lambda task, camera, path: (camera, path.tolist()))
    found = env.planned_paths([[1, 2]], height=3, width=4)
    assert found == [(Camera("agentview", 3, 4), [[1, 2]]), (Camera("agentview", 3, 4), [[2, 4]])]


def test_what_is_dropped_frees_its_renderer(package, monkeypatch):
    freed = []
    monkeypatch.setattr(module.views, "free_renderer", freed.append)
    env = RobosuiteEnv("Lift")
    task = env.base_env
    del env
    assert freed == [task]

    def fail(task):
        raise RuntimeError

    monkeypatch.setattr(module.views, "free_renderer", fail)
    RobosuiteEnv("Lift").close()
