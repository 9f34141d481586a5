"""Common code of the scripted experts: observations, motion of the gripper, and variation of the style.

An expert is a function of the current observation alone, and of a style that is fixed for an episode. There are no
phase counters and no timed waits: the gripper's position and opening determine the phase. So a policy that imitates
such demonstrations observes everything on which the expert's action depends, and an expert that is pushed off its path
continues with the phase that fits the new state.

Actions have the form of robosuite's default Panda controller: (dx, dy, dz, rotation vector, gripper), each in [-1, 1];
1 commands 5 cm or 0.5 rad beyond the current pose, and gripper 1 closes and -1 opens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from imitate.envs.env import Array, Obs
from imitate.errors import EnvError, nearest
from imitate.system.extras import installed_points

Indices = NDArray[np.int64]
METRES_PER_ACTION = 0.05
RADIANS_PER_ACTION = 0.5
OPEN, CLOSE = -1.0, 1.0
QUALITIES = ("better", "okay", "worse", "noise")

_POSITION_GAIN = 1.5  # gain from distance to command; a step covers about a third of the distance
_ROTATION_GAIN = 1.0


@dataclass(frozen=True)
class Style:
    """Style of a demonstrator in one episode.

    Attributes:
        speed: largest commanded translation, in (0, 1].
        hover_m: height above the object at which it is approached.
        grasp_offset_m: (3,) grasp point relative to the object's centre.
        detour_m: (2,) sideways bend of the approach, fading out near the object.
        hesitation: probability per step of a short stop.
        margin_m: distance to keep from the edges of the area where an object is put down.
    """

    speed: float
    hover_m: float
    grasp_offset_m: Array
    detour_m: Array
    hesitation: float = 0.0
    margin_m: float = 0.0

    @classmethod
    def sample(cls, rng: np.random.Generator, quality: str = "better") -> Style:
        """Draw the style of a demonstrator of one of ``QUALITIES``."""
        level = QUALITIES.index(quality)
        slowest, fastest = ((0.5, 0.8), (0.35, 0.55), (0.4, 0.8), (0.5, 0.8))[level]
        offset = (0.003, 0.006, 0.008, 0.003)[level]
        detour = (0.01, 0.08, 0.03, 0.01)[level]
        return cls(
            speed=rng.uniform(slowest, fastest),
            hover_m=rng.uniform(0.06, 0.09),
            grasp_offset_m=rng.uniform(-offset, offset, 3),
            detour_m=rng.uniform(-detour, detour, 2),
            hesitation=(0.0, 0.02, 0.01, 0.0)[level],
        )


@dataclass(frozen=True)
class ExpertLayout:
    """Layout of an action: for each arm a motion (6,) and, if it has a gripper, the gripper's command.

    Attributes:
        arms: number of arms.
        grippers: true if the arms have grippers.
    """

    arms: int = 1
    grippers: bool = True

    @property
    def arm_size(self) -> int:
        """Number of values per arm."""
        return 7 if self.grippers else 6

    @property
    def motion(self) -> Indices:
        """(arms, 6) indices of translations and rotations."""
        return self.arm_size * np.arange(self.arms)[:, None] + np.arange(6)

    @property
    def gripper(self) -> Indices:
        """(arms,) indices of gripper commands; (0,) without grippers."""
        return self.arm_size * np.arange(self.arms if self.grippers else 0) + 6


class Expert(ABC):
    """Scripted expert of one task.

    Attributes:
        env_name: name of the robosuite task.
        layout: layout of the actions.
        horizon: control steps after which an attempt counts as failed, for the slowest demonstrator.
        pace: factor by which the style's speed is multiplied.
        slack_m: sideways distance from the object within which the gripper descends to the object.
        steepness: height of the gripper above the object per sideways distance beyond ``slack_m``.
        carry_steps: approximate number of steps with the object in the hand.
        clearance_m: height above the grasp at which the fingers miss the object, or None if missed grasps do not occur.
        motion_axes, instruction, env_kwargs, dense_kwargs, acts_as_person: see :class:`ExpertKind`.
    """

    env_name: ClassVar[str]
    layout: ClassVar[ExpertLayout] = ExpertLayout()
    horizon: ClassVar[int]
    motion_axes: ClassVar[int] = 6
    instruction: ClassVar[str | None] = None
    env_kwargs: ClassVar[Mapping[str, Any]] = {}
    dense_kwargs: ClassVar[Mapping[str, Any] | None] = {"reward_shaping": True}
    acts_as_person: ClassVar[bool] = True
    pace: ClassVar[float] = 1.0
    slack_m: ClassVar[float] = 0.01
    steepness: ClassVar[float] = 2.0
    carry_steps: ClassVar[int] = 12
    clearance_m: ClassVar[float | None] = 0.05

    def __init__(self, style: Style) -> None:
        self.style = style

    @abstractmethod
    def act(self, obs: Obs) -> Array:
        """Return the action (A,), in the form of ``layout``, for an observation."""

    def move(
        self,
        obs: Obs,
        displacement: Array,
        gripper: float,
        *,
        yaw: float = 0.0,
        posture: Array | None = None,
    ) -> Array:
        """Return the action that moves the gripper towards a point ``displacement`` (3,) metres away.

        Args:
            obs: the observation.
            displacement: vector from the gripper to the target, in the world's axes.
            gripper: ``OPEN`` or ``CLOSE``.
            yaw: target turn about the vertical axis of a gripper that points down, rad; 0 is the posture of the
                initial state.
            posture: target orientation in place of ``yaw``, as a quaternion (x, y, z, w).
        """
        command = _POSITION_GAIN / METRES_PER_ACTION * np.asarray(displacement)
        command = self.limited(command, min(1.0, self.style.speed * self.pace))
        wanted = gripper_down(yaw) if posture is None else posture
        turn = rotation_error(wanted, obs["robot0_eef_quat"])
        rotation = np.clip(_ROTATION_GAIN / RADIANS_PER_ACTION * turn, -1.0, 1.0)
        return np.concatenate([command, rotation, [gripper]])

    def limited(self, command: Array, limit: float) -> Array:
        """Return a translation (3,), shortened to the length ``limit`` without changing the direction."""
        return command / max(1.0, float(np.linalg.norm(command)) / limit)

    def approach(
        self, obs: Obs, to_object: Array, *, yaw: float = 0.0, posture: Array | None = None
    ) -> Array:
        """Return the action that descends to an object; the gripper stays higher the farther it is to the side."""
        sideways = float(np.linalg.norm(to_object[:2]))
        height = float(np.clip(self.steepness * (sideways - self.slack_m), 0.0, self.style.hover_m))
        bend = self.style.detour_m * min(1.0, max(0.0, sideways - 0.03) / 0.05)
        target = to_object + np.array([*bend, height])
        return self.move(obs, target, OPEN, yaw=yaw, posture=posture)


def opening(obs: Obs, arm: int = 0) -> float:
    """Return the distance between an arm's fingers, in m: 0 closed, 0.08 open."""
    left, right = obs[f"robot{arm}_gripper_qpos"]
    return float(left - right)


def gripper_down(yaw: float) -> Array:
    """Return the quaternion (x, y, z, w) of a gripper that points down, turned by ``yaw`` about the vertical axis."""
    return np.array([math.cos(yaw / 2), math.sin(yaw / 2), 0.0, 0.0])


def tilted(quat: Array, rotation: Array) -> Array:
    """Return the orientation ``quat`` (x, y, z, w), turned by a rotation vector (3,) in the world's axes."""
    angle = float(np.linalg.norm(rotation))
    half_sine = 0.5 * np.sinc(angle / (2 * math.pi))  # sin(angle / 2) / angle, valid at 0, too
    return quat_product(np.array([*(half_sine * rotation), math.cos(angle / 2)]), quat)


def yaw_of(quat: Array) -> float:
    """Return the angle about the vertical axis of a quaternion (x, y, z, w), in (-pi, pi]."""
    x, y, z, w = quat
    return math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def gripper_yaw(obs: Obs) -> float:
    """Return the yaw, in rad, of a gripper that points down; the inverse of ``gripper_down``."""
    x, y = obs["robot0_eef_quat"][:2]
    return 2.0 * math.atan2(y, x)


def nearest_turn(angle: float, period: float, near: float = 0.0) -> float:
    """Return the angle nearest to ``near`` that differs from ``angle`` by a multiple of ``period``, all in rad."""
    return near + (angle - near + period / 2) % period - period / 2


def square_yaw(quat: Array, near: float = 0.0) -> float:
    """Return the yaw at which the fingers meet flat sides of a box with this orientation, nearest to ``near``."""
    return nearest_turn(yaw_of(quat), math.pi / 2, near)


def quat_product(second: Array, first: Array) -> Array:
    """Return the rotation ``first`` followed by ``second``, all quaternions (x, y, z, w)."""
    ax, ay, az, aw = first
    bx, by, bz, bw = second
    return np.array(
        [
            bw * ax + bx * aw + by * az - bz * ay,
            bw * ay - bx * az + by * aw + bz * ax,
            bw * az + bx * ay - by * ax + bz * aw,
            bw * aw - bx * ax - by * ay - bz * az,
        ]
    )


def rotation_error(wanted: Array, actual: Array) -> Array:
    """Return the rotation vector (3,) in the world's axes that turns ``actual`` into ``wanted``, both (x, y, z, w)."""
    *product, real = quat_product(wanted, np.asarray(actual) * [-1.0, -1.0, -1.0, 1.0])
    vector = np.array(product)
    if real < 0:  # both signs of a quaternion are the same rotation; choose the smaller turn
        vector, real = -vector, -real
    length = float(np.linalg.norm(vector))
    if length < 1e-9:
        return 2.0 * vector
    return vector * (2.0 * math.atan2(length, real) / length)


def rotated(quat: Array, vector: Array) -> Array:
    """Return a vector (3,) turned by a quaternion (x, y, z, w)."""
    xyz, w = quat[:3], quat[3]
    found: Array = vector + 2.0 * np.cross(xyz, np.cross(xyz, vector) + w * vector)
    return found


def turned(vectors: Array, yaw: float) -> Array:
    """Return vectors (..., 3) turned about the vertical axis by ``yaw``, in rad."""
    cos, sin = math.cos(yaw), math.sin(yaw)
    rotation = np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]])
    found: Array = np.asarray(vectors) @ rotation
    return found


GROUP = "imitate.experts"
_BUILT_IN = {
    "gym_aloha": "imitate.envs.experts.aloha:expert_of",
    "gymnasium_robotics": "imitate.envs.experts.fetch:expert_of",
    "metaworld": "imitate.envs.experts.metaworld:expert_of",
    "ogbench": "imitate.envs.experts.ogbench:expert_of",
}


class EpisodeExpert(Protocol):
    """Interface of an expert for one episode."""

    def act(self, obs: Obs) -> Array:
        """Return the action (A,) for an observation."""


class ExpertKind(Protocol):
    """Interface of a task's expert: a class or another callable that makes an expert for each episode.

    Attributes:
        env_name: the environment's full name.
        horizon: control steps after which an attempt counts as failed.
        motion_axes: number of leading values of an action that are motions in [-1, 1], to which noise is added; 0 if
            none.
        instruction: the task in words, recorded as the demonstrations' language, or None.
        env_kwargs: arguments of the environment that the expert needs for its observations.
        dense_kwargs: arguments of the environment for shaped rewards, or None if it has none.
        acts_as_person: true if ``--quality mixed`` and ``--human-like`` support it.

    An expert may also have ``plays``, true if it pursues aims of its own: success then does not end an episode, and
    episodes without success are kept. Its :class:`EpisodeExpert` has ``attach(env)``, which is called before the reset.
    """

    @property
    def env_name(self) -> str: ...  # noqa: D102 - see the class
    @property
    def horizon(self) -> int: ...  # noqa: D102
    @property
    def motion_axes(self) -> int: ...  # noqa: D102
    @property
    def instruction(self) -> str | None: ...  # noqa: D102
    @property
    def env_kwargs(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def dense_kwargs(self) -> Mapping[str, Any] | None: ...  # noqa: D102
    @property
    def acts_as_person(self) -> bool: ...  # noqa: D102

    def __call__(self, style: Style) -> EpisodeExpert:
        """Return an expert for an episode."""


def expert_of_package(env_name: str, others: Mapping[str, Any]) -> ExpertKind:
    """Return the expert of an environment ``module:Name``.

    Args:
        env_name: full name of the environment.
        others: names of tasks with experts, for the error message.

    Raises:
        EnvError: there is no expert, or it cannot be loaded.
    """
    module = env_name.rpartition(":")[0]
    points = {name: EntryPoint(name, place, GROUP) for name, place in _BUILT_IN.items()}
    points |= {point.name: point for point in installed_points(GROUP)}
    if module not in points:
        known = [*others, *(f"{name}:" for name in points)]
        raise EnvError(
            f"there is no scripted expert for '{env_name}'; {nearest(env_name, known)} "
            f"(add your own by an entry point '{module or 'your_package'}' in the group {GROUP}, see "
            "docs/environments.md)"
        )
    point = points[module]
    try:
        find: Callable[[str], ExpertKind] = point.load()
        if not callable(find):
            raise ImportError("the entry point is not a function")
    except (ImportError, AttributeError) as error:
        raise EnvError(
            f"{env_name}: the expert is registered as {point.value}, which cannot be loaded ({error}): repair or "
            "reinstall that package"
        ) from error
    return find(env_name)
