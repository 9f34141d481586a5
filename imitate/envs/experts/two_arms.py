"""Common code of the experts of two arms that face each other."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import Expert, ExpertLayout, turned

BASE_YAWS = (math.pi / 2, -math.pi / 2)
"""Turn of the arms' bases in robosuite's configuration ``opposed``, in rad."""
_SEEN = ("eef_pos", "eef_quat", "gripper_qpos")


class TwoArmExpert(Expert):
    """Expert of two Panda arms on opposite sides of a table."""

    layout: ClassVar[ExpertLayout] = ExpertLayout(arms=2)
    clearance_m = None

    def both(self, first: Array, second: Array) -> Array:
        """Join the arms' actions, (7,) each in the world's axes, to the action (A,), in each base's own axes."""
        return np.concatenate(
            [
                self._in_base(action, yaw)
                for action, yaw in zip((first, second), BASE_YAWS, strict=True)
            ]
        )

    def _in_base(self, action: Array, yaw: float) -> Array:
        motion = turned(action[:6].reshape(2, 3), -yaw).reshape(6)
        return np.concatenate([motion, action[6 : self.layout.arm_size]])


def seen_by(obs: Obs, arm: int) -> Obs:
    """Return an arm's part of an observation, under the names of a single arm."""
    return {
        f"robot0_{key}": obs[f"robot{arm}_{key}"] for key in _SEEN if f"robot{arm}_{key}" in obs
    }
