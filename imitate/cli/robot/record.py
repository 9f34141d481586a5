"""``imitate record``: record a person's demonstrations with a teleoperation device.

In a recording session a person moves a robot with a device, and the kept episodes become demonstrations. ``imitate
collect --teleop`` uses the same session.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imitate.cli.options import FAILED, NAMES, ROBOT, AnyRate, AsJson, TeleopArgs
from imitate.cli.robot.robots import AnyLimits, Limits, RobotArgs, RobotEnv, SafetyArgs
from imitate.errors import UserError
from imitate.system.text import counted

if TYPE_CHECKING:
    from imitate.cli.robot.robots import Interrupts
    from imitate.deploy.robot.loop import ControlLoop
    from imitate.deploy.robot.recording import Recorder
    from imitate.errors import RobotError


@dataclass(frozen=True)
class RecordingSession:
    """Settings of a session.

    Attributes:
        out: the HDF5 file.
        robot: ``sim`` or the name of a robot, with its options, environment and limits as in
            :func:`imitate.cli.robot.robots.robot_of`.
        teleop: name of the device, with its options.
        episodes: number of episodes in the file at the end.
        steps: largest number of control steps per episode.
        rate_hz: control rate, or None for the robot's own.
        safety: ``key=value`` pairs of safety settings (when to hold, when to stop).
        lang: instruction that is stored with each episode.
        keys: observation keys to record, or None for all.
        append: true to add episodes to an existing file, also to one that a crash left unfinished.
        overwrite: true to replace a file.
        raw_images: true to store raw pixels instead of JPEG.
        pause_s: seconds between episodes.
        as_json: true to print the summary as JSON, without progress.
    """

    out: Path
    robot: str
    teleop: str
    episodes: int
    steps: int
    robot_args: Sequence[str] = ()
    teleop_args: Sequence[str] = ()
    env: str | None = None
    rate_hz: float | None = None
    any_rate: bool = False
    limits: Path | None = None
    any_limits: bool = False
    safety: Sequence[str] = ()
    lang: str | None = None
    keys: str | None = None
    append: bool = False
    overwrite: bool = False
    raw_images: bool = False
    pause_s: float = 0.0
    as_json: bool = False

    def run(self) -> None:
        """Record episodes and print how many were kept.

        Raises:
            UserError: the settings do not fit, or the file cannot be written.
            typer.Exit: the robot was stopped for safety.
        """
        from imitate.cli.robot.policies import look_before_replay
        from imitate.cli.robot.robots import (
            SIMULATED,
            recorded_name,
            released,
            robot_of,
            safety_of,
            teleoperator_of,
        )
        from imitate.deploy.robot.driver import called
        from imitate.deploy.robot.loop import ControlLoop
        from imitate.deploy.robot.recording import Recorder

        rules = safety_of(self.robot, self.safety)
        if self.out.exists() and not (self.append or self.overwrite):
            raise UserError(f"{self.out}: exists already: choose another name, or add --append")
        with contextlib.ExitStack() as stack:
            body = robot_of(
                self.robot,
                self.robot_args,
                env=self.env,
                rate_hz=self.rate_hz,
                limits=self.limits,
                any_limits=self.any_limits,
            )
            interrupts = stack.enter_context(released(body))
            if self.append and self.robot != SIMULATED and self.out.exists():
                look_before_replay(self.out, body)
            rate = self.rate_hz or body.rate_hz
            if rate is None:
                raise UserError(
                    f"the robot '{self.robot}' has no control rate of its own: choose one with --rate-hz"
                )
            hand = teleoperator_of(self.teleop, self.teleop_args, body)
            stack.callback(called, hand.close)
            meta = body.env_meta if self.robot == SIMULATED else None  # type: ignore[attr-defined]
            recorder = stack.enter_context(
                Recorder(
                    self.out,
                    rate,
                    env_meta=meta,
                    name=recorded_name(self.robot),
                    robot=body,
                    keys=None if self.keys is None else tuple(self.keys.split(",")),
                    append=self.append,
                    overwrite=self.overwrite,
                    image_storage="raw" if self.raw_images else "jpeg",
                )
            )
            loop = ControlLoop(
                body,
                None,
                rate,
                safety=rules,
                teleoperator=hand,
                any_rate=self.any_rate,
                on_step=interrupts.checked(recorder.on_step),
            )
            done = self._episodes(loop, recorder, interrupts)
            kept = recorder.episodes
        self._tell(kept, rate, done)

    def _episodes(self, loop: ControlLoop, recorder: Recorder, interrupts: Interrupts) -> _Done:
        """Record episodes until there are enough, the person quits, or the robot is stopped."""
        from imitate.deploy.robot.driver import solved
        from imitate.deploy.robot.watchdog import reset_robot, slow_stop
        from imitate.errors import RobotError

        done = _Done()
        fresh = True
        while recorder.episodes < self.episodes:
            interrupts.check()
            try:
                if not fresh:
                    time.sleep(self.pause_s)
                    reset_robot(loop.robot)
                fresh = False
                report = loop.run(self.steps)
                verdict = {"success": True, "failure": False}.get(report.ended_by)
                verdict = solved(loop.robot) if verdict is None else verdict
            except RobotError as error:
                done.stopped = error
                break
            done.late += report.late
            event = report.ended_by
            if event == "quit":
                break
            if event in ("discard", "redo"):
                recorder.discard()
                done.discarded += 1
            else:
                recorder.keep(verdict, language=self.lang)
            if not self.as_json:
                typer.echo(
                    f"{recorder.episodes} of {counted(self.episodes, 'episode')} kept; last: {event}, "
                    f"{counted(report.steps, 'step')}, {report.late} late",
                    err=True,
                )
            if slow := slow_stop(report.stop_s):
                done.stopped = RobotError(slow)
                break
        return done

    def _tell(self, kept: int, rate_hz: float, done: _Done) -> None:
        summary = {
            "file": str(self.out),
            "episodes": kept,
            "discarded": done.discarded,
            "late_steps": done.late,
            "rate_hz": rate_hz,
        }
        words = f"{counted(kept, 'episode')} in {self.out}" if kept else "nothing was recorded"
        typer.echo(json.dumps(summary) if self.as_json else words)
        if done.stopped is not None:
            typer.echo(f"error: {done.stopped}", err=True)
            raise typer.Exit(FAILED)


@dataclass
class _Done:
    """Late steps, discarded episodes and the error that stopped a session, if any."""

    late: int = 0
    discarded: int = 0
    stopped: RobotError | None = None


def command(
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="HDF5 file to which the demonstrations are written."),
    ],
    robot: Annotated[
        str,
        ROBOT,
    ],
    teleop: Annotated[
        str,
        typer.Option(
            "--teleop",
            metavar="DEVICE",
            help="Device with which the person moves the robot: keyboard, gamepad, spacemouse, lerobot:TYPE, "
            "expert:TASK (with --robot sim a scripted expert), an installed device, module:Class, or "
            "file.py:Class.",
        ),
    ],
    robot_arg: RobotArgs = None,
    teleop_arg: TeleopArgs = None,
    env: RobotEnv = None,
    rate_hz: Annotated[
        float | None,
        typer.Option("--rate-hz", min=0.01, help="Control rate in Hz; default: the robot's own."),
    ] = None,
    any_rate: AnyRate = False,
    episodes: Annotated[
        int,
        typer.Option(
            "--episodes",
            "-n",
            min=1,
            help="Number of episodes that the file contains at the end, "
            "including earlier ones with --append.",
        ),
    ] = 10,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Largest number of control steps per episode.")
    ] = 1000,
    lang: Annotated[
        str | None, typer.Option("--lang", help="Language instruction to store with each episode.")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar=NAMES,
            help="Observation keys to record, separated by commas; default: all.",
        ),
    ] = None,
    limits: Limits = None,
    any_limits: AnyLimits = False,
    safety: SafetyArgs = None,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="Add episodes to an existing file, also to one that a crash left unfinished.",
        ),
    ] = False,
    raw_images: Annotated[
        bool,
        typer.Option(
            "--raw-images", help="Store images as raw pixels, without loss, instead of JPEG."
        ),
    ] = False,
    pause_s: Annotated[
        float, typer.Option("--pause-s", min=0.0, help="Seconds to pause between episodes.")
    ] = 0.0,
    json_: AsJson = False,
) -> None:
    """Record demonstrations by teleoperation.

    The device's keys end an episode: success and failure keep the episode with this verdict, end keeps it without a
    verdict, discard and redo delete it, quit ends the recording. Each kept episode is written to disk at once; after a
    crash resume with --append.

    Exit codes: 0 done; 1 the robot was stopped for safety; 2 invalid input.
    """
    RecordingSession(
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
