"""Expert of TwoArmHandover: one arm picks a hammer up, and the other takes it over."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import CLOSE, OPEN, gripper_yaw, nearest_turn, opening, rotated
from imitate.envs.experts.two_arms import BASE_YAWS, TwoArmExpert, seen_by

_TOUCHING_M = 0.05
_HELD_M = 0.043  # the handle is 3 to 4 cm thick
_APART_M = 0.04  # distance from the handle's middle to each arm's grasp
_MEETING = np.array([0.0, 0.0, 1.05])  # position of the handle's middle, between the arms
_UP = np.array([0.0, 0.0, 1.0])


class _View(NamedTuple):
    """Quantities that determine the action, in m and rad."""

    middle: Array
    along: Array  # horizontal unit vector of the handle, away from the first arm
    grips: list[float]  # 0 if the hand does not hold the handle, 1 if the fingers have gripped it
    ways: list[Array]  # displacement (3,) from each hand to its place on the handle
    yaws: list[float]  # yaws that align each arm's fingers across the handle


class TwoArmHandoverExpert(TwoArmExpert):
    """The first arm brings the handle between the arms; the second grasps its free end; the first releases it."""

    env_name = "TwoArmHandover"
    horizon = 500
    pace = 1.3
    carry_steps = 60

    def act(self, obs: Obs) -> Array:
        """Return the action (A,) for an observation."""
        view = self._look(obs)
        return self.both(self._give(obs, view), self._take(obs, view))

    def _look(self, obs: Obs) -> _View:
        middle, axis = obs["object"][7:10], rotated(obs["object"][3:7], _UP)
        axis = axis * (1.0 if axis[1] >= 0 else -1.0)
        along = np.array([axis[0], axis[1], 0.0]) / max(float(np.linalg.norm(axis[:2])), 1e-9)
        ways, grips, yaws = [], [], []
        for arm, side in ((0, -1.0), (1, 1.0)):
            place = middle + side * _APART_M * axis + self.style.grasp_offset_m
            ways.append(place - obs[f"robot{arm}_eef_pos"])
            width = opening(obs, arm)
            near = float(np.linalg.norm(ways[-1])) < 0.04
            firm = float(np.clip((_TOUCHING_M - width) / (_TOUCHING_M - _HELD_M), 0.0, 1.0))
            grips.append(near * firm)
            angle = math.atan2(along[1], along[0])
            yaws.append(nearest_turn(angle, math.pi, near=BASE_YAWS[arm]))
        return _View(middle, along, grips, ways, yaws)

    def _give(self, obs: Obs, view: _View) -> Array:
        """Pick the handle up, offer its free end at the meeting place, release it, draw back."""
        seen, way, yaw = seen_by(obs, 0), view.ways[0], view.yaws[0]
        if view.grips[1] >= 1.0:
            away = float(np.clip((opening(obs) - 0.05) / 0.02, 0.0, 1.0))
            return self.move(seen, away * np.array([0.0, -0.1, 0.1]), OPEN, yaw=yaw)
        near, width = float(np.linalg.norm(way)), opening(obs)
        if not (near < 0.014 or (width < 0.075 and near < 0.04)):
            return self.approach(seen, way, yaw=yaw)
        to_meeting = _MEETING - view.middle
        free = float(np.clip((view.middle[2] - 0.88) / 0.04, 0.0, 1.0))
        misfit = math.pi / 2 - math.atan2(view.along[1], view.along[0])
        course = np.array([*(free * to_meeting[:2]), to_meeting[2]])
        grip = view.grips[0]
        turn = gripper_yaw(seen) + free * grip * misfit
        return self.move(seen, (1.0 - grip) * way + grip * course, CLOSE, yaw=turn)

    def _take(self, obs: Obs, view: _View) -> Array:
        """Wait above the meeting place; when the handle is there, descend to its free end and hold it."""
        seen, way = seen_by(obs, 1), view.ways[1]
        near, width = float(np.linalg.norm(way)), opening(obs, 1)
        if near < 0.014 or (width < 0.075 and near < 0.04):
            return self.move(seen, (1.0 - view.grips[1]) * way, CLOSE, yaw=view.yaws[1])
        off = float(np.linalg.norm(view.middle - _MEETING))
        there = float(np.clip((0.06 - off) / 0.03, 0.0, 1.0)) * float(view.grips[0] > 0.5)
        waiting: Array = _MEETING + np.array([0.0, 0.10, 0.12]) - seen["robot0_eef_pos"]
        if there > 0.0:
            return self.approach(seen, way, yaw=view.yaws[1])
        return self.move(seen, waiting, OPEN, yaw=BASE_YAWS[1])
