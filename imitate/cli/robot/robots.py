"""Robots and devices of the command line: ``--robot``, ``--robot-arg``, ``--limits``; Ctrl-C while one is connected."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from imitate.cli.options import FAILED
from imitate.errors import UserError, nearest
from imitate.system.missing import no_such
from imitate.system.plain_files import read_json
from imitate.system.processes import handled, in_main_thread, take_back

if TYPE_CHECKING:
    from imitate.deploy.robot.limits import ActionLimits
    from imitate.deploy.robot.loop import ControlStep, Safety
    from imitate.deploy.robot.robot import Robot, Teleoperator


Made = TypeVar("Made")
SIMULATED = "sim"

RobotArgs = Annotated[
    list[str] | None,
    typer.Option("--robot-arg", metavar="KEY=VALUE", help="Option of the robot's class."),
]
RobotEnv = Annotated[
    str | None, typer.Option("--env", help="Environment of --robot sim, such as Lift.")
]
Limits = Annotated[
    Path | None,
    typer.Option(
        "--limits",
        help="JSON file with stricter limits, any of low, high, margin, step, speed, acceleration, jerk, "
        "from_measured, answer.",
    ),
]
AnyLimits = Annotated[
    bool,
    typer.Option("--any-limits", help="Allow --limits that exceed the robot's own limits."),
]
SafetyArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--safety",
        metavar="KEY=VALUE",
        help="Safety setting (when to hold and when to stop): a field of "
        "imitate.deploy.Safety, such as hold_s=2 or max_age_s=0.3.",
    ),
]
Slow = Annotated[
    float,
    typer.Option(
        "--slow", min=0.01, max=1.0, help="Factor that scales step, speed and acceleration."
    ),
]


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` pairs; values are JSON if they can be read as such, otherwise text.

    Raises:
        UserError: a pair has no ``=``.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"'{word}': expected key=value")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def robot_of(
    name: str,
    words: Sequence[str],
    *,
    env: str | None = None,
    own: Mapping[str, Any] | None = None,
    seen: Mapping[str, Sequence[int]] | None = None,
    rate_hz: float | None = None,
    limits: Path | None = None,
    any_limits: bool = False,
    check: Callable[[Robot], None] | None = None,
) -> Robot:
    """Connect and return the robot of ``--robot``.

    Args:
        name: ``sim``, the name of an entry point, or ``module:Class``.
        words: values of ``--robot-arg``.
        env: value of ``--env``, for ``sim``.
        own: env_args of the checkpoint, for ``sim``.
        seen: shape of each observation of the policy, which determines the cameras of ``sim``.
        rate_hz: control rate, for ``sim``.
        limits: JSON file of limits that replace those of the robot of the same name.
        any_limits: allow limits that are looser than the robot's own.
        check: called before the robot is connected; raises UserError if the robot does not fit.
    """
    from imitate.deploy.robot.driver import awaited
    from imitate.deploy.robot.robot import check_declared, make_robot
    from imitate.deploy.robot.watchdog import stop_robot
    from imitate.errors import RobotError
    from imitate.system.user_code import error_words

    options = options_of(words)
    robot: Robot
    if name == SIMULATED:
        from imitate.deploy.robot.simulated import SimulatedRobot
        from imitate.envs.cameras import sizes_of
        from imitate.evaluate.environments import named_env

        meta = named_env(env, own) if env is not None else dict(own or {})
        if not meta:
            raise UserError("--robot sim: no environment given: add --env, such as --env Lift")
        defaults = {"rate_hz": rate_hz, "cameras": sizes_of(seen or {})}
        robot = _made(name, partial(SimulatedRobot, meta), {**defaults, **options})
    elif env is not None:
        raise UserError("--env is only for --robot sim")
    else:
        with _kept_handlers():
            robot = make_robot(name, **options)
    if check is not None:
        check(robot)
    try:
        with _kept_handlers():
            awaited(robot.connect)
        check_declared(robot)
        if limits is not None:
            robot.limits = _limited(robot.limits, limits, any_limits)
    except BaseException as error:
        for release in (partial(stop_robot, robot), partial(awaited, robot.close)):
            with contextlib.suppress(
                Exception
            ):  # a robot that is partly connected may raise any error
                release()
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        words = str(error) if isinstance(error, RobotError) else error_words(error)
        raise UserError(f"the robot '{name}' cannot be connected: {words}") from error
    return robot


def _limited(own: ActionLimits, path: Path, any_limits: bool) -> ActionLimits:
    """Return the limits of a file, after comparing them with the robot's own."""
    limits = replace(own, **_limits_in(path))
    looser = [] if any_limits else limits.looser_than(own)
    if looser:
        raise UserError(
            f"--limits {path}: looser than the robot's own limits: {'; '.join(looser)}: use "
            "stricter ones, or allow any (--any-limits)"
        )
    return limits


def _limits_in(path: Path) -> dict[str, Any]:
    from imitate.deploy.robot.limits import ActionLimits

    try:
        read = read_json(path.expanduser())
    except FileNotFoundError:
        raise UserError(f"--limits {no_such(path)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"--limits {path}: cannot be read: {error}") from error
    known = [field.name for field in fields(ActionLimits)]
    if not isinstance(read, dict):
        raise UserError(f"--limits {path}: expected an object with {', '.join(known)}")
    for name in read:
        if name not in known:
            raise UserError(f"--limits {path}: unknown '{name}'; {nearest(name, known)}")
    return read


def recorded_name(name: str) -> str:
    """Return the robot's name for a file; for ``lerobot:so101_follower`` the type, as in LeRobot's datasets."""
    return name.removeprefix("lerobot:")


def safety_of(name: str, words: Sequence[str] = ()) -> Safety:
    """Return the safety settings of ``--robot`` and ``--safety``; repeated images of a still simulator are not a fault.

    Raises:
        UserError: a setting is unknown, or its value is invalid.
    """
    from imitate.deploy.robot.loop import Safety

    options = options_of(words)
    kinds = {field.name: type(field.default) for field in fields(Safety)}
    for key, value in options.items():
        if key not in kinds:
            raise UserError(f"--safety {key}: unknown; {nearest(key, kinds)}")
        fits = (int, float) if kinds[key] is float else kinds[key]
        if not isinstance(value, fits) or isinstance(value, bool):
            wanted = {int: "a whole number", float: "a number", str: "a word"}[kinds[key]]
            raise UserError(f"--safety {key}={value}: wanted {wanted}")
    usual = {"frozen": 0, "frozen_pose": 0} if name == SIMULATED else {}
    return Safety(**{**usual, **options})


def _made(name: str, maker: Callable[..., Made], options: Mapping[str, Any]) -> Made:
    """Make an object of a class; raise UserError for unknown options."""
    try:
        return maker(**options)
    except TypeError as error:
        raise UserError(f"'{name}' cannot be made: {error}") from error


def teleoperator_of(name: str, words: Sequence[str], robot: Robot) -> Teleoperator:
    """Connect and return the device of ``--take-over`` or ``--teleop``.

    Args:
        name: ``keyboard``, ``expert:TASK``, the name of an entry point, or ``module:Class``.
        words: ``key=value`` pairs of its options.
        robot: the connected robot.
    """
    from imitate.deploy.robot.driver import awaited
    from imitate.deploy.robot.robot import make_teleoperator
    from imitate.errors import RobotError

    device = make_teleoperator(name, **options_of(words))
    try:
        awaited(device.connect, robot)
    except RobotError as error:
        raise UserError(f"the device '{name}' cannot be connected: {error}") from error
    return device


def _ending() -> list[signal.Signals]:
    """Return the signals by which a person or a program ends a command; Windows has no SIGQUIT."""
    names = ("SIGINT", "SIGTERM", "SIGQUIT")
    return [signal.Signals[name] for name in names if hasattr(signal, name)]


def _kept_handlers() -> contextlib.AbstractContextManager[None]:
    """Restore the handlers of these signals after the block.

    Drivers such as ROS 1's take Ctrl-C for themselves, and the robot would move on.
    """
    return handled({number: signal.getsignal(number) for number in _ending()})


class Interrupts:
    """Signals that end a command.

    A signal raises KeyboardInterrupt at once, wherever the program is. In a finalizer or a callback of a library such
    as HDF5, Python drops the exception; therefore it is recorded, and :meth:`check` raises it again.
    """

    def __init__(self) -> None:
        self._pending: tuple[str, ...] | None = None
        self._handled: list[signal.Signals] = []

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has arrived, and take signals back that a driver has taken over."""
        if self._pending is not None:
            raise KeyboardInterrupt(*self._pending)
        for number in self._handled:
            take_back(number, self._note)

    def checked(
        self, on_step: Callable[[ControlStep], None] | None
    ) -> Callable[[ControlStep], None]:
        """Return a function for the control loop that checks for signals after each step and then calls ``on_step``."""

        def look(step: ControlStep) -> None:
            self.check()
            if on_step is not None:
                on_step(step)

        return look

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGQUIT in a block if nobody else does.

        Without a handler, the last two would leave the last command active.
        """
        usual = (signal.default_int_handler, signal.SIG_DFL)
        unhandled = [number for number in _ending() if signal.getsignal(number) in usual]
        with handled(dict.fromkeys(unhandled, self._note)):
            self._handled = unhandled if in_main_thread() else []
            yield

    def _note(self, number: int, frame: object) -> None:
        self._pending = () if number == signal.SIGINT else (f"by {signal.Signals(number).name}",)
        raise KeyboardInterrupt(*self._pending)


@contextlib.contextmanager
def released(robot: Robot) -> Iterator[Interrupts]:
    """Stop and release a connected robot at the end of the block, even after Ctrl-C while it resets itself.

    Yields the signals that arrive meanwhile.
    """
    from imitate.deploy.robot.driver import awaited
    from imitate.deploy.robot.watchdog import stop_robot
    from imitate.errors import RobotError

    interrupts = Interrupts()
    with interrupts.watched():
        try:
            yield interrupts
        except (
            RobotError
        ) as error:  # an error of a device, or of a call to the robot between two episodes
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(FAILED) from error
        except (UserError, typer.Exit):
            raise
        except (Exception, KeyboardInterrupt):
            interrupts.check()  # a library such as HDF5 may have replaced the signal's exception
            raise
        finally:
            try:
                try:
                    stop_robot(robot)
                finally:
                    awaited(robot.close)
            except RobotError as error:
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(FAILED) from error
