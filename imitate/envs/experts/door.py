"""Expert of robosuite's Door, which turns the handle down and pulls the door open."""

import math
from typing import NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import (
    CLOSE,
    OPEN,
    Expert,
    gripper_down,
    nearest_turn,
    opening,
    tilted,
    turned,
)

_PIVOT = np.array(
    [-0.175, -0.10]
)  # position of the handle's pivot seen from above, in the door's frame, in m
_LEVER_M = 0.125  # distance from the pivot to the observed point of the handle
_TOUCHING_M = 0.065  # finger distance below which closing fingers begin to hold the handle
_HELD_M = 0.055  # finger distance below which the fingers hold the handle
_EMPTY_M = 0.015  # finger distance below which the fingers hold nothing
_AJAR = (
    0.03  # angle of a door, in rad, from which closed fingers behind the handle also pull it open
)
_BELOW_M = 0.012  # distance of the grasp below the handle's middle
_UNLATCHED = 1.15  # turn of the handle, in rad, at which the latch is free
_FREE = 0.06  # angle of the door, in rad, at which the latch is past its frame
_UP = np.array([0.0, 0.0, 1.0])
_LEAN = 0.45  # turn of the hand away from the door, in rad, so that it fits beside the panel


class _View(NamedTuple):
    """Geometry of hand and door that determines the action, in m and rad."""

    width: float
    to_handle: Array
    turn: float
    opened: float
    along: Array  # unit vector from the pivot to the end of the level handle
    outward: Array  # unit vector of the door's opening direction
    posture: Array


class DoorExpert(Expert):
    """Moves down onto the handle's end, closes, turns it down about its pivot, and pulls the door open."""

    env_name = "Door"
    horizon = 400
    pace = 1.2
    carry_steps = 60
    slack_m, steepness = 0.008, 3.0

    def act(self, obs: Obs) -> Array:
        """Return the action (7,) for an observation."""
        view = self._look(obs)
        sideways = float(np.linalg.norm(view.to_handle[:2]))
        vertical = abs(float(view.to_handle[2]))
        held = view.width < _TOUCHING_M or view.opened > _AJAR
        near = 0.035 if held else 0.012
        empty = view.width < _EMPTY_M and view.opened < _AJAR
        if sideways < near and vertical < near and not empty:
            grip = float(np.clip((_TOUCHING_M - view.width) / (_TOUCHING_M - _HELD_M), 0.0, 1.0))
            course = view.to_handle + grip * self._course(view)
            return self.move(obs, course, CLOSE, posture=view.posture)
        above = -float(view.to_handle[2])
        if (0.03 < sideways < 0.12 and above < 0.03) or (sideways < 0.05 and above < -0.02):
            up = max(0.0, 0.06 - above) if sideways > 0.05 else 0.0  # move away from the handle
            return self.move(obs, 0.06 * view.outward + up * _UP, OPEN, posture=view.posture)
        return self.approach(obs, view.to_handle, posture=view.posture)

    def _look(self, obs: Obs) -> _View:
        door, handle = obs["object"][0:3], obs["object"][3:6]
        opened, turn = float(obs["object"][6]), float(obs["object"][13])
        own = _PIVOT + np.array([_LEVER_M * math.cos(turn), 0.0])
        seen = handle - door
        yaw = math.atan2(seen[1], seen[0]) - math.atan2(own[1], own[0])
        along = turned(np.array([1.0, 0.0, 0.0]), yaw)
        posture = tilted(gripper_down(nearest_turn(yaw, math.pi)), _LEAN * along)
        return _View(
            width=opening(obs),
            to_handle=handle - _BELOW_M * _UP + self.style.grasp_offset_m - obs["robot0_eef_pos"],
            turn=turn,
            opened=opened,
            along=along,
            outward=turned(np.array([0.0, -1.0, 0.0]), yaw),
            posture=posture,
        )

    def _course(self, view: _View) -> Array:
        """Return the displacement (3,) of the held handle: down about its pivot, then outward with the door."""
        down = -math.sin(view.turn) * view.along - math.cos(view.turn) * _UP
        latched = view.opened < _FREE
        turns = float(np.clip((_UNLATCHED + 0.1 - view.turn) / 0.1, 0.0, 1.0)) if latched else 0.0
        pulls = float(np.clip((view.turn - _UNLATCHED + 0.2) / 0.2, 0.0, 1.0)) if latched else 1.0
        return 0.06 * turns * down + 0.08 * pulls * view.outward
