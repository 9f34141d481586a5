"""Expert of PickPlaceCan: it carries the can into its bin, the far one on the right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, opening

_BIN_CENTRE = np.array([0.1975, 0.4025])
_BIN_HALF = np.array([0.07, 0.09])  # region in which the can is released, inside the bin's walls
_CARRY_M = 1.02  # height of the can's centre above the floor while it passes over the walls
_LET_GO_M = 0.885
_GRASP_ABOVE_CENTRE_M = 0.01
_TOUCHING_M = 0.068
_HELD_M = 0.062
_UP = np.array([0.0, 0.0, 1.0])


class _View(NamedTuple):
    """Quantities that determine the action, in m."""

    can: Array
    width: float
    to_can: Array
    to_bin: Array  # horizontal vector (2,)
    in_bin: bool
    well_in: bool  # the same with a margin from the edges of the region


class PickPlaceCanExpert(Expert):
    """Descends to the can, closes, rises above the walls, moves over the bin, lowers, releases, and rises."""

    env_name = "PickPlaceCan"
    horizon = 400
    pace = 1.5
    carry_steps = 60
    clearance_m = 0.09

    def act(self, obs: Obs) -> Array:
        """Return the action (7,) for an observation."""
        view = self._look(obs)
        if view.in_bin and view.can[2] < _LET_GO_M:
            rise = float(np.clip((view.width - _HELD_M) / 0.012, 0.0, 1.0))
            return self.move(obs, 0.15 * rise * _UP, OPEN)
        sideways, vertical = float(np.linalg.norm(view.to_can[:2])), abs(float(view.to_can[2]))
        reached = sideways < 0.012 and vertical < 0.015
        closing = view.width < 0.075 and sideways < 0.022 and vertical < 0.03
        if not (reached or closing):
            return self.approach(obs, view.to_can)
        return self._carry(obs, view)

    def _look(self, obs: Obs) -> _View:
        can: Array = obs["object"][7:10]
        offset = self.style.grasp_offset_m + _GRASP_ABOVE_CENTRE_M * _UP
        to_bin = _BIN_CENTRE - can[:2]
        return _View(
            can=can,
            width=opening(obs),
            to_can=can + offset - obs["robot0_eef_pos"],
            to_bin=to_bin,
            in_bin=bool((np.abs(to_bin) < _BIN_HALF).all()),
            well_in=bool((np.abs(to_bin) < _BIN_HALF - self.style.margin_m).all()),
        )

    def _carry(self, obs: Obs, view: _View) -> Array:
        """Close, rise as the fingers grip the can, move sideways when it is above the walls, lower over the bin."""
        grip = float(np.clip((_TOUCHING_M - view.width) / (_TOUCHING_M - _HELD_M), 0.0, 1.0))
        sinks = view.in_bin and (view.well_in or view.can[2] < _CARRY_M - 0.06)
        height = _LET_GO_M - 0.02 if sinks else _CARRY_M
        free = float(np.clip((view.can[2] - (_CARRY_M - 0.06)) / 0.04, 0.0, 1.0))
        goal = np.array([*(free * view.to_bin), height - view.can[2]])
        return self.move(obs, (1.0 - grip) * view.to_can + grip * goal, CLOSE)
