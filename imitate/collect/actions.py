"""Conversion of the actions in a demonstration file: relative or absolute, and the representation of rotations.

The actions of each demonstration are split into positions, rotations and grippers, converted from commands to goals or
from goals to commands, and written to a copy of the file.
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
    """Actions split into parts: (T, arms, ...) positions, rotations as written, and the rest (grippers)."""

    position: Tensor
    rotation: Tensor
    rest: Tensor

    @classmethod
    def of(cls, actions: Tensor, arms: int, rotation: Rotation, where: str) -> Blocks:
        """Split (T, A) actions.

        Raises:
            DatasetError: the actions have too few columns.
        """
        width, arm_width = actions.shape[-1], 3 + _WIDTH[rotation]
        if width % arms or width // arms < arm_width:
            raise DatasetError(
                f"{where} has {width} columns: {arms} arm(s) with {rotation} have at least {arm_width} each; "
                "only controllers of hand poses (OSC_POSE) can be converted; add --from-rotation if it is another"
            )
        blocks = actions.reshape(len(actions), arms, -1)
        return cls(blocks[..., :3], blocks[..., 3:arm_width], blocks[..., arm_width:])

    def joined(self) -> Tensor:
        """Concatenate the parts to (T, A), one arm after the other."""
        return torch.cat((self.position, self.rotation, self.rest), dim=-1).flatten(start_dim=1)


class Forms:
    """Actions of one demo, both as commands and as goals.

    Args:
        about: the file.
        blocks: the split actions.
        rotation: representation of their rotations.
        hands: poses of the grippers, or None if unknown, so that the actions keep their kind.
        bases: (T, arms, 3) positions of the robots' bases.
        where: names the array in messages.

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
                    f"{where} has {len(blocks.position)} steps, the poses {len(hands.position)}: repair the file"
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
        """Return the actions converted to a kind and a representation of rotations."""
        if mode == "absolute" and self.goals is not None:
            position, matrix = self.goals
            return Blocks(position, _from_matrix(matrix, rotation), self.blocks.rest)
        if self.commands is None:
            raise DatasetError("relative actions need poses")
        turns = self.commands[..., 3:]
        if rotation != "axis_angle":
            turns = _from_matrix(rot.axis_angle_to_matrix(turns), rotation)
        return Blocks(self.commands[..., :3], turns, self.blocks.rest)

    def action_dict(self) -> dict[str, Array]:
        """Return robomimic's arrays; the values of several arms are concatenated."""
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
        return values  # commands are three numbers as they are, whatever angle they mean
    return rot.matrix_to_axis_angle(_to_matrix(values, rotation))


ABSOLUTE = "actions_abs"
"""robomimic's array of absolute actions, beside relative ones in 'actions'."""
ACTION_ARRAYS = ("actions", EXECUTED, "policy_actions")
"""Further arrays of actions that a file may contain, which are converted with 'actions'."""


@dataclass(frozen=True)
class ActionOptions:
    """Settings of a conversion of actions.

    Attributes:
        to: 'absolute' goals or 'delta' commands; None keeps their kind.
        rotation: representation of rotations to write.
        from_rotation: their current representation.
        key: the array to write; 'actions' also changes the environment's controller.
        action_dict: also write robomimic's ``action_dict/{rel_,abs_}{pos,rot_axis_angle,rot_6d}`` and ``gripper``.
        source: source of the hands' poses: 'poses', 'simulator', or 'auto' for poses if the file has them.
        pose_keys: observations of each gripper, or None for robosuite's.
        scale: metres and radians of a command of 1, if no controller defines it.
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
        was: 'delta' or 'absolute' before; `now` is the kind of the written array.
        rotation: representation of its rotations.
        keys: arrays that were written.
        poses: source of the poses; '' if none were needed.
        steps: number of steps of all demos.
        clipped: steps with a command at or beyond the controller's limits, counted once if several arms are clipped.
        error: error of converting back, where nothing is clipped: in units of commands
            for delta to absolute, in metres and radians for the other way, the larger number.
        jumps: steps at which an axis-angle of 'actions' changes sides: angles of half a turn have two axes.
        replays: demos played with the new actions.
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
    """Write a copy with converted actions; if they are 'actions', its environment is adapted to them.

    Args:
        source: a demonstration file.
        target: the copy.
        options: settings.
        on_demo: called with the number of finished demos and of all demos.

    Raises:
        DatasetError: the file or the options do not allow it.
        EnvError: the environment cannot be made.
    """
    _check_options(source, options)
    with DatasetFile(source) as file:
        about = ActionFile.of(file, to=options.to, scale=options.scale)
        now = options.to or about.mode
        if about.playable and options.key == "actions" and options.rotation != "axis_angle":
            raise DatasetError(
                f"{source}: robosuite takes rotations as axis_angle: keep 'actions' and write others beside them: "
                "--key action_dict/NAME, or --action-dict"
            )
        same = options.rotation == options.from_rotation and not options.action_dict
        if about.playable and same and now == about.mode:
            raise DatasetError(f"{source}: its actions are {now} already: nothing to do")
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
        raise DatasetError(f"{source}: nothing to do: add --to, --rotation or --action-dict")
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
    """Compute the arrays to write into one demo."""
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
