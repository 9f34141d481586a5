"""Experts of tasks in which one arm grasps and moves a cube or a can: Lift, Stack, PickPlaceCan."""

from typing import NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, gripper_yaw, opening, square_yaw

# The cube is 4.0 to 4.4 cm wide and may be held at any yaw, so the fingers close to a distance of 4 to 6.3 cm.
_LIFT_TOUCHING_M = 0.068
_LIFT_HELD_M = 0.056


class LiftExpert(Expert):
    """Descends over the cube, closes when it is between the fingers, and rises as they grip it."""

    env_name = "Lift"
    horizon = 200

    def act(self, obs: Obs) -> Array:
        """Return the action (7,) for an observation."""
        width = opening(obs)
        to_cube: Array = obs["object"][:3] + self.style.grasp_offset_m - obs["robot0_eef_pos"]
        sideways, vertical = float(np.linalg.norm(to_cube[:2])), abs(float(to_cube[2]))
        reached = sideways < 0.013 and vertical < 0.013
        closing = width < 0.075 and sideways < 0.022 and vertical < 0.022
        if not (reached or closing):
            return self.approach(obs, to_cube)
        # The hand rises gradually from contact to grasp, because a policy could not observe how long to wait.
        rise = float(
            np.clip((_LIFT_TOUCHING_M - width) / (_LIFT_TOUCHING_M - _LIFT_HELD_M), 0.0, 1.0)
        )
        displacement = (1.0 - rise) * to_cube + np.array([0.0, 0.0, 0.05 * rise])
        return self.move(obs, displacement, CLOSE)


_STACK_TOUCHING_M = 0.062  # finger distance below which closing fingers begin to hold a cube
_STACK_HELD_M = 0.054  # finger distance below which the fingers hold a cube
_RESTING_M = 0.045  # distance between the centres when A is on B: half of 4 cm plus half of 5 cm
_ALIGNED_M = 0.012  # horizontal distance of the centres at which A is lowered
_UP = np.array([0.0, 0.0, 1.0])


class _Cubes(NamedTuple):
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
    slack_m, steepness = 0.006, 6.0  # a finger that descends onto the cube gets stuck there

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
        sideways = command[:2] / max(1.0, float(np.linalg.norm(command[:2])) / limit)
        return np.array([*sideways, float(np.clip(command[2], -limit, limit))])

    def _look(self, obs: Obs) -> _Cubes:
        a, b = obs["object"][0:3], obs["object"][7:10]
        a_to_b = b[:2] - a[:2]
        return _Cubes(
            width=opening(obs),
            to_a=a + self.style.grasp_offset_m - obs["robot0_eef_pos"],
            a_to_b=a_to_b,
            above_b=float(a[2] - b[2]),
            gap=float(np.linalg.norm(a_to_b)),
            yaw=square_yaw(obs["object"][3:7], near=gripper_yaw(obs)),
        )

    def _carry(self, obs: Obs, view: _Cubes) -> Array:
        """Close, rise as the fingers grip the cube, move sideways when it is above B's top, lower when it is over B."""
        grip = float(
            np.clip(
                (_STACK_TOUCHING_M - view.width) / (_STACK_TOUCHING_M - _STACK_HELD_M), 0.0, 1.0
            )
        )
        lift = float(np.clip(3.0 * (view.gap - _ALIGNED_M), 0.0, 0.03))
        free = (
            float(np.clip((view.above_b - 0.04) / 0.02, 0.0, 1.0)) if view.gap > _ALIGNED_M else 1.0
        )
        goal = np.array([*(free * view.a_to_b), _RESTING_M - 0.015 + 1.5 * lift - view.above_b])
        return self.move(obs, (1.0 - grip) * view.to_a + grip * goal, CLOSE, yaw=view.yaw)

    def _let_go(self, obs: Obs, view: _Cubes) -> Array:
        rise = max(0.0, (view.width - 0.05) / 0.02)
        return self.move(obs, 0.1 * rise * _UP, OPEN, yaw=view.yaw)


_BIN_CENTRE = np.array([0.1975, 0.4025])
_BIN_HALF = np.array([0.07, 0.09])  # region in which the can is released, inside the bin's walls
_CARRY_M = 1.02  # height of the can's centre above the floor while it passes over the walls
_LET_GO_M = 0.885
_GRASP_ABOVE_CENTRE_M = 0.01
_CAN_TOUCHING_M = 0.068  # finger distance below which closing fingers begin to hold the can
_CAN_HELD_M = 0.062  # finger distance below which the fingers hold the can


class _Can(NamedTuple):
    """Quantities that determine the action, in m."""

    can: Array
    width: float
    to_can: Array
    to_bin: Array  # horizontal vector (2,)
    in_bin: bool
    well_in: bool  # true if the can is in the bin, with a margin from the edges


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
            rise = max(0.0, (view.width - _CAN_HELD_M) / 0.012)
            return self.move(obs, 0.15 * rise * _UP, OPEN)
        sideways, vertical = float(np.linalg.norm(view.to_can[:2])), abs(float(view.to_can[2]))
        reached = sideways < 0.012 and vertical < 0.015
        closing = view.width < 0.075 and sideways < 0.022 and vertical < 0.03
        if not (reached or closing):
            return self.approach(obs, view.to_can)
        return self._carry(obs, view)

    def _look(self, obs: Obs) -> _Can:
        can: Array = obs["object"][7:10]
        offset = self.style.grasp_offset_m + _GRASP_ABOVE_CENTRE_M * _UP
        to_bin = _BIN_CENTRE - can[:2]
        return _Can(
            can=can,
            width=opening(obs),
            to_can=can + offset - obs["robot0_eef_pos"],
            to_bin=to_bin,
            in_bin=bool((np.abs(to_bin) < _BIN_HALF).all()),
            well_in=bool((np.abs(to_bin) < _BIN_HALF - self.style.margin_m).all()),
        )

    def _carry(self, obs: Obs, view: _Can) -> Array:
        """Close, rise as the fingers grip the can, move sideways when it is above the walls, lower over the bin."""
        grip = float(
            np.clip((_CAN_TOUCHING_M - view.width) / (_CAN_TOUCHING_M - _CAN_HELD_M), 0.0, 1.0)
        )
        sinks = view.in_bin and (view.well_in or view.can[2] < _CARRY_M - 0.06)
        height = _LET_GO_M - 0.02 if sinks else _CARRY_M
        free = float(np.clip((view.can[2] - (_CARRY_M - 0.06)) / 0.04, 0.0, 1.0))
        goal = np.array([*(free * view.to_bin), height - view.can[2]])
        return self.move(obs, (1.0 - grip) * view.to_can + grip * goal, CLOSE)
