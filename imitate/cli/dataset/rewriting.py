"""``imitate dataset actions``, ``set-env`` and ``migrate-env``: rewrite a file's actions or its environment.

Actions become relative or absolute, or their rotations get another representation; the environment is the one that the
file of demonstrations names.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from imitate.cli.dataset.curate import File, InPlace, Out, progress, target_of
from imitate.cli.options import AsJson, Overwrite, json_object
from imitate.cli.reports.layout import SOLVED
from imitate.collect.replay import RECORDED_ENV_ARGS, MigrationReport, Replay, migrate_file
from imitate.errors import UserError
from imitate.system.text import counted

if TYPE_CHECKING:
    from imitate.collect.actions import ActionsReport


def replay_line(replay: Replay) -> str:
    """Describe a replay: how far the hand was from the recorded pose, and whether recording and replay succeeded."""
    observed = "" if replay.obs_error_m is None else f" (observations {_mm(replay.obs_error_m)} mm)"
    return (
        f"{counted(replay.steps, 'step')} played, hand at most {_mm(replay.hand_error_m)} mm off{observed}; "
        f"recorded: {SOLVED[replay.was_solved]}, now: {SOLVED[replay.is_solved]}"
    )


def _mm(distance_m: float) -> str:
    return f"{distance_m * 1000:.2g}"


class Kind(str, Enum):
    """Meaning of the actions: target poses of the gripper, or changes of its pose."""

    absolute = "absolute"
    delta = "delta"


class RotationName(str, Enum):
    """Representation of a rotation."""

    axis_angle = "axis_angle"
    rot6d = "rot6d"
    euler = "euler"


class PosesFrom(str, Enum):
    """Source of the gripper poses from which actions are computed."""

    auto = "auto"
    poses = "poses"
    simulator = "simulator"


def actions(
    file: File,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    to: Annotated[
        Kind | None,
        typer.Option(
            "--to",
            help="absolute: poses that the gripper should reach; delta: changes of its pose.",
        ),
    ] = None,
    rotation: Annotated[
        RotationName, typer.Option("--rotation", help="Representation of rotations to write.")
    ] = RotationName.axis_angle,
    from_rotation: Annotated[
        RotationName,
        typer.Option("--from-rotation", help="Representation of rotations in the file."),
    ] = RotationName.axis_angle,
    source: Annotated[
        PosesFrom,
        typer.Option(
            "--source",
            help="Source of the gripper poses. poses: observations; simulator: the simulator, set to the recorded "
            "states; auto: observations if the file has them.",
        ),
    ] = PosesFrom.auto,
    key: Annotated[
        str,
        typer.Option(
            "--key",
            help="Array to write. 'actions' also changes the controller of the file's "
            "environment; action_dict/NAME is written beside the old actions.",
        ),
    ] = "actions",
    action_dict: Annotated[
        bool,
        typer.Option(
            "--action-dict",
            help="Also write action_dict/{rel_,abs_}{pos,rot_axis_angle,rot_6d} and gripper, for train.action_keys.",
        ),
    ] = False,
    pose_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--pose-keys",
            help="POSITION,QUATERNION: observation keys of a gripper (quaternion x, y, z, "
            "w); once per arm. Default: robosuite's.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            help="METRES,RADIANS: motion that an action of 1 commands, if the file does not describe its controller "
            "(default: 1,1).",
        ),
    ] = None,
    check: Annotated[
        int,
        typer.Option(
            "--check",
            min=0,
            help="Number of demos to replay in the simulator with the new actions, to check that they still succeed.",
        ),
    ] = 0,
    json_: AsJson = False,
) -> None:
    """Convert actions between relative and absolute, and rotations to another representation."""
    from imitate.collect.actions import (  # imported late: these modules import torch
        ActionOptions,
        convert_actions,
    )

    target = target_of(file, out, in_place, overwrite)
    metres_radians = _pair("--scale", scale) if scale else None
    options = ActionOptions(
        to=to.value if to else None,
        rotation=rotation.value,
        from_rotation=from_rotation.value,
        key=key,
        action_dict=action_dict,
        source=source.value,
        pose_keys=tuple(_pair("--pose-keys", text) for text in pose_keys) if pose_keys else None,
        scale=_numbers(metres_radians) if metres_radians else None,
        check=check,
    )
    with progress("actions") as on_demo:
        report = convert_actions(file, target, options, on_demo)
    typer.echo(json.dumps(report.to_dict()) if json_ else "\n".join(_lines(report)))


def _pair(option: str, text: str) -> tuple[str, str]:
    first, comma, second = (part.strip() for part in text.partition(","))
    if not (first and comma and second) or "," in second:
        raise UserError(f"{option} {text}: expected two values separated by a comma, such as A,B")
    return first, second


def _numbers(pair: tuple[str, str]) -> tuple[float, float]:
    try:
        metres, radians = float(pair[0]), float(pair[1])
    except ValueError:
        metres = radians = 0.0
    if metres <= 0 or radians <= 0:
        raise UserError(f"--scale {','.join(pair)}: expected two numbers above 0, such as 0.05,0.5")
    return metres, radians


def _lines(report: ActionsReport) -> list[str]:
    change = report.now if report.was == report.now else f"{report.was} -> {report.now}"
    lines = [
        f"{report.path}: {counted(report.demos, 'demo')}, {counted(report.steps, 'step')}, {change}, {report.rotation}"
    ]
    lines.append(f"  written: {', '.join(report.keys)}")
    if report.poses:
        where = "observations" if report.poses == "poses" else "the simulator"
        lines.append(
            f"  poses from {where}; clipped in {counted(report.clipped, 'step')} "
            f"({report.clipped_share:.1%}); elsewhere converting back has an error of at most "
            f"{report.error:.1g}"
        )
    if report.jumps:
        lines.append(
            f"  axis-angles jump in {counted(report.jumps, 'step')} (half a turn has two axes): "
            "a policy learns rot_6d more easily, see --action-dict and --rotation"
        )
    return lines + [f"  {demo}: {replay_line(replay)}" for demo, replay in report.replays.items()]


def set_env(
    file: File,
    env: Annotated[
        str,
        typer.Option(
            "--env",
            help="A gymnasium name (module:Name-v0), a robosuite task, a JSON file of env_args, or a demonstration "
            "file, whose environment is used.",
        ),
    ],
    type_: Annotated[
        int | None,
        typer.Option(
            "--type",
            help="Type of the environment: 1 robosuite, 2 gymnasium, 4 a real robot; default: chosen by its name.",
        ),
    ] = None,
    kwargs: Annotated[
        str | None,
        typer.Option(
            "--kwargs",
            metavar="JSON",
            help="Arguments for making the environment, as a JSON object.",
        ),
    ] = None,
    out: Out = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Change FILE itself instead of writing --out; its demos are neither changed nor "
            "copied.",
        ),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write the environment of the demonstrations into the file, such as a simulation of a real robot.

    Training rollouts, eval, dagger and playback then open this environment. The previous entry is printed.

    For example: imitate dataset set-env own.hdf5 --env myarm.envs:Reach-v0 --in-place
    """
    from imitate.data import DatasetFile
    from imitate.data.edit.edits import set_env_args
    from imitate.evaluate.environments import named_env

    target = target_of(file, out, in_place, overwrite, keeps_old=False)
    with DatasetFile(file) as read:
        own = read.env_meta
    named = named_env(env, own)
    if type_ is not None:
        named["type"] = type_
    if kwargs is not None:
        named["env_kwargs"] = json_object("--kwargs", kwargs)
    with progress("set-env", "MB") as on_mb:
        before = set_env_args(file, target, named, on_mb)
    typer.echo(f"{target.path}: env_args {json.dumps(named)}")
    typer.echo(f"before: {json.dumps(before)}")


def migrate_env(
    file: File,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    check: Annotated[
        int,
        typer.Option(
            "--check", min=0, help="Number of demos to replay as a test, spread over the file."
        ),
    ] = 3,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the demos and print the changes, but write nothing."),
    ] = False,
    json_: AsJson = False,
) -> None:
    """Rewrite a file's environment for the installed robosuite.

    Controllers, names and the scenes of the demos are translated from robosuite 1.0 - 1.4 to 1.5; states, actions and
    observations stay unchanged. Some demos are replayed by their states and actions before anything is written.
    """
    target = None if dry_run else target_of(file, out, in_place, overwrite)
    with progress("migrate-env") as on_demo:
        report = migrate_file(file, target, check=check, on_demo=on_demo)
    typer.echo(json.dumps(report.to_dict()) if json_ else "\n".join(_migration_lines(report)))


def _migration_lines(report: MigrationReport) -> list[str]:
    if not report.changes and not report.scenes:
        return [
            f"{report.path}: fits robosuite {report.robosuite}: there is nothing to change, "
            "and no file is written"
        ]
    lines = [f"  {change}" for change in report.changes]
    scenes = ", ".join(f"{what} {count}" for what, count in report.scenes.items())
    lines += [f"  model_file of the demos: {scenes}"] if scenes else []
    lines += [f"  {demo}: {replay_line(replay)}" for demo, replay in report.replays.items()]
    lines += [f"  not checked: {report.not_checked}"] if report.not_checked else []
    if report.written:
        return [
            *lines,
            f"{report.path}: {counted(report.demos, 'demo')} for robosuite {report.robosuite}; the old "
            f"description is kept as attribute '{RECORDED_ENV_ARGS}'",
        ]
    return [*lines, f"{report.path}: nothing is written (--dry-run)"]


def mount(app: typer.Typer) -> None:
    """Add the commands of this file to ``imitate dataset``."""
    app.command("set-env")(set_env)
    app.command("migrate-env")(migrate_env)
    app.command("actions")(actions)
