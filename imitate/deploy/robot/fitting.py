"""Comparison of a robot with its policy: sizes before the robot is connected, values before it moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from imitate.deploy.robot.robot import Robot
from imitate.deploy.schema import Schema
from imitate.errors import UserError


def check_sizes(robot: Robot, schema: Schema | None, resizes: bool) -> None:
    """Compare the sizes of actions and observations, as far as the robot provides them before it is connected.

    Args:
        robot: robot that is not connected yet.
        schema: schema of the policy, or None if a server does not report it.
        resizes: true if the policy accepts images of other sizes.

    Raises:
        UserError: the sizes differ.
    """
    if schema is None:
        return
    limits = _attribute(robot, "limits")
    if limits is not None and limits.size != schema.action_dim:
        raise UserError(
            f"the robot takes actions of {limits.size} numbers, but the policy returns {schema.action_dim}: use the "
            "robot of the demonstrations"
        )
    for key, shape in (_attribute(robot, "observation_shapes") or {}).items():
        wanted = schema.observations.get(key)
        if wanted is None or tuple(shape) == tuple(wanted.shape):
            continue
        if wanted.kind == "low_dim":
            if np.prod(shape) != np.prod(wanted.shape):
                raise UserError(
                    f"the observation '{key}' of the robot has {int(np.prod(shape))} numbers, "
                    f"but the policy was trained with {int(np.prod(wanted.shape))}: use the robot of the demonstrations"
                )
        elif not resizes and len(shape) == len(wanted.shape):
            raise UserError(
                f"the image '{key}' of the robot is {_size(shape)}, but the policy was trained with "
                f"{_size(wanted.shape)}: use --resize if the training images were "
                "resized in this way; otherwise let observe() return that size"
            )


def _attribute(robot: Robot, name: str) -> Any:
    """Return an attribute of a robot, or None if it is only available after connecting."""
    try:
        return getattr(robot, name, None)
    except Exception:
        return None


def _size(shape: Any) -> str:
    return " x ".join(map(str, shape))
