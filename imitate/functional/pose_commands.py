"""Pose commands of an end effector: relative commands in a controller's units, and the goal poses that they mean.

As in robosuite's ``OSC_POSE``, a command u in [low, high] is a motion ``m = (u - mid(u)) * scale + mid(m)``;
for a hand at position p with rotation R and commands in a frame F, the goal is

    p' = p + F m_pos        R' = exp(F m_rot) R
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from imitate.functional.rotations import axis_angle_to_matrix, matrix_to_axis_angle


@dataclass(frozen=True)
class CommandRange:
    """Limits and scale of commands.

    Attributes:
        low, high: (6,) limits to which commands are clipped.
        motion_low, motion_high: (6,) metres and radians at these limits.
    """

    low: Tensor
    high: Tensor
    motion_low: Tensor
    motion_high: Tensor

    def clipped(self, commands: Tensor) -> Tensor:
        """Clip commands (*B, 6) to the limits."""
        return torch.minimum(torch.maximum(commands, self.low), self.high)

    def to_motion(self, commands: Tensor) -> Tensor:
        """Convert commands (*B, 6) to metres and radians."""
        share = (self.clipped(commands) - self.low) / (self.high - self.low)
        return self.motion_low + share * (self.motion_high - self.motion_low)

    def to_commands(self, motion: Tensor) -> Tensor:
        """Convert metres and radians to commands, without clipping: the inverse of :meth:`to_motion`."""
        share = (motion - self.motion_low) / (self.motion_high - self.motion_low)
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True)
class HandPoses:
    """Poses of hands, and the frames of their commands.

    Attributes:
        position: (*B, 3) in the world, metres.
        rotation: (*B, 3, 3) in the world.
        frame: (*B, 3, 3) or (3, 3) rotation from the frame of the commands to the world.
    """

    position: Tensor
    rotation: Tensor
    frame: Tensor


def goals_of(commands: Tensor, hands: HandPoses, limits: CommandRange) -> tuple[Tensor, Tensor]:
    """Return the target poses of relative commands (*B, 6): (*B, 3) positions and (*B, 3, 3) rotations in the world."""
    motion = limits.to_motion(commands)
    position = hands.position + _turned(hands.frame, motion[..., :3])
    rotation = axis_angle_to_matrix(_turned(hands.frame, motion[..., 3:])) @ hands.rotation
    return position, rotation


def commands_to(
    position: Tensor, rotation: Tensor, hands: HandPoses, limits: CommandRange
) -> Tensor:
    """Return the relative commands (*B, 6) that lead to goals in the world.

    They exceed the limits if a goal is too far.
    """
    back = hands.frame.transpose(-1, -2)
    turn = matrix_to_axis_angle(rotation @ hands.rotation.transpose(-1, -2))
    motion = (_turned(back, position - hands.position), _turned(back, turn))
    return limits.to_commands(torch.cat(motion, dim=-1))


def _turned(matrix: Tensor, vectors: Tensor) -> Tensor:
    return (matrix @ vectors[..., None]).squeeze(-1)
