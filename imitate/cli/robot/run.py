"""``imitate run``: run a policy on a robot."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imitate.cli.options import (
    FAILED,
    ROBOT,
    ActingDevice,
    ActingPrecision,
    AnyRate,
    AsJson,
    Lang,
    RateHz,
    RenameObs,
    TakeOverArgs,
)
from imitate.cli.robot.policies import (
    InBackground,
    Join,
    PolicyName,
    PolicyOpener,
    ResizeImages,
    Timeout,
    TlsCa,
    TokenFile,
    UnlikeTraining,
    look_before_motion,
    rate_of,
)
from imitate.cli.robot.robots import (
    AnyLimits,
    Limits,
    RobotArgs,
    RobotEnv,
    SafetyArgs,
    Slow,
    released,
)
from imitate.errors import Problems, UserError

if TYPE_CHECKING:
    from imitate.deploy.robot.loop import ControlLoop
    from imitate.deploy.robot.recording import Recorder
    from imitate.deploy.robot.report import Report
    from imitate.deploy.robot.robot import Robot


def command(
    policy: PolicyName,
    robot: Annotated[
        str,
        ROBOT,
    ],
    robot_arg: RobotArgs = None,
    env: RobotEnv = None,
    rate_hz: RateHz = None,
    any_rate: AnyRate = False,
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, help="Number of episodes to play.")
    ] = 1,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            min=1,
            help="Largest number of control steps per episode, which ends earlier if the robot reports success.",
        ),
    ] = 400,
    lang: Lang = None,
    skill: Annotated[
        int | None,
        typer.Option(
            "--skill",
            min=0,
            help="Number of the skill to use, from 0, for a policy that learned several.",
        ),
    ] = None,
    limits: Limits = None,
    any_limits: AnyLimits = False,
    slow: Slow = 1.0,
    safety: SafetyArgs = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Read observations and predict actions, but send no action to the robot.",
        ),
    ] = False,
    asynchronous: InBackground = False,
    join: Join = "blend",
    unlike_training: UnlikeTraining = False,
    take_over: Annotated[
        str | None,
        typer.Option(
            "--take-over",
            metavar="DEVICE",
            help="Teleoperation device with which a person can take over, such as keyboard, "
            "gamepad, spacemouse.",
        ),
    ] = None,
    take_over_arg: TakeOverArgs = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            help="Write the episodes, with interventions of a person, to this HDF5 file.",
        ),
    ] = None,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    resize: ResizeImages = False,
    rename: RenameObs = None,
    timeout_s: Timeout = None,
    device: ActingDevice = None,
    precision: ActingPrecision = "fp32",
    plan_budget_ms: Annotated[
        float | None,
        typer.Option(
            "--plan-budget-ms",
            min=0.0,
            help="Milliseconds after which a policy that plans (mbrl, tdmpc2) takes the best plan found so far. The "
            "number of such cut plans is printed.",
        ),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Run a policy on a robot at a fixed rate, within limits.

    The robot is stopped at the end, after Ctrl-C, and when it is not safe to continue:
    late steps, old observations, a frozen camera, no action for a second, an
    action that is not finite, a hanging driver. This is not a safety function:
    keep a hand on the emergency stop.

    Exit codes: 0 done; 1 the robot was stopped for safety; 2 invalid input.
    """
    from imitate.cli.robot.robots import robot_of, safety_of, teleoperator_of
    from imitate.deploy.check.first_look import check_sizes
    from imitate.deploy.robot.driver import called
    from imitate.deploy.robot.loop import ControlLoop
    from imitate.deploy.robot.robot import ROBOTS, TELEOPERATORS, check_named

    problems = Problems()
    with problems.noted():
        rules = safety_of(robot, safety or ())
    with problems.noted():
        _check_record(record, dry_run=dry_run)
    for group, named in ((ROBOTS, robot), (TELEOPERATORS, take_over)):
        with problems.noted():
            check_named(group, named)
    with contextlib.ExitStack() as stack:
        source = PolicyOpener(
            token_file,
            timeout_s,
            device,
            join if asynchronous else None,
            tls_ca,
            resize,
            rename or (),
            precision,
            skill,
            plan_budget_ms,
        )
        with problems.noted():
            found = source.open(policy, stack)
            rate = rate_of(found.actor, rate_hz)
        problems.check()
        body = robot_of(
            robot,
            robot_arg or [],
            env=env,
            own=found.env_args,
            seen=found.shapes,
            rate_hz=rate,
            limits=limits,
            any_limits=any_limits,
            check=partial(check_sizes, schema=found.schema, resizes=resize),
        )
        interrupts = stack.enter_context(released(body))
        hand = None
        if take_over is not None:
            hand = teleoperator_of(take_over, take_over_arg or [], body)
            stack.callback(called, hand.close)
        look = look_before_motion(found, body, unlike_training)
        actor = source.acting(found, rate, stack)
        recorder = None
        if record is not None:
            recorder = stack.enter_context(_recorder(record, rate, body, robot))
        loop = ControlLoop(
            body,
            actor,
            rate,
            safety=rules,
            teleoperator=hand,
            any_rate=any_rate,
            dry_run=dry_run,
            slow=slow,
            on_step=interrupts.checked(None if recorder is None else recorder.on_step),
            look=look,
        )
        results = []
        for number in range(episodes):
            interrupts.check()
            results.append(_episode(loop, number, steps, lang, recorder))
            if not json_:
                typer.echo(results[-1].line + ("; dry run: nothing was sent" if dry_run else ""))
            if results[-1].ends_all:
                break
    failure = results[-1].failure
    if found.planner is not None and not json_:
        cut, searches = found.planner.cut, found.planner.searches
        typer.echo(f"planning: {cut} of {searches} searches were cut at {plan_budget_ms:g} ms")
    if json_:
        typer.echo(json.dumps([result.to_dict() for result in results], indent=2))
    if failure is not None:
        typer.echo(f"error: {failure}", err=True)
        raise typer.Exit(FAILED)


def _check_record(path: Path | None, *, dry_run: bool) -> None:
    if path is not None and dry_run:
        raise UserError(
            "--record writes the actions that are sent, but --dry-run sends none: leave one of the two options out"
        )
    if path is not None and path.exists():
        raise UserError(f"--record {path}: exists already: choose another name")


@dataclass(frozen=True)
class _Result:
    """Outcome of an episode: the control loop's report, or the reason why the episode was stopped."""

    number: int
    success: bool | None
    report: Report | None
    failure: str | None

    @property
    def ends_all(self) -> bool:
        return self.report is None or self.failure is not None or self.report.ended_by == "quit"

    @property
    def line(self) -> str:
        verdict = {None: "", True: " success,", False: " failure,"}[self.success]
        return f"episode {self.number}:{verdict} {self.report or 'stopped'}"

    def to_dict(self) -> dict[str, Any]:
        report = None if self.report is None else self.report.to_dict()
        return {
            "episode": self.number,
            "success": self.success,
            "report": report,
            "failure": self.failure,
        }


def _episode(
    loop: ControlLoop, number: int, steps: int, lang: str | None, recorder: Recorder | None
) -> _Result:
    from imitate.deploy.robot.driver import solved
    from imitate.deploy.robot.watchdog import reset_robot, slow_stop
    from imitate.errors import RobotError

    report, failure, event, success = None, None, "", None
    try:
        if number:
            reset_robot(loop.robot)
        report = loop.run(steps, lang, until_success=True)
        event = report.ended_by
        success = {"success": True, "failure": False}.get(event)
        if success is None and not loop.dry_run:
            success = solved(loop.robot)
        failure = slow_stop(report.stop_s) or None
    except RobotError as error:
        # Success stays unknown, because after a failed reset the scene is still the previous episode's.
        failure = str(error)
    except UserError:
        # For example, a policy server may refuse a request during the episode. The steps recorded so far are kept.
        if recorder is not None:
            recorder.keep(None, language=lang)
        raise
    if recorder is not None:
        if event in ("discard", "redo"):
            recorder.discard()
        else:
            recorder.keep(success, language=lang)
    return _Result(number, success, report, failure)


def _recorder(path: Path, rate_hz: float, robot: Robot, name: str) -> Recorder:
    from imitate.cli.robot.robots import recorded_name
    from imitate.deploy.robot.recording import Recorder

    meta = getattr(robot, "env_meta", None)
    return Recorder(
        path, rate_hz, env_meta=meta, name=recorded_name(name), robot=robot, with_policy=True
    )
