"""Expert of robosuite's ToolHang, which puts a hook's rod into a stand, then hangs a wrench on the hook."""

import math
from typing import NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import (
    CLOSE,
    OPEN,
    Expert,
    gripper_down,
    opening,
    rotated,
    rotation_error,
    tilted,
)

_X, _, _UP = np.eye(3)
_NO_TURN = np.array([0.0, 0.0, 0.0, 1.0])

# Positions of the stand, relative to the centre of its base plate.
_TUBE_TOP = np.array([0.0, 0.045, 0.155])
# Positions of the hook, relative to its corner, in its own axes: the arm points to -x, the rod to -z.
_GRIP = np.array([0.0, 0.0, -0.04])  # grasp of the rod's handle
_TIP = np.array([0.0, 0.0, -0.2207])
_PRONG = np.array([-0.0837, 0.0, 0.0037])  # foot of the prong (upright end of the hook's arm)
_INSERTED = np.array([0.0, 0.0, 1.0, 0.0])  # orientation: the arm points away from the robot
# Positions of the wrench, relative to its middle, in its own axes.
_EYE = np.array([-0.0935, 0.0, 0.0])

_LEAN = 0.7  # tilt of the hand on the rod towards the tip, in rad, to relieve the wrist
_TURN = 0.4  # largest commanded turn per step, in rad
_ROD_M = 0.0254  # thickness of the rod's handle
_WRENCH_M = 0.03  # thickness of the wrench's handle
_LOOSE_M = 0.01  # fingers that are open wider than a handle by this distance do not hold it yet
_STRAIGHT = 0.05  # largest error of the rod's orientation, in rad, at which it may enter the tube
_ENTERS_M = 0.0025  # largest distance from the tip to the tube's axis at which the rod may enter
_INSIDE_M = 0.006  # largest distance from the tip to the tube's axis for a rod that is in the tube
_ROD_ABOVE_M = 0.02  # height above the tube to which the tip moves first
_EYE_ABOVE_M = 0.045  # height at which the wrench's handle passes over the prong
_OVER_PRONG_M = 0.003
_AROUND_M = 0.007  # distance of the eye from its final position at which it touches the prong
_THREADED_M = 0.014  # distance of the eye from its final position at which the prong is inside it
_GENTLE_M = 0.012  # largest descent per step, so that the eye does not get stuck on the arm
_RELEASE = 0.65  # tilt of the wrench, in rad, at which it slides onto the arm by itself
_CLEAR_M = 1.12  # height above the floor at which open fingers pass over the hook


class _Grasp(NamedTuple):
    """Grasp of an object: the hand's displacement (3,) to it, and its orientation."""

    to_handle: Array
    posture: Array


class _Wrench(NamedTuple):
    """Position of the wrench relative to the hook's prong, in m and rad."""

    quat: Array
    eye: Array
    place: Array  # displacement (3,) of the eye until the prong is in it, at the current tilt
    tilt: float  # angle of the handle below the horizontal
    inward: Array  # unit vector of the hook's arm, from the prong to the corner
    threaded: bool  # true if the prong is in the eye, or about to be
    settled: float  # 1 if the eye is in place, 0 at the largest threaded distance


class ToolHangExpert(Expert):
    """Inserts the hook, then hangs the wrench.

    The hand grasps the rod by its handle, raises it upright over the tube, lowers it and releases it. It grasps the
    wrench, brings its eye over the prong, lowers it, tips the wrench's handle down and releases it.
    """

    env_name = "ToolHang"
    horizon = 700
    pace = 1.4
    carry_steps = 100
    dense_kwargs = None
    slack_m, steepness = 0.008, 3.0

    def act(self, obs: Obs) -> Array:
        """Return the action (7,) for an observation."""
        inserted, hung = obs["object"][42:].astype(bool)
        if hung:
            return self._withdraw(obs)
        return self._hang(obs) if inserted else self._insert(obs)

    def _withdraw(self, obs: Obs) -> Array:
        """Open the fingers and draw them back along the hand."""
        quat = obs["robot0_eef_quat"]
        back = _ramp(opening(obs), 0.04, 0.06) * 0.1
        return self.move(obs, rotated(quat, -back * _UP), OPEN, posture=quat)

    def _insert(self, obs: Obs) -> Array:
        base, corner, quat = obs["object"][7:10], obs["object"][21:24], obs["object"][24:28]
        hand = obs["robot0_eef_pos"]
        rod = rotated(quat, -_UP)
        grasp = _Grasp(
            to_handle=corner + rotated(quat, _GRIP) + self.style.grasp_offset_m - hand,
            posture=tilted(_along(rod), _LEAN * np.cross(rod, _UP)),
        )
        if not _in_hand(obs, grasp):
            return self.approach(obs, grasp.to_handle, posture=grasp.posture)
        tip, top = corner + rotated(quat, _TIP), base + _TUBE_TOP
        error = rotation_error(_INSERTED, quat)
        off, above = float(np.linalg.norm((top - tip)[:2])), float(tip[2] - top[2])
        inside = above < 0.0 and off < _INSIDE_M
        enters = off < _ENTERS_M and float(np.linalg.norm(error)) < _STRAIGHT
        way = _way(obs, tip, top + _ROD_ABOVE_M * _UP, error)
        if inside or enters:
            way[2] = -0.03
        elif above < 0.0:  # rise before moving sideways
            way[:2] *= _ramp(above, -0.03, 0.0)
            error = error * _ramp(hand[2], 0.9, 1.0)
        return self._carry(obs, way, error, _ROD_M)

    def _hang(self, obs: Obs) -> Array:
        wrench = _look(obs)
        head = rotated(wrench.quat, -_X)
        if wrench.threaded and wrench.tilt > _RELEASE:
            return self._withdraw(obs)
        middle = obs["object"][35:38] + self.style.grasp_offset_m
        grasp = _Grasp(middle - obs["robot0_eef_pos"], _along(head))
        if not _in_hand(obs, grasp):
            return self._fetch(obs, grasp)
        return self._tip(obs, wrench) if wrench.threaded else self._lower(obs, wrench)

    def _fetch(self, obs: Obs, grasp: _Grasp) -> Array:
        """Move from the rod over the hook to the wrench, and descend to it."""
        hand = obs["robot0_eef_pos"]
        rod = obs["object"][21:24] + rotated(obs["object"][24:28], _GRIP)
        if float(np.linalg.norm(hand - rod)) < 0.1:
            return self._withdraw(obs)
        if hand[1] > rod[1] - 0.12:
            free = _ramp(hand[2], _CLEAR_M - 0.04, _CLEAR_M - 0.01)
            way = np.array([*(free * grasp.to_handle[:2]), _CLEAR_M - hand[2]])
            return self.move(obs, way, OPEN, posture=grasp.posture)
        return self.approach(obs, grasp.to_handle, posture=grasp.posture)

    def _lower(self, obs: Obs, wrench: _Wrench) -> Array:
        """Bring the eye over the prong, with the handle on the outer side, and lower it."""
        yaw = math.atan2(-wrench.inward[1], -wrench.inward[0])
        level = np.array([0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2)])
        error = rotation_error(level, wrench.quat)
        off = float(np.linalg.norm((wrench.eye - wrench.place)[:2]))
        above = float(wrench.eye[2] - wrench.place[2])
        high = _ramp(above, 0.6 * _EYE_ABOVE_M, 0.9 * _EYE_ABOVE_M)
        sinks = off < (2.0 - high) * _OVER_PRONG_M and np.linalg.norm(error) < 2 * _STRAIGHT
        height = max(0.0, above - 0.02) if sinks else _EYE_ABOVE_M
        way = _way(obs, wrench.eye, wrench.place + height * _UP, error)
        way[2] = max(way[2], -_GENTLE_M)
        if off > 0.02:  # rise before moving sideways
            free = _ramp(above, 0.5 * _EYE_ABOVE_M, 0.9 * _EYE_ABOVE_M)
            way[:2] *= free
            error = error * free
        return self._carry(obs, way, error, _WRENCH_M)

    def _tip(self, obs: Obs, wrench: _Wrench) -> Array:
        """Tip the handle down about the prong. The hand turns together with it, because the fingers may slip."""
        goal = min(wrench.tilt + 0.2 * wrench.settled, _RELEASE + 0.2)
        axis = np.cross(wrench.inward, _UP)
        yaw = math.atan2(-wrench.inward[1], -wrench.inward[0])
        level = np.array([0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2)])
        error = rotation_error(tilted(level, goal * axis), wrench.quat)
        way = _way(obs, wrench.eye, wrench.place, error)
        way[2] = max(way[2], -_GENTLE_M)
        posture = tilted(_along(wrench.inward), goal * axis)
        turn = rotation_error(posture, obs["robot0_eef_quat"])
        return self._carry(obs, way, turn, _WRENCH_M)

    def _carry(self, obs: Obs, way: Array, turn: Array, thickness_m: float) -> Array:
        """Close the fingers; as they grip the handle, move and turn the hand."""
        held = _ramp(opening(obs), thickness_m + _LOOSE_M, thickness_m + 0.002)
        turn = held * turn / max(1.0, float(np.linalg.norm(turn)) / _TURN)
        return self.move(obs, held * way, CLOSE, posture=tilted(obs["robot0_eef_quat"], turn))


def _look(obs: Obs) -> _Wrench:
    corner, quat = obs["object"][21:24], obs["object"][24:28]
    tool, tool_quat = obs["object"][35:38], obs["object"][38:42]
    eye, inward = tool + rotated(tool_quat, _EYE), rotated(quat, _X)
    tilt = math.asin(float(np.clip(rotated(tool_quat, -_X)[2], -1.0, 1.0)))
    place = corner + rotated(quat, _PRONG) + _around(tilt, inward)
    low = max(_ramp(tilt, 0.1, 0.3), _ramp(float(eye[2] - place[2]), 0.003, 0.0))
    slack = _AROUND_M + low * (_THREADED_M - _AROUND_M)
    astray = float(np.linalg.norm(eye - place))
    return _Wrench(
        quat=tool_quat,
        eye=eye,
        place=place,
        tilt=tilt,
        inward=inward,
        threaded=astray < slack,
        settled=_ramp(astray, slack, _OVER_PRONG_M),
    )


def _around(tilt: float, inward: Array) -> Array:
    """Return the eye's position (3,) relative to the prong's foot, for a handle that hangs down by ``tilt`` rad."""
    tilts = [0.0, 0.35, 0.785, 1.05, 1.57]
    along = np.interp(tilt, tilts, [0.0, 0.0, 0.002, 0.004, 0.0095])
    above = np.interp(tilt, tilts, [0.0065, 0.003, -0.002, -0.004, -0.0065])
    found: Array = along * inward + above * _UP
    return found


def _along(direction: Array) -> Array:
    """Return the orientation of a hand that points down, its fingers across a handle with this direction (3,)."""
    return gripper_down(math.atan2(direction[1], direction[0]))


def _in_hand(obs: Obs, grasp: _Grasp) -> bool:
    """Return True if the fingers are around the handle, so that they must close or stay closed."""
    sideways = float(np.linalg.norm(grasp.to_handle[:2]))
    vertical = abs(float(grasp.to_handle[2]))
    turn = float(np.linalg.norm(rotation_error(grasp.posture, obs["robot0_eef_quat"])))
    reached = sideways < 0.01 and vertical < 0.01 and turn < 0.15
    return reached or (opening(obs) < 0.075 and sideways < 0.03 and vertical < 0.03)


def _way(obs: Obs, point: Array, goal: Array, turn: Array) -> Array:
    """Return the hand's displacement (3,) that brings a point of the held object to its goal while turning it."""
    lever = obs["robot0_eef_pos"] - point
    found: Array = goal - point + rotated(tilted(_NO_TURN, turn), lever) - lever
    return found


def _ramp(value: float, start: float, end: float) -> float:
    """Return 0 at ``start`` and 1 at ``end``, linearly between them and constant beyond."""
    return float(np.clip((value - start) / (end - start), 0.0, 1.0))
