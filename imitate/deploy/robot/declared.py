"""Check the attributes of a robot's class: limits, rates, names and shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Robot
from imitate.errors import UserError


def check_declared(robot: Robot) -> None:
    """Check the attributes of a connected robot before they are used.

    Raises:
        UserError: an attribute does not fit the description in :class:`Robot`.
    """
    kind = type(robot).__name__
    limits = getattr(robot, "limits", None)
    if not isinstance(limits, ActionLimits):
        raise UserError(f"{kind}.limits is {limits!r:.80}; wanted ActionLimits(low=..., high=...)")
    for name in ("rate_hz", "camera_hz"):
        _check_rate(f"{kind}.{name}", getattr(robot, name, None))
    shapes = getattr(robot, "observation_shapes", None)
    if not isinstance(shapes, Mapping) or not all(map(_is_shape, shapes.values())):
        raise UserError(
            f"{kind}.observation_shapes is {shapes!r:.200}; wanted a shape for each observation, such as "
            '{"joints": (6,), "front_image": (240, 320, 3)}'
        )
    if robot.action_names is not None:
        _check_names(f"{kind}.action_names", robot.action_names, limits.size, "an action")
    for key, names in robot.observation_names.items():
        size = math.prod(shapes[key]) if key in shapes else None
        _check_names(f"{kind}.observation_names['{key}']", names, size, f"'{key}'")


def _check_rate(name: str, rate: Any) -> None:
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and math.isfinite(rate) and rate > 0):
        raise UserError(
            f"{name} is {rate!r}; wanted a number above 0, or None where any rate will do"
        )


def _check_names(name: str, names: Sequence[str], size: int | None, of: str) -> None:
    if isinstance(names, str) or not all(isinstance(word, str) for word in names):
        raise UserError(f"{name} is {names!r:.200}; wanted a tuple of names")
    if size is not None and len(names) != size:
        raise UserError(
            f"{name} has {len(names)} names ({', '.join(names)}), but {of} has {size} "
            "numbers: wanted one for each"
        )


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple | list) and all(isinstance(size, int) for size in shape)
