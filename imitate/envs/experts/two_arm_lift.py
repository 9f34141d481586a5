"""Expert of TwoArmLift: it raises a pot by its two handles."""

from __future__ import annotations

import math

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import CLOSE, nearest_turn, opening
from imitate.envs.experts.two_arms import BASE_YAWS, TwoArmExpert, seen_by

_TOUCHING_M = 0.035
_HELD_M = 0.025  # the handles are 2 cm thick
_SLOW = 0.6  # fraction of the pace at which the pot is raised


class TwoArmLiftExpert(TwoArmExpert):
    """Each arm descends to its handle and closes; when both hold it, both rise."""

    env_name = "TwoArmLift"
    horizon = 300
    pace = 1.2
    carry_steps = 25

    def act(self, obs: Obs) -> Array:
        """Return the action (A,) for an observation."""
        grips = [self._grip(obs, arm) for arm in (0, 1)]
        heights = [float(obs[f"robot{arm}_eef_pos"][2]) for arm in (0, 1)]
        level = sum(heights) / 2
        actions = []
        for arm in (0, 1):
            to_handle, yaw, near = self._aim(obs, arm)
            if not near:
                actions.append(self.approach(seen_by(obs, arm), to_handle, yaw=yaw))
                continue
            rise = np.array([0.0, 0.0, _SLOW * 0.05 * min(grips) + level - heights[arm]])
            course = (1.0 - grips[arm]) * to_handle + min(grips) * rise
            actions.append(self.move(seen_by(obs, arm), course, CLOSE, yaw=yaw))
        return self.both(*actions)

    def _aim(self, obs: Obs, arm: int) -> tuple[Array, float, bool]:
        """Return the displacement (3,) to an arm's handle, the yaw across it, and whether it is reached."""
        handle = obs["object"][7 + 3 * arm : 10 + 3 * arm]
        outward = handle - obs["object"][:3]
        to_handle: Array = handle + self.style.grasp_offset_m - obs[f"robot{arm}_eef_pos"]
        across = math.atan2(outward[1], outward[0]) + math.pi / 2
        yaw = nearest_turn(across, math.pi, near=BASE_YAWS[arm])
        sideways, vertical = float(np.linalg.norm(to_handle[:2])), abs(float(to_handle[2]))
        closing = opening(obs, arm) < 0.075 and sideways < 0.025 and vertical < 0.025
        return to_handle, yaw, closing or (sideways < 0.01 and vertical < 0.012)

    def _grip(self, obs: Obs, arm: int) -> float:
        """Return an arm's grip on its handle, from 0 for none to 1 if the fingers have gripped it."""
        near = self._aim(obs, arm)[2]
        width = opening(obs, arm)
        return float(near) * float(
            np.clip((_TOUCHING_M - width) / (_TOUCHING_M - _HELD_M), 0.0, 1.0)
        )
