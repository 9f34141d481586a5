"""Actions of one demonstration, split and converted: commands to goals, and goals to commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from imitate.envs.env import Array
from imitate.errors import DatasetError
from imitate.functional import rotations as rot
from imitate.functional.pose_commands import HandPoses, commands_to, goals_of
from imitate.simulation.action_file import ActionFile

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
            DatasetError: they have too few columns.
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
        """Join to (T, A), one arm after the other."""
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
        error: see :class:`imitate.simulation.actions.ActionsReport`.
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
        """Return robomimic's arrays; the values of several arms stand one arm after the other."""
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
