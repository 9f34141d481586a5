"""``imitate record``: record a person's demonstrations with a teleoperation device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.recording import Session
from imitate.cli.robots import AnyLimits, Limits, RobotArgs, RobotEnv, SafetyArgs


def command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="HDF5 file of demonstrations.")],
    robot: Annotated[
        str,
        typer.Option(
            "--robot",
            help="sim (the environment of --env, simulated in real time), an installed "
            "robot, lerobot:TYPE, module:Class, or file.py:Class.",
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
        typer.Option("--rate-hz", min=0.01, help="Control rate; default: the robot's own."),
    ] = None,
    any_rate: Annotated[
        bool, typer.Option("--any-rate", help="Allow a rate other than the robot's.")
    ] = False,
    episodes: Annotated[
        int,
        typer.Option("--episodes", "-n", min=1, help="Number of episodes in the file at the end."),
    ] = 10,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Longest episode, in control steps.")
    ] = 1000,
    lang: Annotated[
        str | None, typer.Option("--lang", help="Instruction to store with each episode.")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option("--keys", help="Observations to record, separated by commas; default: all."),
    ] = None,
    limits: Limits = None,
    any_limits: AnyLimits = False,
    safety: SafetyArgs = None,
    append: Annotated[
        bool,
        typer.Option(
            "--append", help="Resume an existing file, or one that a crash left unfinished."
        ),
    ] = False,
    raw_images: Annotated[
        bool, typer.Option("--raw-images", help="Store raw pixels instead of JPEG.")
    ] = False,
    pause_s: Annotated[
        float, typer.Option("--pause-s", min=0.0, help="Pause between episodes.")
    ] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Record demonstrations by teleoperation.

    The device's keys end an episode: success and failure keep it with a verdict,
    end keeps it without a verdict, discard and redo drop it, quit ends the
    recording. Each kept episode is written to disk at once; after a crash resume with
    --append.

    Exit codes: 0 done; 1 the robot was stopped for safety; 2 invalid input.
    """
    Session(
        out=out,
        robot=robot,
        teleop=teleop,
        episodes=episodes,
        steps=steps,
        robot_args=robot_arg or [],
        teleop_args=teleop_arg or [],
        env=env,
        rate_hz=rate_hz,
        any_rate=any_rate,
        limits=limits,
        any_limits=any_limits,
        safety=safety or [],
        lang=lang,
        keys=keys,
        append=append,
        raw_images=raw_images,
        pause_s=pause_s,
        as_json=json_,
    ).run()
