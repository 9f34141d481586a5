"""Make the robots and devices named on the command line, and release them at the end or after Ctrl-C."""

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
    typer.Option(
        "--robot-arg",
        metavar="KEY=VALUE",
        help="Argument for the robot's class, such as port=/dev/ttyUSB0; may be repeated.",
    ),
]
RobotEnv = Annotated[
    str | None, typer.Option("--env", help="Environment of --robot sim, such as Lift.")
]
Limits = Annotated[
    Path | None,
    typer.Option(
        "--limits",
        help="JSON file with stricter action limits: an object with any fields of imitate.deploy.ActionLimits (low, "
        "high, margin, step, speed, acceleration, jerk, from_measured, answer).",
    ),
]
AnyLimits = Annotated[
    bool,
    typer.Option(
        "--any-limits", help="Allow a file of --limits that exceeds the robot's own limits."
    ),
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
        "--slow",
        min=0.01,
        max=1.0,
        help="Factor up to 1 by which the limits of step, speed and acceleration are "
        "multiplied, so that the robot moves more slowly.",
    ),
]


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` pairs; values that are not valid JSON are kept as text.

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
        env: value of ``--env``, which only ``sim`` takes.
        own: env_args of the checkpoint, for ``sim``.
        seen: shape of each observation of the policy, which determines the cameras of ``sim``.
        rate_hz: control rate of ``sim`` in Hz.
        limits: JSON file of action limits, each of which replaces the robot's own limit of the same name.
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
        raise UserError("--env is only for --robot sim: leave --env out, or choose --robot sim")
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
            ):  # a robot that is only partly connected may raise any error here
                release()
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        words = str(error) if isinstance(error, RobotError) else error_words(error)
        raise UserError(f"the robot '{name}' cannot be connected: {words}") from error
    return robot


def _limited(own: ActionLimits, path: Path, any_limits: bool) -> ActionLimits:
    """Return the robot's limits, replaced by the limits in a file; raise UserError if one of these is looser."""
    limits = replace(own, **_limits_in(path))
    looser = [] if any_limits else limits.looser_than(own)
    if looser:
        raise UserError(
            f"--limits {path}: looser than the robot's own limits: {'; '.join(looser)}: give stricter limits, or "
            "allow these with --any-limits"
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
        raise UserError(f"--limits {path}: expected a JSON object with any of {', '.join(known)}")
    for name in read:
        if name not in known:
            raise UserError(f"--limits {path}: unknown '{name}'; {nearest(name, known)}")
    return read


def recorded_name(name: str) -> str:
    """Return the name of the robot that a file stores: ``so101_follower`` for ``lerobot:so101_follower``."""
    return name.removeprefix("lerobot:")


def safety_of(name: str, words: Sequence[str] = ()) -> Safety:
    """Return the safety settings of ``--safety``.

    In a simulator the checks for frozen images and poses are off by default, because nothing changes there while the
    robot is still.

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
    """Call ``maker`` with options; raise UserError if it does not take one of them."""
    try:
        return maker(**options)
    except TypeError as error:
        raise UserError(
            f"'{name}' cannot be made with these options: {error}; correct --robot-arg"
        ) from error


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
    """Return the signals with which a person or a program ends a command; SIGQUIT is left out on Windows."""
    names = ("SIGINT", "SIGTERM", "SIGQUIT")
    return [signal.Signals[name] for name in names if hasattr(signal, name)]


def _kept_handlers() -> contextlib.AbstractContextManager[None]:
    """Restore the handlers of the signals of :func:`_ending` after the block.

    Drivers such as ROS 1's replace the handler of Ctrl-C, and the robot would then continue to move.
    """
    return handled({number: signal.getsignal(number) for number in _ending()})


class Interrupts:
    """Signals that end a command.

    A signal raises KeyboardInterrupt at once. In a finalizer or a callback of a library such as HDF5, Python drops the
    exception; therefore the signal is recorded, and :meth:`check` raises the exception again.
    """

    def __init__(self) -> None:
        self._pending: tuple[str, ...] | None = None
        self._handled: list[signal.Signals] = []

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has arrived, and restore handlers that a driver has replaced."""
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
        """Handle SIGINT, SIGTERM and SIGQUIT in the block, unless other handlers than Python's defaults are set.

        Without a handler, SIGTERM and SIGQUIT would end the program while the robot executes the last action.
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
    """Stop and release a connected robot at the end of the block, also if Ctrl-C arrives while the robot resets.

    Yields an :class:`Interrupts`, which records the signals that arrive in the block.
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
        ) as error:  # from a device, or from a call to the robot between two episodes
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
