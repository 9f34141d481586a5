"""Experts of robosuite's tasks for two arms that face each other."""

import math
from typing import ClassVar, NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import (
    CLOSE,
    OPEN,
    Expert,
    ExpertLayout,
    gripper_yaw,
    nearest_turn,
    opening,
    rotated,
    tilted,
    turned,
)

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


_LIFT_TOUCHING_M = 0.035  # finger distance below which a closing hand begins to hold a handle
_LIFT_HELD_M = 0.025  # finger distance below which a hand holds a handle, which is 2 cm thick
_SLOW = 0.6  # speed at which the pot is raised, as a fraction of the usual speed


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
        """Return the displacement (3,) to an arm's handle, the yaw across the handle, and True if it is reached."""
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
            np.clip((_LIFT_TOUCHING_M - width) / (_LIFT_TOUCHING_M - _LIFT_HELD_M), 0.0, 1.0)
        )


_AHEAD_M = 0.22  # distance of the peg's centre from the plate while they are aligned
_THROUGH_M = 0.05  # distance of the peg's centre from the plate at the end
_CLEAR_M = 0.17  # distance at which the peg's tip does not touch the plate during sideways motion
_HOLE = np.array([0.05, 0.08, 0.95])  # position at which the second arm holds the plate's hole
_STRAIGHT = 0.15  # angle between peg and hole, in rad, at which the peg goes in
_CENTRED_M = 0.02


class _PegView(NamedTuple):
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

    def _look(self, obs: Obs) -> _PegView:
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
        return _PegView(
            axis=axis,
            ahead=ahead,
            aside=to_centre - ahead * axis,
            turn=about / max(length, 1e-9) * angle,
            to_place=_HOLE - hole - to_middle,
        )


_HANDOVER_TOUCHING_M = 0.05  # finger distance below which a closing hand begins to hold the handle
_HANDOVER_HELD_M = 0.043  # finger distance below which a hand holds the handle (3 to 4 cm thick)
_APART_M = 0.04  # distance from the handle's middle to each arm's grasp
_MEETING = np.array([0.0, 0.0, 1.05])  # position of the handle's middle, between the arms
_UP = np.array([0.0, 0.0, 1.0])


class _HandoverView(NamedTuple):
    """Quantities that determine the action, in m and rad."""

    middle: Array
    along: Array  # horizontal unit vector of the handle, away from the first arm
    grips: list[float]  # 0 if the hand does not hold the handle, 1 if the fingers have gripped it
    ways: list[Array]  # displacement (3,) from each hand to its grasp on the handle
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

    def _look(self, obs: Obs) -> _HandoverView:
        middle, axis = obs["object"][7:10], rotated(obs["object"][3:7], _UP)
        axis = axis * (1.0 if axis[1] >= 0 else -1.0)
        along = np.array([axis[0], axis[1], 0.0]) / max(float(np.linalg.norm(axis[:2])), 1e-9)
        ways, grips, yaws = [], [], []
        for arm, side in ((0, -1.0), (1, 1.0)):
            place = middle + side * _APART_M * axis + self.style.grasp_offset_m
            ways.append(place - obs[f"robot{arm}_eef_pos"])
            width = opening(obs, arm)
            near = float(np.linalg.norm(ways[-1])) < 0.04
            firm = float(
                np.clip(
                    (_HANDOVER_TOUCHING_M - width) / (_HANDOVER_TOUCHING_M - _HANDOVER_HELD_M),
                    0.0,
                    1.0,
                )
            )
            grips.append(near * firm)
            angle = math.atan2(along[1], along[0])
            yaws.append(nearest_turn(angle, math.pi, near=BASE_YAWS[arm]))
        return _HandoverView(middle, along, grips, ways, yaws)

    def _give(self, obs: Obs, view: _HandoverView) -> Array:
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

    def _take(self, obs: Obs, view: _HandoverView) -> Array:
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
