"""Rotations in several representations, relative poses, and pose commands of an end effector.

All functions take and return tensors with any leading dimensions ``*B``, in the dtype of their input; use float64 if
errors of 1e-7 matter. Conventions:

* matrix (*B, 3, 3): acts on columns, ``v_world = R v_body``.
* quaternion (*B, 4): ``x, y, z, w``, as in robosuite's observations; results have ``w >= 0``.
* axis-angle (*B, 3): axis times angle; results have an angle in [0, pi].
* rotation-6d (*B, 6): the first two ROWS of the matrix, one after the other, as in PyTorch3D, Diffusion Policy and
  robomimic. (Zhou et al. 2019, arXiv:1812.07035, use the first two columns, which is the 6d of the inverse rotation.)
* Euler angles (*B, 3): ``R = Rx(a) Ry(b) Rz(c)``, intrinsic x, y', z'', which is robomimic's ``rot_euler`` ("XYZ");
  results have a and c in [-pi, pi] and b in [-pi/2, pi/2]. At b = +-pi/2 only a +- c is determined.

The pose with position p and rotation R, relative to the pose with position q and rotation S, is p' and R':

    in its frame (Chi et al., UMI, RSS 2024, arXiv:2402.10329)    p' = S^T (p - q)    R' = S^T R
    along the world's axes                                        p' = p - q          R' = R S^T

Pose commands of an end effector are relative, in a controller's units, and determine goal poses. As in robosuite's
``OSC_POSE``, a command u in [low, high] is a motion ``m = (u - mid(u)) * scale + mid(m)``; for a hand at position p
with rotation R and commands in a frame F, the goal is

    p' = p + F m_pos        R' = exp(F m_rot) R
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

_TINY = 1e-9
"""For smaller x, sin(x) equals x in floating point."""


def axis_angle_to_quaternion(axis_angle: Tensor) -> Tensor:
    """Convert axis-angle (*B, 3) to a quaternion (*B, 4)."""
    angle = axis_angle.norm(dim=-1, keepdim=True)
    tiny = angle < _TINY
    divisor = torch.where(tiny, 1.0, angle)
    factor = torch.where(tiny, 0.5, (0.5 * divisor).sin() / divisor)
    return _positive(torch.cat((axis_angle * factor, (0.5 * angle).cos()), dim=-1))


def quaternion_to_axis_angle(quaternion: Tensor) -> Tensor:
    """Convert a quaternion (*B, 4), of any length but 0, to axis-angle (*B, 3)."""
    unit = _positive(normalize(quaternion, dim=-1))
    vector, real = unit[..., :3], unit[..., 3:]
    sine = vector.norm(dim=-1, keepdim=True)  # sine of half the angle
    tiny = sine < _TINY
    # unlike arccos, arctan2 is exact at 0 and at pi
    angle = 2.0 * torch.atan2(sine, real)
    return vector * torch.where(tiny, 2.0, angle / torch.where(tiny, 1.0, sine))


def quaternion_to_matrix(quaternion: Tensor) -> Tensor:
    """Convert a quaternion (*B, 4), of any length but 0, to a matrix (*B, 3, 3)."""
    x, y, z, w = normalize(quaternion, dim=-1).unbind(-1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def matrix_to_quaternion(matrix: Tensor) -> Tensor:
    """Convert a matrix (*B, 3, 3) to a quaternion (*B, 4)."""
    (m00, m01, m02), (m10, m11, m12), (m20, m21, m22) = (
        row.unbind(-1) for row in matrix.unbind(-2)
    )
    # Row i is four times the quaternion times its i-th number (x, y, z or w). The rows differ only in length, and the
    # longest row has the smallest rounding errors.
    products = (
        (1 + m00 - m11 - m22, m01 + m10, m02 + m20, m21 - m12),
        (m01 + m10, 1 - m00 + m11 - m22, m12 + m21, m02 - m20),
        (m02 + m20, m12 + m21, 1 - m00 - m11 + m22, m10 - m01),
        (m21 - m12, m02 - m20, m10 - m01, 1 + m00 + m11 + m22),
    )
    candidates = torch.stack([torch.stack(row, dim=-1) for row in products], dim=-2)
    longest = candidates.diagonal(dim1=-2, dim2=-1).argmax(dim=-1)
    index = longest[..., None, None].expand(*longest.shape, 1, 4)
    return _positive(normalize(candidates.gather(-2, index).squeeze(-2), dim=-1))


def axis_angle_to_matrix(axis_angle: Tensor) -> Tensor:
    """Convert axis-angle (*B, 3) to a matrix (*B, 3, 3)."""
    return quaternion_to_matrix(axis_angle_to_quaternion(axis_angle))


def matrix_to_axis_angle(matrix: Tensor) -> Tensor:
    """Convert a matrix (*B, 3, 3) to axis-angle (*B, 3)."""
    return quaternion_to_axis_angle(matrix_to_quaternion(matrix))


def matrix_to_rotation_6d(matrix: Tensor) -> Tensor:
    """Convert a matrix (*B, 3, 3) to rotation-6d (*B, 6)."""
    return matrix[..., :2, :].flatten(start_dim=-2)


def rotation_6d_to_matrix(rotation_6d: Tensor) -> Tensor:
    """Convert any numbers (*B, 6), such as a network's output, to a matrix (*B, 3, 3) by Gram-Schmidt.

    If the two halves are parallel or zero, no such rotation exists, and the result is not a rotation.
    """
    first, second = rotation_6d[..., :3], rotation_6d[..., 3:]
    x = normalize(first, dim=-1)
    y = normalize(second - (x * second).sum(dim=-1, keepdim=True) * x, dim=-1)
    return torch.stack((x, y, torch.linalg.cross(x, y, dim=-1)), dim=-2)


def axis_angle_to_rotation_6d(axis_angle: Tensor) -> Tensor:
    """Convert axis-angle (*B, 3) to rotation-6d (*B, 6)."""
    return matrix_to_rotation_6d(axis_angle_to_matrix(axis_angle))


def rotation_6d_to_axis_angle(rotation_6d: Tensor) -> Tensor:
    """Convert any numbers (*B, 6), as in :func:`rotation_6d_to_matrix`, to axis-angle (*B, 3)."""
    return matrix_to_axis_angle(rotation_6d_to_matrix(rotation_6d))


def euler_to_matrix(euler: Tensor) -> Tensor:
    """Convert Euler angles (*B, 3) to a matrix (*B, 3, 3)."""
    (sa, sb, sc), (ca, cb, cc) = euler.sin().unbind(-1), euler.cos().unbind(-1)
    rows = (
        (cb * cc, -cb * sc, sb),
        (ca * sc + sa * sb * cc, ca * cc - sa * sb * sc, -sa * cb),
        (sa * sc - ca * sb * cc, sa * cc + ca * sb * sc, ca * cb),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def matrix_to_euler(matrix: Tensor) -> Tensor:
    """Convert a matrix (*B, 3, 3) to Euler angles (*B, 3)."""
    (m00, m01, m02), (m10, m11, m12), (m20, m21, m22) = (
        row.unbind(-1) for row in matrix.unbind(-2)
    )
    a = torch.atan2(-m12, m22)
    b = torch.atan2(m02, torch.hypot(m00, m01))
    # computed from the second row of Rx(-a) R, so that c matches a even if a is only rounding noise
    sine, cosine = a.sin(), a.cos()
    c = torch.atan2(cosine * m10 + sine * m20, cosine * m11 + sine * m21)
    return torch.stack((a, b, c), dim=-1)


def _positive(quaternion: Tensor) -> Tensor:
    """Return q or -q, which are the same rotation, so that w >= 0."""
    return torch.where(quaternion[..., 3:] < 0, -quaternion, quaternion)


class RotationForm(NamedTuple):
    """Representation of a rotation as a vector of numbers.

    Attributes:
        size: number of values.
        to_matrix: conversion from (*B, size) to (*B, 3, 3).
        from_matrix: conversion from (*B, 3, 3) to (*B, size).
    """

    size: int
    to_matrix: Callable[[Tensor], Tensor]
    from_matrix: Callable[[Tensor], Tensor]


FORMS = {
    "axis_angle": RotationForm(3, axis_angle_to_matrix, matrix_to_axis_angle),
    "euler": RotationForm(3, euler_to_matrix, matrix_to_euler),
    "quaternion": RotationForm(4, quaternion_to_matrix, matrix_to_quaternion),
    "matrix": RotationForm(
        9, lambda x: x.reshape(*x.shape[:-1], 3, 3), lambda x: x.flatten(start_dim=-2)
    ),
    "rotation_6d": RotationForm(6, rotation_6d_to_matrix, matrix_to_rotation_6d),
}
"""Representations of rotations by name; a matrix is flattened row by row."""


class Pose(NamedTuple):
    """Poses: positions (*B, 3) and rotation matrices (*B, 3, 3)."""

    position: Tensor
    rotation: Tensor


def relative_in_frame(pose: Pose, base: Pose) -> Pose:
    """Return ``pose`` relative to ``base``, in the frame of ``base``."""
    back = base.rotation.transpose(-1, -2)
    return Pose(_turned(back, pose.position - base.position), back @ pose.rotation)


def absolute_from_frame(pose: Pose, base: Pose) -> Pose:
    """Invert :func:`relative_in_frame`."""
    turned = _turned(base.rotation, pose.position)
    return Pose(base.position + turned, base.rotation @ pose.rotation)


def relative_in_world(pose: Pose, base: Pose) -> Pose:
    """Return ``pose`` relative to ``base``, along the axes of the world: the motion from ``base``."""
    turn = pose.rotation @ base.rotation.transpose(-1, -2)
    return Pose(pose.position - base.position, turn)


def absolute_from_world(pose: Pose, base: Pose) -> Pose:
    """Invert :func:`relative_in_world`."""
    return Pose(base.position + pose.position, pose.rotation @ base.rotation)


def _turned(matrix: Tensor, vectors: Tensor) -> Tensor:
    return (matrix @ vectors[..., None]).squeeze(-1)


@dataclass(frozen=True)
class CommandRange:
    """Limits of a controller's pose commands, and the motions that they mean.

    Attributes:
        low, high: (6,) limits to which commands are clipped.
        motion_low, motion_high: (6,) motion at these limits: 3 numbers in metres, then 3 in radians.
    """

    low: Tensor
    high: Tensor
    motion_low: Tensor
    motion_high: Tensor

    def clipped(self, commands: Tensor) -> Tensor:
        """Clip commands (*B, 6) to the limits."""
        return torch.minimum(torch.maximum(commands, self.low), self.high)

    def to_motion(self, commands: Tensor) -> Tensor:
        """Convert commands (*B, 6) to motions in metres and radians."""
        share = (self.clipped(commands) - self.low) / (self.high - self.low)
        return self.motion_low + share * (self.motion_high - self.motion_low)

    def to_commands(self, motion: Tensor) -> Tensor:
        """Convert motions (*B, 6) in metres and radians to commands, without clipping; inverts :meth:`to_motion`."""
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

    Commands exceed the limits if a goal is too far away.
    """
    back = hands.frame.transpose(-1, -2)
    turn = matrix_to_axis_angle(rotation @ hands.rotation.transpose(-1, -2))
    motion = (_turned(back, position - hands.position), _turned(back, turn))
    return limits.to_commands(torch.cat(motion, dim=-1))
