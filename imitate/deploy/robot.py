"""Robots and teleoperation devices, as the control loop needs them, found by name through entry points.

A robot of one's own is a subclass of :class:`Robot` with four members:

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

A package makes it known by an entry point of the group ``imitate.robots`` (or ``imitate.teleoperators``); the command
line also takes ``module:Class`` and ``path/to/file.py:Class``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.config.plugins import installed_points
from imitate.deploy.limits import ActionLimits
from imitate.envs.trust import typed_object
from imitate.errors import RobotError, UserError, nearest

ROBOTS, TELEOPERATORS = "imitate.robots", "imitate.teleoperators"
"""Groups of entry points."""
_BUILT_IN = {
    TELEOPERATORS: {
        "keyboard": "imitate.deploy.keyboard:Keyboard",
        "gamepad": "imitate.deploy.gamepad:Gamepad",
        "spacemouse": "imitate.deploy.spacemouse:SpaceMouse",
        "lerobot": "imitate.deploy.lerobot_teleoperator:LeRobotTeleoperator",
    },
    ROBOTS: {
        "sim": "imitate.deploy.simulated:SimulatedRobot",
        "lerobot": "imitate.deploy.lerobot_robot:LeRobotRobot",
    },
}
_WITH_TYPE = "lerobot"
"""The name that may be followed by a type: ``lerobot:so101_follower``."""
_EXPERT = "imitate.deploy.simulated:ExpertTeleoperator"


@dataclass(frozen=True)
class Observation:
    """Observation of a robot.

    Attributes:
        values: float arrays (D,), images (H, W, 3) uint8 red first; keys and units as in the demonstrations.
        stamp_s: ``time.monotonic()`` when the oldest part was captured; None where the driver does not know, then
            freshness is not checked.
    """

    values: Mapping[str, NDArray[Any]]
    stamp_s: float | None = None


class Robot(ABC):
    """A robot, a simulated robot, or anything else that observes and takes actions at a fixed rate.

    The loop calls :meth:`observe`, :meth:`send` and :meth:`hold` from one thread, and :meth:`stop` from any thread,
    also while another call blocks.

    Attributes:
        observation_shapes: shape of each observation, known before connecting.
        limits: limits of the actions.
        rate_hz: rate at which the robot wants its actions; None: any.
        action_names: names of the numbers of an action, where the robot has them; devices put theirs in this order.
        observation_names: the same of observations, by key.
        camera_hz: images per second of the slowest camera, which may be older than other observations; None: not known.
        in_step: its time stands still between two actions, as that of a simulator in tests; no robot's does.
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
        """The newest observation. Should return within a control step."""

    @abstractmethod
    def send(self, action: NDArray[np.float64]) -> None:
        """Hand an action (A,) to the controller, and return at once."""

    @abstractmethod
    def stop(self) -> None:
        """Bring the robot to rest and keep it there. Works from any thread, more than once, and before connecting."""

    def hold(self) -> None:
        """Keep the present pose for a control step in which there is no action. By default as :meth:`stop`.

        To send nothing is not to hold: robots that are driven by speeds go on.
        """
        self.stop()

    def pose(self, observation: Observation) -> NDArray[np.float64] | None:
        """The action (A,) that keeps the robot where the observation saw it.

        Joint angles for a robot that takes joint angles, zeros for one that takes changes. With it the first action and
        the distance from the measured pose are limited; None: they are not.
        """
        return None

    def reset(self) -> Observation | None:
        """Bring robot and scene to the beginning of an episode, where the robot can; None: a person does it."""
        return None

    def reset_to(self, start: int) -> Observation | None:
        """Bring robot and scene to the beginning with a number, the same for the same number, where the robot can.

        By default :meth:`reset`: a person puts the scene as it was.
        """
        return self.reset()

    def success(self) -> bool | None:
        """Return True if the task is solved, where the robot can tell; None: a person says it."""
        return None

    def ended(self) -> bool:
        """Return True if the episode cannot go on, such as with the object out of reach, where the robot can tell."""
        return False

    def reward(self) -> float | None:
        """Sum of the rewards since the last call, where the robot measures one; None: it does not."""
        return None

    def connect(self) -> None:  # noqa: B027 - a hook, empty by default
        """Open the devices. Called once, before anything else."""

    def close(self) -> None:  # noqa: B027 - a hook, empty by default
        """Let go of the devices. Called once, after :meth:`stop`."""


@dataclass(frozen=True)
class Guidance:
    """Input of a person at a teleoperation device in one control step.

    Attributes:
        action: (A,) the person's action; None: the person lets the policy act.
        events: names of keys or buttons pressed since the last step: ``success``, ``failure``, ``discard``, ``redo``,
            ``end``, ``quit``, ``pause`` ...
    """

    action: NDArray[np.float64] | None = None
    events: frozenset[str] = field(default_factory=frozenset)


class Teleoperator(ABC):
    """A device by which a person moves a robot."""

    def connect(self, robot: Robot) -> None:  # noqa: B027 - a hook, empty by default
        """Open the device for a robot that is connected."""

    def start_episode(self) -> None:  # noqa: B027 - a hook, empty by default
        """Forget the last episode. Called at the beginning of each one."""

    @abstractmethod
    def guide(self, observation: Observation) -> Guidance:
        """The person's wish in this control step. Returns at once."""

    def follow(self, action: NDArray[np.float64]) -> None:  # noqa: B027 - a hook, empty by default
        """Take note of the action that was sent by whomever: a device with motors follows, for a smooth hand-over."""

    def close(self) -> None:  # noqa: B027 - a hook, empty by default
        """Let go of the device."""


def make_robot(name: str, **options: Any) -> Robot:
    """The robot of a name, not connected.

    Args:
        name: of an entry point in the group ``imitate.robots``, ``module:Class``, ``path/to/file.py:Class``, or
            ``lerobot:TYPE``.
        options: handed to the class.

    Raises:
        UserError: there is no such robot, it cannot be imported, or it does not take the options.
    """
    made = _made(ROBOTS, "robot", name, options)
    if isinstance(made, Robot):
        return made
    raise UserError(
        f"'{name}' makes a {type(made).__name__}; wanted a subclass of imitate.deploy.Robot"
    )


def make_teleoperator(name: str, **options: Any) -> Teleoperator:
    """The teleoperation device of a name, not connected; see :func:`make_robot`. ``expert:TASK``: a scripted expert."""
    kind, _, task = name.partition(":")
    if kind == "expert":
        options = {"task": task, **options}
    made = _made(TELEOPERATORS, "teleoperator", name, options)
    if isinstance(made, Teleoperator):
        return made
    raise UserError(
        f"'{name}' makes a {type(made).__name__}; wanted a subclass of imitate.deploy.Teleoperator"
    )


def names_of(group: str) -> dict[str, str]:
    """Names of a group, those of other packages too, and the places that they stand for."""
    return {**_BUILT_IN[group], **{p.name: p.value for p in sorted(installed_points(group))}}


def _made(group: str, word: str, name: str, options: Mapping[str, Any]) -> Any:
    """Make an object of the class that an entry point or ``module:Class`` names."""
    installed = names_of(group)
    kind, _, variant = name.partition(":")
    if kind == _WITH_TYPE and variant:
        name, options = kind, {"type": variant, **options}
    place = installed.get(name, name)
    if group == TELEOPERATORS and name.startswith("expert:"):
        place = _EXPERT
    if name not in installed and ":" not in name:
        raise UserError(
            f"there is no {word} '{name}' (one of your own: module:Class, file.py:Class, or an entry point in the "
            f"group {group}); {nearest(name, installed)}"
        )
    try:
        maker = typed_object(place)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise UserError(f"the {word} '{name}' ({place}) cannot be imported: {error}") from error
    try:
        return maker(**options)
    except (RobotError, UserError):
        raise
    except (Exception, SystemExit) as error:  # a driver may raise anything
        words = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise UserError(f"the {word} '{name}' ({place}) cannot be made: {words}") from error
