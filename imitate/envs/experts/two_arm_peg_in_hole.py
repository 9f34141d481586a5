"""Expert of TwoArmPegInHole: one arm pushes its peg through the hole in the other arm's plate."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import OPEN, ExpertLayout, rotated, tilted
from imitate.envs.experts.two_arms import TwoArmExpert, seen_by

_AHEAD_M = 0.22  # distance of the peg's centre from the plate while they are aligned
_THROUGH_M = 0.05  # the same distance at the end
_CLEAR_M = 0.17  # distance at which the peg's tip does not touch the plate during sideways motion
_HOLE = np.array([0.05, 0.08, 0.95])  # position at which the second arm holds the plate's hole
_STRAIGHT = 0.15  # angle between peg and hole, in rad, at which the peg goes in
_CENTRED_M = 0.02


class _View(NamedTuple):
    """Quantities that determine the action, in m and rad."""

    axis: Array  # unit vector of the peg, from the hand to the tip
    ahead: float  # distance from the peg's centre to the hole, along the peg
    aside: Array  # sideways displacement (3,) until the peg's axis passes through the hole
    turn: Array  # rotation vector from the peg's axis to the hole's
    to_place: Array  # displacement (3,) of the plate


class TwoArmPegInHoleExpert(TwoArmExpert):
    """Aligns peg and plate at a distance, brings the peg in front of the hole, and pushes it in."""

    env_name = "TwoArmPegInHole"
    layout = ExpertLayout(arms=2, grippers=False)
    horizon = 300
    pace = 1.2

    def act(self, obs: Obs) -> Array:
        """Return the action (A,) for an observation."""
        view = self._look(obs)
        off = float(np.linalg.norm(view.aside))
        straight = float(np.clip((2 * _STRAIGHT - np.linalg.norm(view.turn)) / _STRAIGHT, 0.0, 1.0))
        centred = float(np.clip((2 * _CENTRED_M - off) / _CENTRED_M, 0.0, 1.0))
        enters = straight * centred
        goal = enters * _THROUGH_M + (1.0 - enters) * _AHEAD_M
        clear = float(np.clip((view.ahead - _CLEAR_M) / 0.03, 0.0, 1.0))
        course = max(clear, enters) * view.aside + (view.ahead - goal) * view.axis
        peg, plate = seen_by(obs, 0), seen_by(obs, 1)
        straight_peg = tilted(peg["robot0_eef_quat"], view.turn)
        straight_plate = tilted(plate["robot0_eef_quat"], -view.turn)
        return self.both(
            self.move(peg, course, OPEN, posture=straight_peg),
            self.move(plate, view.to_place, OPEN, posture=straight_plate),
        )

    def _look(self, obs: Obs) -> _View:
        hole, hole_quat, peg_to_hole, peg_quat = np.split(obs["object"][:14], [3, 7, 10])
        axis = rotated(peg_quat, np.array([0.0, 0.0, 1.0]))
        normal = -rotated(hole_quat, np.array([0.0, 0.0, 1.0]))
        # vector from the plate's edge to its hole
        to_middle = rotated(hole_quat, np.array([0.1, 0.0, 0.0]))
        to_centre = peg_to_hole + to_middle + self.style.grasp_offset_m
        ahead = float(to_centre @ axis)
        about = np.cross(axis, normal)
        length = float(np.linalg.norm(about))
        angle = math.atan2(length, float(axis @ normal))
        return _View(
            axis=axis,
            ahead=ahead,
            aside=to_centre - ahead * axis,
            turn=about / max(length, 1e-9) * angle,
            to_place=_HOLE - hole - to_middle,
        )
