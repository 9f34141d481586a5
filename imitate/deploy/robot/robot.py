"""Interfaces of robots and teleoperation devices for the control loop, and their lookup by name.

Your own robot is a subclass of :class:`Robot` with four members:

    class MyArm(Robot):
        observation_shapes = {"joints": (7,), "wrist_image": (240, 320, 3)}
        limits = ActionLimits(low=-2.8, high=[2.8] * 7, speed=1.0)

        def observe(self):
            stamp = time.monotonic()
            return Observation({"joints": self.driver.joints(), "wrist_image": self.camera.read()}, stamp)

        def send(self, action):
            self.driver.set_targets(action)

        def stop(self):
            self.driver.halt()

A package registers it by an entry point of the group ``imitate.robots`` (or ``imitate.teleoperators``); the command
line also takes ``module:Class`` and ``path/to/file.py:Class``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.limits import ActionLimits
from imitate.errors import RobotError, UserError, nearest
from imitate.system.extras import installed_points
from imitate.system.trust import typed_object
from imitate.system.user_code import error_words

ROBOTS, TELEOPERATORS = "imitate.robots", "imitate.teleoperators"
"""Groups of entry points by which packages register robots and teleoperation devices."""
_BUILT_IN = {
    TELEOPERATORS: {
        "keyboard": "imitate.deploy.robot.keyboard:Keyboard",
        "gamepad": "imitate.deploy.robot.gamepad:Gamepad",
        "spacemouse": "imitate.deploy.robot.spacemouse:SpaceMouse",
        "lerobot": "imitate.deploy.robot.lerobot_teleoperator:LeRobotTeleoperator",
    },
    ROBOTS: {
        "sim": "imitate.deploy.robot.simulated:SimulatedRobot",
        "lerobot": "imitate.deploy.robot.lerobot_robot:LeRobotRobot",
    },
}
_WITH_TYPE = "lerobot"
"""Prefix of the names of LeRobot's devices, as in ``lerobot:so101_follower``."""
_LEROBOT_TYPES = frozenset(
    f"{arm}_{part}"
    for arm in ("so100", "so101", "koch", "omx", "openarm", "bi_so100", "bi_so101")
    for part in ("follower", "leader")
) | {"lekiwi", "stretch3", "reachy2", "unitree_g1", "viperx", "widowx", "hope_jr_arm"}
"""Types of LeRobot's devices that users may give without the prefix by mistake."""
_EXPERT = "imitate.deploy.robot.simulated:ExpertTeleoperator"


@dataclass(frozen=True)
class Observation:
    """Observation of a robot.

    Attributes:
        values: float arrays (D,), images (H, W, 3) uint8 red first; keys and units as in the demonstrations.
        stamp_s: ``time.monotonic()`` at which the oldest value was captured; None if unknown, so that the age is not
            checked.
    """

    values: Mapping[str, NDArray[Any]]
    stamp_s: float | None = None


class Robot(ABC):
    """A real or simulated robot that observes and executes actions at a fixed rate.

    The loop calls :meth:`observe`, :meth:`send` and :meth:`hold` from one thread, and :meth:`stop` from any thread,
    also while another call blocks.

    Attributes:
        observation_shapes: shape of each observation, known before connecting.
        limits: limits of the actions.
        rate_hz: rate at which the robot needs its actions, or None for any rate.
        action_names: names of the action dimensions, if the robot has names; devices use this order.
        observation_names: names of the dimensions of observations, by key.
        camera_hz: images per second of the slowest camera, which may be older than other observations, or None if
            unknown.
        in_step: true if time stops between two actions, as in a simulator for tests; never for a real robot.
    """

    observation_shapes: Mapping[str, tuple[int, ...]]
    limits: ActionLimits
    rate_hz: float | None = None
    action_names: tuple[str, ...] | None = None
    observation_names: Mapping[str, tuple[str, ...]] = {}
    camera_hz: float | None = None
    in_step: bool = False

    @abstractmethod
    def observe(self) -> Observation:
        """Return the newest observation. It should return within a control step."""

    @abstractmethod
    def send(self, action: NDArray[np.float64]) -> None:
        """Pass an action (A,) to the controller, and return at once."""

    @abstractmethod
    def stop(self) -> None:
        """Bring the robot to rest and keep it there. Called from any thread, also repeatedly and before connecting."""

    def hold(self) -> None:
        """Keep the current pose for a control step without an action. By default this calls :meth:`stop`.

        Sending nothing is not enough: velocity-controlled robots would keep moving.
        """
        self.stop()

    def pose(self, observation: Observation) -> NDArray[np.float64] | None:
        """Return the action (A,) that keeps the robot at the observed pose.

        For a robot with joint targets these are joint angles, for a robot with relative actions zeros. The limits on
        the first action and on the distance from the measured pose need it; None disables both.
        """
        return None

    def reset(self) -> Observation | None:
        """Reset robot and scene for an episode and return the observation; return None if a person must do it."""
        return None

    def reset_to(self, start: int) -> Observation | None:
        """Reset robot and scene to the initial state with the number ``start``; the same number gives the same state.

        Returns the observation, or None if a person must restore the scene. By default this calls :meth:`reset`.
        """
        return self.reset()

    def success(self) -> bool | None:
        """Return True if the task is solved, or None if the robot does not measure it and a person decides."""
        return None

    def ended(self) -> bool:
        """Return True if the robot detects that the episode cannot continue, as when the object is out of reach."""
        return False

    def reward(self) -> float | None:
        """Return the sum of the rewards since the last call, or None if the robot measures none."""
        return None

    def connect(self) -> None:  # noqa: B027 - a hook, empty by default
        """Open the robot's devices. Called once, before all other methods."""

    def close(self) -> None:  # noqa: B027 - a hook, empty by default
        """Release the robot's devices. Called once, after :meth:`stop`."""


@dataclass(frozen=True)
class Guidance:
    """Input of a person at a teleoperation device in one control step.

    Attributes:
        action: (A,) the person's action, or None to let the policy act.
        events: names of keys or buttons pressed since the last step: ``success``, ``failure``, ``discard``, ``redo``,
            ``end``, ``quit``, ``pause`` ...
    """

    action: NDArray[np.float64] | None = None
    events: frozenset[str] = field(default_factory=frozenset)


class Teleoperator(ABC):
    """Teleoperation device with which a person moves a robot."""

    def connect(self, robot: Robot) -> None:  # noqa: B027 - a hook, empty by default
        """Open the device, to move a robot that is already connected."""

    def start_episode(self) -> None:  # noqa: B027 - a hook, empty by default
        """Begin a new episode. Called at the beginning of each episode."""

    @abstractmethod
    def guide(self, observation: Observation) -> Guidance:
        """Return the person's action and events in this control step, without waiting."""

    def follow(self, action: NDArray[np.float64]) -> None:  # noqa: B027 - a hook, empty by default
        """Follow the action that was sent, from any source: a device with motors moves along with the robot."""

    def close(self) -> None:  # noqa: B027 - a hook, empty by default
        """Release the device."""


def make_robot(name: str, **options: Any) -> Robot:
    """Create the robot of this name, without connecting it.

    Args:
        name: name of an entry point in the group ``imitate.robots``, ``module:Class``, ``path/to/file.py:Class``, or
            ``lerobot:TYPE``.
        options: arguments of the robot's class.

    Raises:
        UserError: there is no such robot, it cannot be imported, or it does not accept the options.
    """
    made = _made(ROBOTS, "robot", name, options)
    if isinstance(made, Robot):
        return made
    raise UserError(
        f"'{name}' is a {type(made).__name__}, but must be a subclass of imitate.deploy.Robot"
    )


def make_teleoperator(name: str, **options: Any) -> Teleoperator:
    """Create the teleoperation device of this name, without connecting it.

    See :func:`make_robot`; ``expert:TASK`` is a scripted expert.
    """
    kind, _, task = name.partition(":")
    if kind == "expert":
        options = {"task": task, **options}
    made = _made(TELEOPERATORS, "teleoperator", name, options)
    if isinstance(made, Teleoperator):
        return made
    raise UserError(
        f"'{name}' is a {type(made).__name__}, but must be a subclass of imitate.deploy.Teleoperator"
    )


def names_of(group: str) -> dict[str, str]:
    """Return the import paths of the robots or devices of a group by name, including those of other packages."""
    return {**_BUILT_IN[group], **{p.name: p.value for p in sorted(installed_points(group))}}


def check_named(group: str, name: str | None) -> None:
    """Check that a robot or device with this name may exist, without importing it; None is allowed.

    Raises:
        UserError: the name is neither registered nor of the form ``module:Class``.
    """
    installed, word = names_of(group), group.rpartition(".")[2].removesuffix("s")
    if name is None or name in installed or ":" in name:
        return
    typed = f"{_WITH_TYPE}:{name}"
    near = f"did you mean '{typed}'?" if name in _LEROBOT_TYPES else nearest(name, installed)
    raise UserError(
        f"there is no {word} '{name}' (name your own as module:Class, file.py:Class, or by an entry point in the "
        f"group {group}); {near}"
    )


def _made(group: str, word: str, name: str, options: Mapping[str, Any]) -> Any:
    """Create an object of the class named by an entry point or ``module:Class``."""
    installed = names_of(group)
    kind, _, variant = name.partition(":")
    if kind == _WITH_TYPE and variant:
        name, options = kind, {"type": variant, **options}
    place = installed.get(name, name)
    if group == TELEOPERATORS and name.startswith("expert:"):
        place = _EXPERT
    check_named(group, name)
    try:
        maker = typed_object(place)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise UserError(f"the {word} '{name}' ({place}) cannot be imported: {error}") from error
    try:
        return maker(**options)
    except (RobotError, UserError):
        raise
    except (Exception, SystemExit) as error:  # a driver may raise any error
        words = str(error) if isinstance(error, TypeError) else error_words(error)
        raise UserError(f"the {word} '{name}' ({place}) cannot be made: {words}") from error


def check_declared(robot: Robot) -> None:
    """Check the attributes of a connected robot before they are used.

    Raises:
        UserError: an attribute does not fit the description in :class:`Robot`.
    """
    kind = type(robot).__name__
    limits = getattr(robot, "limits", None)
    if not isinstance(limits, ActionLimits):
        raise UserError(f"{kind}.limits is {limits!r:.80}; wanted ActionLimits(low=..., high=...)")
    for name in ("rate_hz", "camera_hz"):
        _check_rate(f"{kind}.{name}", getattr(robot, name, None))
    shapes = getattr(robot, "observation_shapes", None)
    if not isinstance(shapes, Mapping) or not all(map(_is_shape, shapes.values())):
        raise UserError(
            f"{kind}.observation_shapes is {shapes!r:.200}; wanted a shape for each observation, such as "
            '{"joints": (6,), "front_image": (240, 320, 3)}'
        )
    if robot.action_names is not None:
        _check_names(f"{kind}.action_names", robot.action_names, limits.size, "an action")
    for key, names in robot.observation_names.items():
        size = math.prod(shapes[key]) if key in shapes else None
        _check_names(f"{kind}.observation_names['{key}']", names, size, f"'{key}'")


def _check_rate(name: str, rate: Any) -> None:
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and math.isfinite(rate) and rate > 0):
        raise UserError(f"{name} is {rate!r}; wanted a number above 0, or None for any rate")


def _check_names(name: str, names: Sequence[str], size: int | None, of: str) -> None:
    if isinstance(names, str) or not all(isinstance(word, str) for word in names):
        raise UserError(f"{name} is {names!r:.200}; wanted a tuple of names")
    if size is not None and len(names) != size:
        raise UserError(
            f"{name} has {len(names)} names ({', '.join(names)}), but {of} has {size} "
            "numbers: wanted one for each"
        )


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple | list) and all(isinstance(size, int) for size in shape)
