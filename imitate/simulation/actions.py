"""Convert the actions of a demonstration file: relative or absolute, and the representation of rotations."""

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

from imitate.data import DatasetFile
from imitate.data.curate.rewrite import Changes, rewrite
from imitate.data.curate.target import Target
from imitate.data.file.confined import ConfinedFile
from imitate.envs.env import Array
from imitate.errors import DatasetError
from imitate.simulation.action_file import ActionFile, open_poses
from imitate.simulation.action_forms import Blocks, Forms, Mode, Rotation
from imitate.simulation.hand_poses import PoseKeys, PoseSource
from imitate.simulation.recorded import EXECUTED
from imitate.simulation.replay_check import Replay, replay_some

ACTION_ARRAYS = ("actions", EXECUTED, "policy_actions")
"""Arrays of actions that a file may hold besides 'actions'; converted with them."""


@dataclass(frozen=True)
class ActionOptions:
    """Settings of a conversion of actions.

    Attributes:
        to: 'absolute' goals or 'delta' commands; None keeps their kind.
        rotation: representation of rotations to write.
        from_rotation: their current representation.
        key: the array to write; 'actions' also changes the environment's controller.
        action_dict: also write robomimic's ``action_dict/{rel_,abs_}{pos,rot_axis_angle,rot_6d}`` and ``gripper``.
        source: where the hands' poses come from: 'poses', 'simulator', or 'auto': poses where there are some.
        pose_keys: observations of each gripper, or None for robosuite's.
        scale: metres and radians of a command of 1, where no controller says it.
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
        was: 'delta' or 'absolute', and `now` what the array `key` holds.
        rotation: how its rotations are written.
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
            rewrite(source, part, Changes(attrs=attrs))
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
    if options.key != "actions" and not options.key.startswith("action_dict/"):
        raise DatasetError(
            f"{source}: --key '{options.key}': write 'actions', or beside them 'action_dict/NAME'"
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
