"""Adapter for robosuite 1.5 environments, whose observations have robomimic's names.

There are three differences from robosuite's own ``step`` and ``reset``:

* Observations and rewards belong to the state after the step. robosuite itself reads body positions that are one
  simulation step (2 ms) old, and relative poses that are one control step old; so ``reset_to(get_state())`` could not
  return the observation that ``step`` returned.
* All random numbers of a reset come from one generator, so ``reset(seed=)`` determines the initial state, and numpy's
  global generator is not used.
* Images are right side up.

The paths of the grippers under a sequence of actions are predicted for the controllers of hand poses (``OSC_POSE``,
``OSC_POSITION``). These pull a hand towards its goal as a spring and a damper would:
``acceleration = kp (goal - position) - kd velocity``. A relative goal moves on before the gripper reaches it, so the
path length is a fraction of the sum of the commands: about a quarter with robosuite's default gains at 20 Hz.

MuJoCo's objects are freed when they are no longer needed, because robosuite and MuJoCo keep more than an environment
uses:

* Each reset builds a new simulator. Cycles of Python objects keep the old one until the garbage collector runs.
* Each reset also compiles a model of every robot alone, which robosuite never reads.
* MuJoCo keeps the description of the scene that was compiled last, with all meshes, for ``mj_saveLastXML``.
"""

import copy
import importlib
import json
import logging
import os
import threading
import weakref
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imitate.envs import cameras as views
from imitate.envs.env import Array, Obs
from imitate.envs.migration import migrate_model_xml
from imitate.envs.rendering import prepare_gl, telling_gl_faults
from imitate.envs.scene_check import check_scene
from imitate.envs.spaces import no_observation
from imitate.errors import EnvError, nearest
from imitate.system.extras import missing
from imitate.system.memory import return_freed_memory
from imitate.system.plain_files import parsed_json

PULSE_S = 0.002
"""Step size in seconds for integrating the spring's motion."""


def planned_paths(env: Any, actions: Array) -> list[Array]:
    """Predict the current position of each gripper and its positions after each action.

    Args:
        env: robosuite's environment.
        actions: (K, A) actions of the environment.

    Returns:
        For each gripper with an OSC controller an array (K + 1, 3), in metres in the world.
    """
    return [_hand_path(env, controller, commands) for controller, commands in _arms(env, actions)]


def _arms(env: Any, actions: Array) -> Iterator[tuple[Any, Array]]:
    """Return the OSC controllers, each with the columns of an action that command it."""
    start = 0
    for robot in env.robots:
        composite = robot.composite_controller
        composite.update_state()  # base position of the robot
        for arm in robot.arms:
            controller = composite.part_controllers[arm]
            if getattr(controller, "name_suffix", None) in ("POSE", "POSITION"):
                _, stop = composite._action_split_indexes[arm]
                size = 6 if controller.use_ori else 3
                yield controller, actions[:, start + stop - size : start + stop]
        start += int(robot.action_dim)


def _hand_path(env: Any, controller: Any, commands: Array) -> Array:
    data, name = env.sim.data, controller.ref_name
    position = np.array(data.site_xpos[env.sim.model.site_name2id(name)])
    velocity = np.array(data.get_site_xvelp(name))
    in_base = controller.input_ref_frame == "base"
    frame = np.asarray(controller.origin_ori) if in_base else np.eye(3)
    origin = np.asarray(controller.origin_pos) if in_base else np.zeros(3)
    relative = controller.input_type == "delta"
    follows_hand = getattr(controller, "_goal_update_mode", "achieved") == "achieved"
    pulses = max(1, round(1 / (controller.control_freq * PULSE_S)))
    duration = 1 / (controller.control_freq * pulses)
    path, goal = [position], position
    for command in commands:
        if relative:
            motion = frame @ controller.scale_action(command)[:3]
            goal = (position if follows_hand else goal) + motion
        else:
            goal = origin + frame @ command[:3]
        for _ in range(pulses):
            pull = controller.kp[:3] * (goal - position) - controller.kd[:3] * velocity
            velocity = velocity + duration * pull
            position = position + duration * velocity
        path.append(position)
    return np.stack(path)


_BUILDING = threading.RLock()
"""Lock for environments in several threads, held while robosuite's class of robots is patched."""


def free_simulator(env: Any) -> None:
    """Free model and data of a robosuite environment's current scene before it is replaced or closed.

    Afterwards the environment cannot step until its next hard reset.
    """
    if env.sim is not None:
        env.sim.data._data = None
        env.sim.model._model = None


@contextmanager
def lean_build() -> Iterator[None]:
    """Context in which robosuite builds no models of single robots, and after which MuJoCo frees the last scene.

    :func:`restore_get_xml` must be called afterwards.
    """
    robot_model = importlib.import_module("robosuite.models.robots.robot_model").RobotModel
    with _BUILDING:
        compile_robot = robot_model.set_mujoco_model
        robot_model.set_mujoco_model = lambda self, mujoco_model=None: None
        try:
            yield
        finally:
            robot_model.set_mujoco_model = compile_robot
            _forget_scene()


def restore_get_xml(env: Any, scene: str | None = None) -> None:
    """Make ``env.sim.model.get_xml()`` compile the scene again, otherwise it returns the scene that was compiled last.

    Args:
        env: robosuite's environment.
        scene: MJCF from which the simulator was built, or None for the environment's own model.
    """
    env.sim.model.get_xml = partial(_get_xml, env, scene)


def _get_xml(env: Any, scene: str | None) -> str:
    mujoco, model = importlib.import_module("mujoco"), env.sim.model
    with _BUILDING:
        mujoco.MjModel.from_xml_string(env.edit_model_xml(scene or env.model.get_xml()))
        xml = str(type(model).get_xml(model))
        _forget_scene()
    return xml


def _forget_scene() -> None:
    importlib.import_module("mujoco").MjModel.from_xml_string("<mujoco/>")


ENV_TYPE = 1
DEFAULT_CAMERA = "agentview"
_LOGGER = "robosuite_logs"
_CAMERA_KWARGS = frozenset(
    ("camera_names", "camera_heights", "camera_widths", "camera_depths", "camera_segmentations")
)


def import_robosuite() -> Any:
    """Import robosuite without its start-up warnings; the value of MUJOCO_GL that it sets on import is undone.

    Raises:
        EnvError: robosuite, or the library named by MUJOCO_GL, is not installed.
    """
    logger = logging.getLogger(_LOGGER)
    gl_setting = os.environ.get("MUJOCO_GL")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with telling_gl_faults():
            module = importlib.import_module("robosuite")
    except ImportError as error:
        error.name = error.name or "robosuite"
        raise EnvError(f"robosuite cannot be used: {missing('robosuite', error)}") from error
    finally:
        logger.disabled = was_disabled
    if gl_setting is None:
        os.environ.pop("MUJOCO_GL", None)
    logger.setLevel(logging.ERROR)  # without this each reset prints the name of a controller file
    return module


class ArmPose(NamedTuple):
    """Positions (3,) in metres and rotations (3, 3), in the world, of a gripper and of its robot's base."""

    position: Array
    rotation: Array
    base_position: Array
    base_rotation: Array


class RobosuiteEnv:
    """A robosuite task as an environment.

    Args:
        env_name: robosuite's name of the task, such as ``Lift``.
        env_kwargs: arguments of ``robosuite.make`` 1.5, as in ``env_args`` of a robomimic file. Renderers, cameras,
            ``ignore_done`` and ``use_object_obs`` are set here; the reward is sparse unless ``reward_shaping`` is true.
        obs_keys: observation keys to return; None returns all.
        render: true if ``render`` will be called. Without it and without cameras OpenGL is not used.
        camera_names: cameras to observe as ``<camera>_image``; None takes them from ``obs_keys``, which may contain
            ``<camera>_depth`` and ``<camera>_segmentation``: see :mod:`imitate.envs.cameras`.
        camera_size: side of observed images in pixels, or (height, width), or one of these by camera; None takes the
            size in ``env_kwargs``, or 84 if it has none.
    """

    def __init__(
        self,
        env_name: str,
        env_kwargs: dict[str, Any] | None = None,
        *,
        obs_keys: Sequence[str] | None = None,
        render: bool = False,
        camera_names: Sequence[str] | None = None,
        camera_size: views.Size | Mapping[str, views.Size] | None = None,
    ) -> None:
        self.name = env_name
        self._can_render = render
        self._obs_keys = list(obs_keys) if obs_keys is not None else None
        self.cameras = views.choose_cameras(env_kwargs or {}, camera_names, camera_size, obs_keys)
        if render or self.cameras:
            prepare_gl()
        robosuite = import_robosuite()
        self._version = str(robosuite.__version__)
        self._kwargs = self._make_kwargs(env_kwargs or {})
        self._env = self._make(robosuite)
        # If an environment were not closed, the images of others would become noise, and at exit the graphics libraries
        # would be unloaded before the renderer.
        self._freed = weakref.finalize(self, _free, self._env)
        for camera in self.cameras:
            views.check_camera(self._env, camera.name)
        self._model_xml: str | None = None
        self.action_low, self.action_high = (
            np.asarray(limit, dtype=np.float64) for limit in self._env.action_spec
        )
        self.action_dim = int(self._env.action_dim)
        for name in self._env.observation_names:
            if "joint_pos" in name or "eef_vel" in name:
                self._env.modify_observable(name, "active", True)
        # Observations are refreshed once, after each step; the 25 updates inside a step would only cost time.
        self._env._update_observables = lambda force=False: None

    def _make_kwargs(self, given: dict[str, Any]) -> dict[str, Any]:
        kwargs = copy.deepcopy(given)
        kwargs.setdefault("robots", ["Panda"] * 2 if self.name.startswith("TwoArm") else "Panda")
        kwargs.setdefault("control_freq", 20)
        kwargs.setdefault("reward_shaping", False)
        kwargs.update(
            has_renderer=False,
            has_offscreen_renderer=bool(self._can_render or self.cameras),
            use_camera_obs=bool(self.cameras),
            use_object_obs=True,
            ignore_done=True,
        )
        kwargs = {key: value for key, value in kwargs.items() if key not in _CAMERA_KWARGS}
        return kwargs | (views.camera_kwargs(self.cameras) if self.cameras else {})

    def _make(self, robosuite: Any) -> Any:
        base = importlib.import_module("robosuite.environments.base")
        if self.name not in base.REGISTERED_ENVS:
            raise EnvError(
                f"robosuite {self._version} has no environment '{self.name}'; "
                + nearest(self.name, base.REGISTERED_ENVS)
            )
        # Cameras are rendered here, because robosuite would also draw unused images at each reset.
        kwargs = {key: value for key, value in self._kwargs.items() if key not in _CAMERA_KWARGS}
        kwargs["use_camera_obs"] = False
        try:
            with lean_build():
                env = robosuite.make(self.name, **copy.deepcopy(kwargs))
        except (TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
            detail = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise EnvError(
                f"robosuite {self._version} does not accept env_kwargs of '{self.name}': {detail}; "
                "correct env_args['env_kwargs']"
            ) from error
        restore_get_xml(env)
        return env

    # ------------------------------------------------------------------ episodes

    def reset(self, *, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode, whose initial state depends only on ``seed``."""
        if seed is not None:
            # The placement samplers keep a reference to this generator, so its state is set in place.
            fresh = np.random.default_rng(seed)
            self._env.rng.bit_generator.state = fresh.bit_generator.state
        self._env.unset_ep_meta()
        self._rebuild()
        self._settle_controllers()
        self._model_xml = None
        return self._observe(), {"success": self.is_success()["task"]}

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action. ``terminated`` and ``truncated`` are always False, because robosuite's tasks do not end.

        ``info["joint_speed"]`` is the greatest speed of a joint of the robots in the new state, in rad/s, and
        ``info["contact_force"]`` is the greatest contact force between a robot and another body, in N.
        """
        values = np.asarray(action, dtype=np.float64)
        if values.shape != (self.action_dim,):
            raise EnvError(
                f"{self.name}: the action has shape {values.shape}, but the environment takes ({self.action_dim},); "
                "use a policy trained for this robot and controller"
            )
        self._env.step(values)
        self._env.sim.forward()
        obs = self._observe()
        reward = float(self._env.reward(values))
        signals = {"joint_speed": self._joint_speed(), "contact_force": self._contact_force()}
        return obs, reward, False, False, {"success": self.is_success()["task"], **signals}

    def _joint_speed(self) -> float:
        joints = [robot._ref_joint_vel_indexes for robot in self._env.robots]
        return float(np.abs(self._env.sim.data.qvel[np.concatenate(joints)]).max())

    def _contact_force(self) -> float:
        """Return the greatest force in N between a geom of a robot and another geom, summed over their contacts."""
        mujoco = importlib.import_module("mujoco")
        model, data = self._env.sim.model._model, self._env.sim.data._data
        tree = model.body_rootid[model.geom_bodyid]
        robots = {
            model.body_rootid[self._env.sim.model.body_name2id(robot.robot_model.root_body)]
            for robot in self._env.robots
        }
        forces: dict[tuple[int, int], Array] = {}
        for number, pair in enumerate(data.contact.geom.tolist()):
            one, other = tree[pair]
            if one != other and not robots.isdisjoint((one, other)):
                wrench = np.zeros(6)  # force in the contact's frame, then torque
                mujoco.mj_contactForce(model, data, number, wrench)
                frame = data.contact.frame[number].reshape(3, 3)
                forces[tuple(pair)] = forces.get(tuple(pair), 0.0) + wrench[:3] @ frame
        return max((float(np.linalg.norm(force)) for force in forces.values()), default=0.0)

    def is_success(self) -> dict[str, bool]:
        """Return ``{"task": solved}``."""
        success = self._env._check_success()
        if isinstance(success, dict):
            return {key: bool(value) for key, value in success.items()}
        return {"task": bool(success)}

    # ------------------------------------------------------------------ states

    def get_state(self) -> dict[str, Any]:
        """Return ``states`` (time, qpos, qvel), ``model`` (MJCF of this episode) and ``ep_meta`` (JSON string)."""
        if self._model_xml is None:
            self._model_xml = _scene_xml(self._env)
        return {
            "states": np.array(self._env.sim.get_state().flatten()),
            "model": self._model_xml,
            "ep_meta": json.dumps(self._env.get_ep_meta()),
        }

    def reset_to(self, state: dict[str, Any]) -> Obs:
        """Restore a state. Without ``model`` the current scene is kept.

        From an episode's first state, the recorded actions lead to the recorded states. From a later state the gripper
        may move differently at first, because its command, which is not part of MuJoCo's state, is reset.
        """
        if "model" in state:
            self._load_model(str(state["model"]), state.get("ep_meta"))
        states = np.asarray(state["states"], dtype=np.float64)
        expected = self._env.sim.get_state().flatten().shape
        if states.shape != expected:
            raise EnvError(
                f"{self.name}: the recorded state has shape {states.shape}, but this scene has {expected}; use the "
                "robot, task and robosuite version of the recording"
            )
        self._env.sim.set_state_from_flattened(states)
        self._env.sim.forward()
        self._settle_controllers()
        return self._observe()

    def arm_poses(self) -> list[ArmPose]:
        """Return the poses of each arm's gripper and base as its controller measures them, robot by robot."""
        poses = []
        for robot in self._env.robots:
            robot.composite_controller.update_state()
            for arm in robot.arms:
                controller = robot.composite_controller.part_controllers[arm]
                controller.update(force=True)
                hand = controller.ref_pos, controller.ref_ori_mat
                base = controller.origin_pos, controller.origin_ori
                poses.append(ArmPose(*map(np.array, (*hand, *base))))
        return poses

    def _rebuild(self) -> None:
        """Build the simulator again from a recorded scene."""
        views.free_renderer(self._env)
        if self._env.hard_reset:
            free_simulator(self._env)
        with lean_build():
            self._env.reset()
        restore_get_xml(self._env)

    def _load_model(self, xml: str, ep_meta: str | None) -> None:
        meta = parsed_json(ep_meta, f"{self.name}: ep_meta") if ep_meta else {}
        if not isinstance(meta, dict):
            raise EnvError(
                f"{self.name}: ep_meta is {str(meta)[:200]}; expected a JSON object: remove the demo, or "
                "its ep_meta"
            )
        self._env.set_ep_meta(meta)
        if meta:
            self._rebuild()  # some tasks build their scene from the metadata
        scene, _ = migrate_model_xml(xml)
        edited = self._edited(scene)
        views.free_renderer(self._env)
        free_simulator(self._env)
        with lean_build():
            self._env.reset_from_xml_string(edited)
        restore_get_xml(self._env, scene)
        self._model_xml = scene

    def _edited(self, scene: str) -> str:
        """Return a recorded scene, checked, with the paths of files on this machine."""
        try:
            edited = str(self._env.edit_model_xml(scene))
        except (ElementTree.ParseError, AttributeError) as error:
            raise EnvError(
                f"{self.name}: model_file is not a scene of robosuite ({error}): remove the demo, or its model_file"
            ) from error
        folder = Path(importlib.import_module("robosuite").__file__ or "").parent
        check_scene(edited, self.name, folder, self._env.model.get_xml)
        return edited

    def _settle_controllers(self) -> None:
        """Set the arm controllers' initial posture, which they prefer within the null space."""
        for robot in self._env.robots:
            joints = self._env.sim.data.qpos[robot._ref_joint_pos_indexes]
            for arm in robot.arms:
                controller = robot.composite_controller.part_controllers[arm]
                controller.update(force=True)
                controller.update_initial_joints(joints)

    # ------------------------------------------------------------------ observations

    def _observe(self) -> Obs:
        cache = self._env._obs_cache
        observables = self._env._observables.values()
        for _ in range(2):  # relative poses are computed from other observations in the cache
            for observable in observables:
                observable.update(timestep=0.0, obs_cache=cache, force=True)
        raw = self._env._get_observations()
        obs = {key: np.array(raw[key]) for key in raw if _is_kept(key, self._env)}
        if "object-state" in raw:
            obs["object"] = np.array(raw["object-state"])
        for camera in self.cameras:
            obs |= views.observe(self._env, camera)
        return self._select(obs)

    def _select(self, obs: Obs) -> Obs:
        if self._obs_keys is None:
            return obs
        missing = [key for key in self._obs_keys if key not in obs]
        if missing:
            raise no_observation(self.name, missing[0], obs)
        return {key: obs[key] for key in self._obs_keys}

    def render(
        self, *, height: int = 256, width: int = 256, camera_name: str | None = None
    ) -> Array:
        """Draw one frame of a camera of the scene (default agentview)."""
        if not self._kwargs["has_offscreen_renderer"]:
            raise EnvError(
                f"{self.name}: the environment was made without a renderer: make it with render=True"
            )
        camera = views.Camera(camera_name or DEFAULT_CAMERA, height, width)
        return views.observe(self._env, camera)[camera.keys[0]]

    def camera_info(self) -> dict[str, Any]:
        """Return intrinsics and pose of each observed camera: see :func:`imitate.envs.cameras.camera_info`."""
        return {camera.name: views.camera_info(self._env, camera) for camera in self.cameras}

    def planned_paths(
        self, actions: Array, *, height: int, width: int, camera_name: str | None = None
    ) -> list[Array]:
        """Predict each hand's path in a camera's image under actions (K, A) that are not executed.

        Returns:
            For each gripper an array (K + 1, 2) of pixels x, y, beginning with the current position; NaN behind the
            camera. The list is empty without OSC controllers.
        """
        camera = views.Camera(camera_name or DEFAULT_CAMERA, height, width)
        paths = planned_paths(self._env, np.asarray(actions, dtype=np.float64))
        return [views.project(self._env, camera, path) for path in paths]

    # ------------------------------------------------------------------ the rest

    @property
    def base_env(self) -> Any:
        """Environment of robosuite itself, under robomimic's attribute name."""
        return self._env

    def serialize(self) -> dict[str, Any]:
        """Return the environment in the form of robomimic's ``env_args``."""
        return {
            "env_name": self.name,
            "env_version": self._version,
            "type": ENV_TYPE,
            "env_kwargs": copy.deepcopy(self._kwargs),
        }

    def close(self) -> None:
        """Free the simulator and its OpenGL context."""
        self._freed()
        free_simulator(self._env)
        self._env.close()
        return_freed_memory()


def _free(env: Any) -> None:
    with suppress(Exception):
        views.free_renderer(env)


def _is_kept(key: str, env: Any) -> bool:
    """Return True for an observation of a robot and for ``object``, the concatenated observations of objects."""
    prefixes = tuple(robot.robot_model.naming_prefix for robot in env.robots)
    return key.startswith(prefixes) and not key.endswith("proprio-state")


def _scene_xml(env: Any) -> str:
    """Return the scene in MJCF with all digits (MuJoCo writes six), and with the bodies where the reset placed them."""
    root = ElementTree.fromstring(env.model.get_xml())
    model = env.sim.model
    for body in root.iter("body"):
        if "name" not in body.attrib:
            continue
        index = model.body_name2id(body.attrib["name"])
        written = np.array(body.get("pos", "0 0 0").split(), dtype=np.float64)
        if np.abs(model.body_pos[index] - written).max() > 1e-9:
            for rotation in ("axisangle", "euler", "xyaxes", "zaxis"):
                body.attrib.pop(rotation, None)
            body.set("pos", " ".join(repr(float(value)) for value in model.body_pos[index]))
            body.set("quat", " ".join(repr(float(value)) for value in model.body_quat[index]))
    return ElementTree.tostring(root, encoding="unicode")
