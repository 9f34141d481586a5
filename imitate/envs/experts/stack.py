"""Expert of Stack: it puts the red cube (A) on the green one (B)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, gripper_yaw, opening, square_yaw

_TOUCHING_M = 0.062
_HELD_M = 0.054
_RESTING_M = 0.045  # distance between the centres when A is on B: half of 4 cm plus half of 5 cm
_ALIGNED_M = 0.012  # horizontal distance of the centres at which A is lowered
_UP = np.array([0.0, 0.0, 1.0])


class _View(NamedTuple):
    """Quantities that determine the action, in m."""

    width: float
    to_a: Array
    a_to_b: Array  # horizontal vector (2,)
    above_b: float  # height of A's centre above B's centre
    gap: float  # horizontal distance of the centres
    yaw: float  # yaw of the gripper, flat against the cube that it approaches


class StackExpert(Expert):
    """Grasps A, carries it above B's top, lowers it, releases it, and rises."""

    env_name = "Stack"
    horizon = 300
    pace = 1.3
    carry_steps = 25
    slack_m, steepness = 0.006, 6.0  # a finger that descends on the cube gets stuck there

    def act(self, obs: Obs) -> Array:
        """Return the action (7,) for an observation."""
        view = self._look(obs)
        sideways, vertical = float(np.linalg.norm(view.to_a[:2])), abs(float(view.to_a[2]))
        if view.gap < _ALIGNED_M + 0.003 and 0.03 < view.above_b < _RESTING_M + 0.005:
            return self._let_go(obs, view)
        if view.gap < 0.03 and 0.03 < view.above_b < _RESTING_M + 0.005 and view.width > 0.06:
            return self.move(obs, 0.1 * _UP, OPEN, yaw=view.yaw)
        reached = sideways < 0.012 and vertical < 0.012
        closing = view.width < 0.075 and sideways < 0.022 and vertical < 0.022
        if not (reached or closing):
            return self.approach(obs, view.to_a, yaw=square_yaw(obs["object"][3:7]))
        return self._carry(obs, view)

    def limited(self, command: Array, limit: float) -> Array:
        """Limit sideways and vertical motion separately, so that the height is kept during a long sideways motion."""
        sideways = min(1.0, limit / max(float(np.linalg.norm(command[:2])), 1e-9))
        return np.array([*(sideways * command[:2]), float(np.clip(command[2], -limit, limit))])

    def _look(self, obs: Obs) -> _View:
        a, b = obs["object"][0:3], obs["object"][7:10]
        a_to_b = b[:2] - a[:2]
        return _View(
            width=opening(obs),
            to_a=a + self.style.grasp_offset_m - obs["robot0_eef_pos"],
            a_to_b=a_to_b,
            above_b=float(a[2] - b[2]),
            gap=float(np.linalg.norm(a_to_b)),
            yaw=square_yaw(obs["object"][3:7], near=gripper_yaw(obs)),
        )

    def _carry(self, obs: Obs, view: _View) -> Array:
        """Close, rise as the fingers grip the cube, move sideways when it is above B's top, lower when it is over B."""
        grip = float(np.clip((_TOUCHING_M - view.width) / (_TOUCHING_M - _HELD_M), 0.0, 1.0))
        lift = float(np.clip(3.0 * (view.gap - _ALIGNED_M), 0.0, 0.03))
        free = (
            float(np.clip((view.above_b - 0.04) / 0.02, 0.0, 1.0)) if view.gap > _ALIGNED_M else 1.0
        )
        goal = np.array([*(free * view.a_to_b), _RESTING_M - 0.015 + 1.5 * lift - view.above_b])
        return self.move(obs, (1.0 - grip) * view.to_a + grip * goal, CLOSE, yaw=view.yaw)

    def _let_go(self, obs: Obs, view: _View) -> Array:
        rise = float(np.clip((view.width - 0.05) / 0.02, 0.0, 1.0))
        return self.move(obs, 0.1 * rise * _UP, OPEN, yaw=view.yaw)
