"""Poses relative to another pose.

A pose with position p and rotation R, relative to one with q and S:

    in its frame (Chi et al., UMI, RSS 2024, arXiv:2402.10329)    p' = S^T (p - q)    R' = S^T R
    along the world's axes                                        p' = p - q          R' = R S^T
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Pose(NamedTuple):
    """Positions (*B, 3) and rotation matrices (*B, 3, 3)."""

    position: Tensor
    rotation: Tensor


def relative_in_frame(pose: Pose, base: Pose) -> Pose:
    """Return the pose in the frame of ``base``."""
    back = base.rotation.transpose(-1, -2)
    return Pose(_turned(back, pose.position - base.position), back @ pose.rotation)


def absolute_from_frame(pose: Pose, base: Pose) -> Pose:
    """Invert :func:`relative_in_frame`."""
    turned = _turned(base.rotation, pose.position)
    return Pose(base.position + turned, base.rotation @ pose.rotation)


def relative_in_world(pose: Pose, base: Pose) -> Pose:
    """Return the motion from ``base`` to the pose, along the axes of the world."""
    turn = pose.rotation @ base.rotation.transpose(-1, -2)
    return Pose(pose.position - base.position, turn)


def absolute_from_world(pose: Pose, base: Pose) -> Pose:
    """Invert :func:`relative_in_world`."""
    return Pose(base.position + pose.position, pose.rotation @ base.rotation)


def _turned(matrix: Tensor, vectors: Tensor) -> Tensor:
    return (matrix @ vectors[..., None]).squeeze(-1)
