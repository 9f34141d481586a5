"""Convert the actions in a demonstration file to relative or absolute ones, or to another representation of rotations.

The actions of each demonstration are split into positions, rotations and grippers. They are converted from commands
(relative motions) to goals (absolute poses) or back, and written to a copy of the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import h5py
import torch
from torch import Tensor

from imitate.collect.action_file import ActionFile, PoseKeys, PoseSource, open_poses
from imitate.collect.recorded import EXECUTED
from imitate.collect.replay import Replay, replay_some
from imitate.data import DatasetFile
from imitate.data.edit.rewrite import FileChanges, rewrite
from imitate.data.edit.target import Target
from imitate.data.file.confined import ConfinedFile
from imitate.envs.env import Array
from imitate.errors import DatasetError
from imitate.functional import rotations as rot
from imitate.functional.rotations import HandPoses, commands_to, goals_of

Mode = Literal["delta", "absolute"]
Rotation = Literal["axis_angle", "rot6d", "euler"]

_WIDTH: dict[str, int] = {"axis_angle": 3, "rot6d": 6, "euler": 3}
_BEYOND = 1e-9


@dataclass(frozen=True)
class Blocks:
    """Actions split into (T, arms, ...) positions, rotations in the array's representation, and the rest (grippers)."""

    position: Tensor
    rotation: Tensor
    rest: Tensor

    @classmethod
    def of(cls, actions: Tensor, arms: int, rotation: Rotation, where: str) -> Blocks:
        """Split (T, A) actions.

        Raises:
            DatasetError: the actions have too few columns for ``arms`` and ``rotation``.
        """
        width, arm_width = actions.shape[-1], 3 + _WIDTH[rotation]
        if width % arms or width // arms < arm_width:
            raise DatasetError(
                f"{where} has {width} columns: {arms} arm(s) with {rotation} have at least {arm_width} each; only "
                "actions of gripper poses (OSC_POSE) can be converted; if rotations have another representation, "
                "name it with --from-rotation"
            )
        blocks = actions.reshape(len(actions), arms, -1)
        return cls(blocks[..., :3], blocks[..., 3:arm_width], blocks[..., arm_width:])

    def joined(self) -> Tensor:
        """Concatenate the parts to (T, A), one arm after the other."""
        return torch.cat((self.position, self.rotation, self.rest), dim=-1).flatten(start_dim=1)


class Forms:
    """Actions of one demo, both as commands (relative motions) and as goals (absolute poses).

    Args:
        about: the file.
        blocks: the split actions.
        rotation: representation of the rotations in ``blocks``.
        hands: gripper poses, or None if unknown; then the actions stay commands or goals, as they are in the file.
        bases: (T, arms, 3) positions of the robots' bases.
        where: description of the array for error messages.

    Attributes:
        clipped: steps with a command beyond the controller's limits.
        error: see :class:`imitate.collect.actions.ActionsReport`.
    """

    def __init__(
        self,
        about: ActionFile,
        blocks: Blocks,
        rotation: Rotation,
        hands: HandPoses | None,
        bases: Tensor | None,
        where: str,
    ) -> None:
        self.blocks, self.clipped, self.error = blocks, 0, 0.0
        self.commands: Tensor | None = None
        self.goals: tuple[Tensor, Tensor] | None = None
        if about.mode == "delta":
            turns = _to_axis_angle(blocks.rotation, rotation)
            self.commands = torch.cat((blocks.position, turns), dim=-1)
        else:
            self.goals = blocks.position, _to_matrix(blocks.rotation, rotation)
        if hands is not None and bases is not None:
            if len(hands.position) != len(blocks.position):
                raise DatasetError(
                    f"{where} has {len(blocks.position)} steps, but there are {len(hands.position)} gripper poses: "
                    "examine the file with `imitate dataset doctor`"
                )
            self._complete(about, hands, bases)

    def _complete(self, about: ActionFile, hands: HandPoses, bases: Tensor) -> None:
        limits = about.limits
        if self.commands is not None:
            given = self.commands
            self.goals = goals_of(given, hands, limits)
            written = (
                self.goals[0],
                rot.axis_angle_to_matrix(rot.matrix_to_axis_angle(self.goals[1])),
            )
            back = commands_to(*written, hands, limits)
            beyond = ((given - limits.clipped(given)).abs() > _BEYOND).any(-1)
            errors = (back - given).abs().amax(-1)
        elif self.goals is not None:
            if about.base_frame:
                turned = (hands.frame @ self.goals[0][..., None]).squeeze(-1)
                self.goals = bases + turned, hands.frame @ self.goals[1]
            wanted = commands_to(*self.goals, hands, limits)
            self.commands = limits.clipped(wanted)
            beyond = ((wanted - self.commands).abs() > _BEYOND).any(-1)
            position, rotation = goals_of(self.commands, hands, limits)
            angle = rot.matrix_to_axis_angle(rotation @ self.goals[1].transpose(-1, -2)).norm(
                dim=-1
            )
            errors = torch.maximum((position - self.goals[0]).norm(dim=-1), angle)
        self.clipped = int(beyond.any(-1).sum())
        self.error = float(errors[~beyond].max()) if (~beyond).any() else 0.0

    def written(self, mode: Mode, rotation: Rotation) -> Blocks:
        """Return the actions as commands ('delta') or goals ('absolute'), with this representation of rotations.

        Raises:
            DatasetError: relative actions are requested, but the gripper poses are unknown.
        """
        if mode == "absolute" and self.goals is not None:
            position, matrix = self.goals
            return Blocks(position, _from_matrix(matrix, rotation), self.blocks.rest)
        if self.commands is None:
            raise DatasetError(
                "absolute actions become relative only if the gripper poses are known: name them with "
                "--pose-keys, or add --source simulator"
            )
        turns = self.commands[..., 3:]
        if rotation != "axis_angle":
            turns = _from_matrix(rot.axis_angle_to_matrix(turns), rotation)
        return Blocks(self.commands[..., :3], turns, self.blocks.rest)

    def action_dict(self) -> dict[str, Array]:
        """Return robomimic's arrays ``action_dict/...``; the values of several arms are concatenated."""
        arrays = {"gripper": self.blocks.rest}
        for prefix, mode in (("rel", "delta"), ("abs", "absolute")):
            for suffix, rotation in (("axis_angle", "axis_angle"), ("6d", "rot6d")):
                blocks = self.written(mode, rotation)  # type: ignore[arg-type]
                arrays |= {
                    f"{prefix}_pos": blocks.position,
                    f"{prefix}_rot_{suffix}": blocks.rotation,
                }
        return {
            f"action_dict/{name}": values.flatten(start_dim=1).float().numpy()
            for name, values in arrays.items()
        }


def _to_matrix(values: Tensor, rotation: Rotation) -> Tensor:
    to = {
        "axis_angle": rot.axis_angle_to_matrix,
        "rot6d": rot.rotation_6d_to_matrix,
        "euler": rot.euler_to_matrix,
    }
    return to[rotation](values)


def _from_matrix(matrix: Tensor, rotation: Rotation) -> Tensor:
    to = {
        "axis_angle": rot.matrix_to_axis_angle,
        "rot6d": rot.matrix_to_rotation_6d,
        "euler": rot.matrix_to_euler,
    }
    return to[rotation](matrix)


def _to_axis_angle(values: Tensor, rotation: Rotation) -> Tensor:
    if rotation == "axis_angle":
        return values  # not normalised to half a turn, so that commands keep their numbers
    return rot.matrix_to_axis_angle(_to_matrix(values, rotation))


ABSOLUTE = "actions_abs"
"""robomimic's array of absolute actions, beside relative ones in 'actions'."""
ACTION_ARRAYS = ("actions", EXECUTED, "policy_actions")
"""Arrays of actions that a file may contain; all are converted if 'actions' is."""


@dataclass(frozen=True)
class ActionOptions:
    """Settings of a conversion of actions.

    Attributes:
        to: mode to convert to, 'absolute' (target poses) or 'delta' (relative motions); None keeps the mode.
        rotation: representation of rotations to write.
        from_rotation: representation of rotations in the file.
        key: the array to write; 'actions' also changes the environment's controller.
        action_dict: also write robomimic's ``action_dict/{rel_,abs_}{pos,rot_axis_angle,rot_6d}`` and ``gripper``.
        source: source of the gripper poses: 'poses' (observations), 'simulator' (recorded states), or 'auto':
            observations if the file has them.
        pose_keys: observation keys of each gripper's pose, or None for robosuite's keys.
        scale: metres and radians by which an action of 1 moves the gripper, if env_args describe no controller.
        check: number of demos to replay with the new actions.
    """

    to: Mode | None = None
    rotation: Rotation = "axis_angle"
    from_rotation: Rotation = "axis_angle"
    key: str = "actions"
    action_dict: bool = False
    source: Literal["auto", "poses", "simulator"] = "auto"
    pose_keys: tuple[PoseKeys, ...] | None = None
    scale: tuple[float, float] | None = None
    check: int = 0


@dataclass
class ActionsReport:
    """Report of a conversion of actions.

    Attributes:
        path: the file.
        was: mode of the actions in the source, 'delta' or 'absolute'.
        now: mode of the written actions.
        rotation: representation of the written rotations.
        keys: arrays that were written.
        poses: source of the poses; '' if none were needed.
        steps: number of steps of all demos.
        clipped: number of steps with an action beyond the controller's limits for at least one arm.
        error: largest error of converting back, in steps that are not clipped: in units of the actions for delta to
            absolute; for absolute to delta the larger of the errors in metres and in radians.
        jumps: number of steps at which an axis-angle vector in 'actions' flips to the opposite axis, as it may at half
            a turn.
        replays: result of replaying with the new actions, by demo.
    """

    path: str
    was: Mode
    now: Mode
    rotation: Rotation
    demos: int = 0
    keys: list[str] = field(default_factory=list)
    poses: str = ""
    steps: int = 0
    clipped: int = 0
    error: float = 0.0
    jumps: int = 0
    replays: dict[str, Replay] = field(default_factory=dict)

    @property
    def clipped_share(self) -> float:
        """Fraction of the steps that are clipped."""
        return self.clipped / max(1, self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "clipped_share": self.clipped_share}


def convert_actions(
    source: Path,
    target: Target,
    options: ActionOptions,
    on_demo: Callable[[int, int], None] = lambda done, total: None,
) -> ActionsReport:
    """Write a copy with converted actions; if 'actions' are converted, the copy's env_args get a matching controller.

    Args:
        source: demonstration file to read.
        target: file to write.
        options: settings of the conversion.
        on_demo: called with the number of finished demos and of all demos.

    Raises:
        DatasetError: the file or the options do not allow the conversion.
        EnvError: the environment cannot be made.
    """
    _check_options(source, options)
    with DatasetFile(source) as file:
        about = ActionFile.of(file, to=options.to, scale=options.scale)
        now = options.to or about.mode
        if about.playable and options.key == "actions" and options.rotation != "axis_angle":
            raise DatasetError(
                f"{source}: robosuite executes only rotations as axis_angle in 'actions': write other rotations into "
                "an array of their own with --key action_dict/NAME or --action-dict"
            )
        same = options.rotation == options.from_rotation and not options.action_dict
        if about.playable and same and now == about.mode:
            raise DatasetError(
                f"{source}: the actions are {now} already, so there is nothing to do: choose another "
                "--to"
            )
        report = ActionsReport(str(target.path), about.mode, now, options.rotation)
        poses = nullcontext() if now == about.mode and not options.action_dict else None
        with target.writing() as part:
            attrs = {}
            if about.playable and options.key == "actions" and options.to:
                attrs = {"env_args": json.dumps(about.env_args_for(now))}
            rewrite(source, part, FileChanges(attrs=attrs))
            with poses or open_poses(about, options.source, options.pose_keys) as hands:
                report.poses = hands.name if hands else ""
                _write_all(part, about, options, hands, report, on_demo)
            if options.check and about.playable and options.key == "actions":
                with DatasetFile(part) as copy:
                    report.replays = replay_some(copy, copy.env_meta, options.check)
    return report


def _check_options(source: Path, options: ActionOptions) -> None:
    same_rotation = options.rotation == options.from_rotation
    if options.to is None and not options.action_dict and same_rotation:
        raise DatasetError(
            f"{source}: no conversion is requested: add --to, --rotation or --action-dict"
        )
    beside = options.key.startswith("action_dict/") or (
        options.key == ABSOLUTE and options.to == "absolute"
    )
    if options.key != "actions" and not beside:
        raise DatasetError(
            f"{source}: --key '{options.key}': write 'actions', or beside them 'action_dict/NAME' or, with "
            f"--to absolute, '{ABSOLUTE}'"
        )


def _write_all(
    part: Path,
    about: ActionFile,
    options: ActionOptions,
    hands: PoseSource | None,
    report: ActionsReport,
    on_demo: Callable[[int, int], None],
) -> None:
    demos = about.file.demos()
    written: dict[str, None] = {}
    with ConfinedFile(part, "r+") as copy:
        for number, demo in enumerate(demos, 1):
            arrays = _converted(about, options, demo, hands, report)
            for key, values in arrays.items():
                _put(copy["data"][demo], key, values)
            written |= dict.fromkeys(arrays)
            on_demo(number, len(demos))
    report.demos, report.keys = len(demos), list(written)


def _converted(
    about: ActionFile,
    options: ActionOptions,
    demo: str,
    hands: PoseSource | None,
    report: ActionsReport,
) -> dict[str, Array]:
    """Return the arrays to write into one demo, by name."""
    poses, bases = hands.of(demo) if hands else (None, None)
    names = ACTION_ARRAYS if options.key == "actions" else ("actions",)
    result: dict[str, Array] = {}
    for name in names:
        if not about.file.has(demo, name):
            continue
        actions = about.file.read(demo, name)
        where = f"{about.file.path}: {demo}: '{name}'"
        blocks = Blocks.of(
            torch.from_numpy(actions).double(), about.arms, options.from_rotation, where
        )
        forms = Forms(about, blocks, options.from_rotation, poses, bases, where)
        if name == "actions":
            report.steps += len(actions)
            report.clipped += forms.clipped
            report.error = max(report.error, forms.error)
            if options.action_dict:
                result |= forms.action_dict()
        if options.to or options.rotation != options.from_rotation:
            key = name if options.key == "actions" else options.key
            new = forms.written(options.to or about.mode, options.rotation)
            result[key] = new.joined().numpy().astype(actions.dtype)
            if name == "actions" and options.rotation == "axis_angle":
                report.jumps += int((new.rotation.diff(dim=0).norm(dim=-1) > math.pi).sum())
    return result


def _put(demo: h5py.Group, key: str, values: Array) -> None:
    old = demo.get(key)
    if isinstance(old, h5py.Dataset) and old.shape == values.shape and old.dtype == values.dtype:
        old[...] = values
        return
    if old is not None:
        del demo[key]
    demo.create_dataset(key, data=values)
