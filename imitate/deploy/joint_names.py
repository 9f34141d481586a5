"""Compare the joint names of a policy with those of its robot."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from imitate.deploy.robot import Robot
from imitate.errors import UserError

_logger = logging.getLogger(__name__)


def check_names(robot: Robot, policy: Any) -> None:
    """Compare the order of joints before anything moves, if policy and robot both have names.

    Completely different names are reported but no error, because names in LeRobot have changed between releases.

    Raises:
        UserError: the policy learned with the same names in another order, or with only some of them.
    """
    trained: Mapping[str, Sequence[str]] = getattr(policy, "number_names", None) or {}
    keys = (*getattr(policy, "obs_keys", ()), "actions")
    own = {**robot.observation_names, "actions": robot.action_names or ()}
    for key in keys:
        there, here = tuple(trained.get(key, ())), tuple(own.get(key, ()))
        if not there or not here or there == here:
            continue
        words = (
            f"'{key}' is ({', '.join(here)}) of the robot and was ({', '.join(there)}) in training"
        )
        if set(there) & set(here):
            raise UserError(
                f"{words}: use the robot of the data, or give its numbers in that order"
            )
        _logger.warning("%s: make sure that the order is the same", words)
