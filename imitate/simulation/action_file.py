"""Meaning of a file's actions: number of arms, relative or absolute, units and frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from imitate.data import DatasetFile
from imitate.data.file.action_scale import refuse_rescaled
from imitate.envs.controllers import arm_controllers, robot_names, with_explicit_controllers
from imitate.envs.migration import COMMAND, ROBOSUITE, version_note
from imitate.errors import DatasetError
from imitate.functional.pose_commands import CommandRange
from imitate.simulation.hand_poses import (
    ObservedPoses,
    PoseKeys,
    PoseSource,
    SimulatedPoses,
)

_MOTION = (0.05, 0.05, 0.05, 0.5, 0.5, 0.5)
"""robosuite's, where a controller names none: metres and radians of a command of 1."""


@dataclass(frozen=True)
class ActionFile:
    """An open file and the meaning of its actions.

    Attributes:
        file: open demonstration file.
        env_args: of a robosuite file with its controllers written out; else those of the file.
        mode: kind of 'actions': absolute or delta.
        arms: number of arms, whose actions are concatenated.
        limits: limits of relative commands.
        base_frame: true if commands are along the axes of the robots' bases, false for the world's.
        playable: true if robosuite can execute them.
    """

    file: DatasetFile
    env_args: dict[str, Any]
    mode: Literal["delta", "absolute"]
    arms: int
    limits: CommandRange
    base_frame: bool
    playable: bool

    @classmethod
    def of(
        cls, file: DatasetFile, *, to: str | None, scale: tuple[float, float] | None
    ) -> ActionFile:
        """Read the meaning of the actions.

        Args:
            file: open demonstration file.
            to: target kind of the actions; where no simulator defines their kind, they are the opposite.
            scale: metres and radians that a command of 1 means, if no controller defines it.

        Raises:
            DatasetError: the controller is another, the file is of another robosuite, or its actions are rescaled.
        """
        refuse_rescaled(file)
        if file.env_meta.get("type") != ROBOSUITE:
            metres, radians = scale or (1.0, 1.0)
            limits = _limits({"output_max": [metres] * 3 + [radians] * 3})
            mode: Literal["delta", "absolute"] = "absolute" if to == "delta" else "delta"
            return cls(file, file.env_meta, mode, 1, limits, base_frame=False, playable=False)
        if version_note(file.env_meta) is not None:
            raise DatasetError(
                f"{file.path}: recorded with another robosuite: first do: {COMMAND.replace('FILE', str(file.path))}"
            )
        env_args = with_explicit_controllers(file.env_meta)
        kwargs = env_args["env_kwargs"]
        robots, arms = robot_names(kwargs), arm_controllers(kwargs)
        first = arms[0] if arms else {}
        kind = f"{first.get('type')}, impedance_mode {first.get('impedance_mode', 'fixed')}"
        if len(arms) not in (1, len(robots)) or kind != "OSC_POSE, impedance_mode fixed":
            raise DatasetError(
                f"{file.path}: {len(robots)} robot(s) with {len(arms)} arm controller(s), {kind}: actions are "
                "converted for robots with one arm each and OSC_POSE with fixed impedance"
            )
        return cls(
            file,
            env_args,
            "absolute" if first.get("input_type") == "absolute" else "delta",
            len(robots),
            _limits(first),
            base_frame=first.get("input_ref_frame", "base") == "base",
            playable=True,
        )

    def env_args_for(self, mode: str) -> dict[str, Any]:
        """Return env_args of an environment that takes actions of a kind; absolute ones are in the world's frame."""
        new = with_explicit_controllers(self.env_args)
        for arm in arm_controllers(new["env_kwargs"]):
            arm["input_type"] = mode
            if mode == "absolute":
                arm["input_ref_frame"] = "world"
        return new


def open_poses(
    about: ActionFile, source: str, keys: tuple[PoseKeys, ...] | None = None
) -> PoseSource:
    """Choose the source of the gripper poses.

    Args:
        about: the file.
        source: 'poses', 'simulator', or 'auto': poses where they do.
        keys: observations of each gripper, or None for robosuite's.

    Raises:
        DatasetError: the file has no such source.
    """
    file = about.file
    keys = keys or tuple(
        (f"robot{number}_eef_pos", f"robot{number}_eef_quat_site") for number in range(about.arms)
    )
    missing = [key for pair in keys for key in pair if not file.has(file.demos()[0], f"obs/{key}")]
    oblique = about.base_frame and (about.arms > 1 or about.mode == "absolute")
    if source == "poses" or (source == "auto" and not missing and not oblique):
        if missing or oblique or len(keys) != about.arms:
            raise DatasetError(f"{file.path}: {_why_no_poses(about, keys, missing)}")
        return ObservedPoses(file, keys)
    if not about.playable or not file.has(file.demos()[0], "states"):
        raise DatasetError(
            f"{file.path}: neither observed poses ({', '.join(missing)}) nor states of robosuite: "
            "name the observations of position and quaternion (x, y, z, w) with --pose-keys"
        )
    return SimulatedPoses(file, about.env_args, base_frame=about.base_frame)


def _why_no_poses(about: ActionFile, keys: tuple[PoseKeys, ...], missing: list[str]) -> str:
    if missing:
        return f"no observation '{missing[0]}': name position and quaternion with --pose-keys, or --source simulator"
    if len(keys) != about.arms:
        return f"{len(keys)} pair(s) in --pose-keys for {about.arms} arm(s): name one pair for each"
    return "commands are given in the frames of the robots' bases, which only the simulator knows: --source simulator"


def _limits(controller: Mapping[str, Any]) -> CommandRange:
    def six(key: str, default: Any) -> torch.Tensor:
        return torch.as_tensor(controller.get(key, default), dtype=torch.float64).expand(6)

    most = six("output_max", _MOTION)
    least = six("output_min", (-most).tolist())
    return CommandRange(six("input_min", -1.0), six("input_max", 1.0), least, most)
