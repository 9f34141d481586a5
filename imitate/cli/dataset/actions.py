"""``imitate dataset actions``: make actions relative or absolute, and change the representation of rotations."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from imitate.cli.dataset.curate import File, InPlace, Out, progress, target_of
from imitate.cli.options import AsJson, Overwrite
from imitate.cli.reports.layout import SOLVED
from imitate.collect.replay import Replay
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


def mount(app: typer.Typer) -> None:
    """Add the command ``actions`` to ``imitate dataset``."""
    app.command("actions")(actions)


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
