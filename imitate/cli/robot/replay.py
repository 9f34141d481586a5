"""``imitate replay``: send recorded actions to a robot."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from imitate.cli.options import FAILED, ROBOT, AnyRate, AsJson
from imitate.cli.robot.robots import (
    AnyLimits,
    Limits,
    RobotArgs,
    RobotEnv,
    SafetyArgs,
    Slow,
    released,
)
from imitate.errors import UserError


class RecordedActions:
    """Policy that returns the actions of a demonstration one after the other and ignores observations.

    Args:
        actions: (T, A) recorded actions.
        rate_hz: rate at which they were recorded, or None if unknown.
        names: names of the dimensions of an action, if the file contains them.
    """

    def __init__(
        self, actions: NDArray[Any], rate_hz: float | None, names: Sequence[str] = ()
    ) -> None:
        self._actions, self._next = np.asarray(actions, dtype=np.float64), 0
        self.control_freq, self.number_names = rate_hz, {"actions": tuple(names)}

    def start_episode(self, lang: str | None = None) -> None:
        """Let the next call return the first action again."""
        self._next = 0

    def __call__(self, ob: Mapping[str, Any]) -> NDArray[np.float64] | None:
        """Return the next action, or None after the last one."""
        if self._next >= len(self._actions):
            return None
        self._next += 1
        action: NDArray[np.float64] = self._actions[self._next - 1]
        return action


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="HDF5 file of demonstrations.")],
    robot: Annotated[
        str,
        ROBOT,
    ],
    robot_arg: RobotArgs = None,
    env: RobotEnv = None,
    demo: Annotated[
        str | None, typer.Option("--demo", help="Name of the demo to replay; default: the first.")
    ] = None,
    rate_hz: Annotated[
        float | None,
        typer.Option(
            "--rate-hz", min=0.01, help="Control rate in Hz; default: the rate in the file."
        ),
    ] = None,
    any_rate: AnyRate = False,
    limits: Limits = None,
    any_limits: AnyLimits = False,
    slow: Slow = 1.0,
    safety: SafetyArgs = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing.")] = False,
    json_: AsJson = False,
) -> None:
    """Send the actions of a demonstration to a robot, within its limits.

    Arrange the scene as it was at the beginning of the demo. If the robot does
    not repeat the recorded motion, its actions, rate or limits differ from the recording's: find the cause before
    training on the file.

    Exit codes: 0 done; 1 the robot was stopped for safety; 2 invalid input.
    """
    from imitate.cli.robot.policies import look_before_replay
    from imitate.cli.robot.robots import SIMULATED, robot_of, safety_of
    from imitate.data import DatasetFile
    from imitate.data.file.features import features_of, number_names
    from imitate.deploy.check.first_look import check_sizes
    from imitate.deploy.robot.driver import solved
    from imitate.deploy.robot.loop import ControlLoop
    from imitate.deploy.robot.watchdog import slow_stop
    from imitate.errors import RobotError

    rules = safety_of(robot, safety or ())
    with DatasetFile(file) as data:
        demos = data.demos()
        name = demos[0] if demo is None else demo
        if name not in demos:
            raise UserError(
                f"{file}: there is no demo '{name}': choose one from {demos[0]} to {demos[-1]}"
            )
        actions = data.read(name, "actions")
        recorded = data.control_freq
        own = data.env_meta
        features = features_of(data.file_attrs, str(file))
    rate = rate_hz or recorded
    if rate is None:
        raise UserError(f"{file}: the file does not contain a control rate: give it with --rate-hz")
    policy = RecordedActions(actions, recorded, number_names(features).get("actions", ()))
    recording: Any = SimpleNamespace(action_dim=actions.shape[-1], observations={})
    with contextlib.ExitStack() as stack:
        simulated = own if own.get("type") in (1, 2) else None
        body = robot_of(
            robot,
            robot_arg or [],
            env=env,
            own=simulated,
            rate_hz=rate,
            limits=limits,
            any_limits=any_limits,
            check=partial(check_sizes, schema=recording, resizes=True),
        )
        interrupts = stack.enter_context(released(body))
        if robot != SIMULATED:
            look_before_replay(file, body)
        loop = ControlLoop(
            body,
            policy,
            float(rate),
            safety=rules,
            any_rate=any_rate,
            dry_run=dry_run,
            slow=slow,
            on_step=interrupts.checked(None),
        )
        try:
            report = loop.run(len(actions))
            success = solved(body)
        except RobotError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(FAILED) from None
    if json_:
        typer.echo(json.dumps({"demo": name, "success": success, "report": report.to_dict()}))
    else:
        verdict = "" if success is None else f"; success: {success}"
        typer.echo(
            f"{name}: {report}{verdict}" + ("; dry run: nothing was sent" if dry_run else "")
        )
    if slow_words := slow_stop(report.stop_s):
        typer.echo(f"error: {slow_words}", err=True)
        raise typer.Exit(FAILED)
