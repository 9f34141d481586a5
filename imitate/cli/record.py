"""``imitate record``: demonstrations of a person at a teleoperation device."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.robots import AnyLimits, Limits, RobotArgs, RobotEnv
from imitate.errors import UserError

STOPPED = 1


def command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="HDF5 file of demonstrations.")],
    robot: Annotated[
        str,
        typer.Option(
            "--robot",
            help="sim (the environment of --env in real time), an installed robot, lerobot:TYPE, module:Class, or "
            "file.py:Class.",
        ),
    ],
    teleop: Annotated[
        str,
        typer.Option(
            "--teleop",
            metavar="DEVICE",
            help="keyboard, gamepad, spacemouse, lerobot:TYPE, expert:TASK (a scripted expert in sim), an installed "
            "device, module:Class, or file.py:Class.",
        ),
    ],
    robot_arg: RobotArgs = None,
    teleop_arg: Annotated[
        list[str] | None,
        typer.Option("--teleop-arg", metavar="KEY=VALUE", help="Option of the device."),
    ] = None,
    env: RobotEnv = None,
    rate_hz: Annotated[
        float | None,
        typer.Option("--rate-hz", min=0.01, help="Control rate; the robot's own if left out."),
    ] = None,
    any_rate: Annotated[
        bool, typer.Option("--any-rate", help="Allow another rate than the robot's.")
    ] = False,
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, help="Episodes in the file at the end.")
    ] = 10,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Longest episode, in control steps.")
    ] = 1000,
    lang: Annotated[
        str | None, typer.Option("--lang", help="Instruction that is stored with each episode.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", help="Observations to record, with commas; all.")
    ] = None,
    limits: Limits = None,
    any_limits: AnyLimits = False,
    append: Annotated[
        bool,
        typer.Option("--append", help="Resume a file that is there, or that a crash left."),
    ] = False,
    raw_images: Annotated[
        bool, typer.Option("--raw-images", help="Store pixels as they are rather than as JPEG.")
    ] = False,
    pause_s: Annotated[
        float, typer.Option("--pause-s", min=0.0, help="Pause between episodes.")
    ] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Record demonstrations by teleoperation.

    The device's keys end an episode: success and failure keep it with a verdict,
    end keeps it without a verdict, discard and redo forget it, quit ends the
    recording. Each kept episode is on disk at once; after a crash resume with
    --append.

    Exit codes: 0 done; 1 the robot was stopped for safety; 2 invalid input.
    """
    from imitate.cli.robots import SIMULATED, robot_of, safety_of, teleoperator_of
    from imitate.deploy.loop import ControlLoop
    from imitate.deploy.recording import Recorder
    from imitate.deploy.robot import RobotError

    with contextlib.ExitStack() as stack:
        body = robot_of(
            robot, robot_arg or [], env=env, rate_hz=rate_hz, limits=limits, any_limits=any_limits
        )
        stack.callback(body.close)
        rate = rate_hz or body.rate_hz
        if rate is None:
            raise UserError(f"the robot '{robot}' works at any rate: say which with --rate-hz")
        hand = teleoperator_of(teleop, teleop_arg or [], body)
        stack.callback(hand.close)
        meta = body.env_meta if robot == SIMULATED else None  # type: ignore[attr-defined]
        recorder = stack.enter_context(
            Recorder(
                out,
                rate,
                env_meta=meta,
                name=robot,
                keys=None if keys is None else tuple(keys.split(",")),
                append=append,
                image_storage="raw" if raw_images else "jpeg",
            )
        )
        loop = ControlLoop(
            body,
            None,
            rate,
            safety=safety_of(robot),
            teleoperator=hand,
            any_rate=any_rate,
            on_step=recorder.on_step,
        )
        late = discarded = 0
        stopped: RobotError | None = None
        fresh = True
        while recorder.episodes < episodes:
            try:
                if not fresh:
                    time.sleep(pause_s)
                    body.reset()
                fresh = False
                report = loop.run(steps)
            except RobotError as error:
                stopped = error
                break
            late += report.late
            event = report.ended_by
            if event == "quit":
                break
            if event in ("discard", "redo"):
                recorder.discard()
                discarded += 1
            else:
                verdict = {"success": True, "failure": False}.get(event, body.success())
                recorder.keep(verdict, language=lang)
            if not json_:
                typer.echo(
                    f"{recorder.episodes} of {episodes} episodes kept; last: {event}, {report.steps} steps, "
                    f"{report.late} late",
                    err=True,
                )
        kept = recorder.episodes
    summary = {
        "file": str(out),
        "episodes": kept,
        "discarded": discarded,
        "late_steps": late,
        "rate_hz": rate,
    }
    typer.echo(
        json.dumps(summary)
        if json_
        else f"{kept} episodes in {out}"
        if kept
        else "nothing was recorded"
    )
    if stopped is not None:
        typer.echo(f"error: {stopped}", err=True)
        raise typer.Exit(STOPPED)
