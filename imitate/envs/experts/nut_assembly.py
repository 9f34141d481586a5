"""Experts of nut assembly: they hold a nut by its handle and put it over its peg."""

import math
from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import (
    CLOSE,
    OPEN,
    Expert,
    gripper_yaw,
    nearest_turn,
    opening,
    yaw_of,
)

_TOUCHING_M = 0.046  # finger distance below which closing fingers begin to hold the handle
_HELD_M = 0.036  # finger distance below which the fingers hold the handle, which is 3.2 cm wide
_CARRY_M = (
    1.015  # height of the nut above the floor while it passes over the peg, whose top is at 0.95
)
_CLEARS_M = 0.99  # height above the floor from which hand and nut are above the pegs
_ON_PEG_M = 0.868  # height of the nut above the floor below which it is on its peg
_HABIT = 0.3  # the current yaw of a grasp is kept up to this angle, in rad, beyond a quarter turn
_PEGS_X = 0.1  # a low hand with a larger x, in m, rises before it moves back to the nuts
_ROUND_PEG_M = (
    0.03  # horizontal distance from the peg's axis within which a low nut is around the peg
)
_AWAY = np.array([-0.06, 0.0, 0.15])
"""Direction of withdrawal from a peg. If the hand rose straight up, the elbow would stay stretched, and the controller
could not bend it."""


class Nut(NamedTuple):
    """Geometry of a nut.

    Attributes:
        peg: (2,) horizontal position of the nut's peg, in m.
        handle_m: distance of the grasp from the centre, along the nut's x axis.
    """

    peg: Array
    handle_m: float


_SQUARE = Nut(np.array([0.23, 0.1]), 0.06)
_ROUND = Nut(np.array([0.23, -0.1]), 0.066)
_FITTING = (math.pi / 2, math.pi, -math.pi / 2)
"""Yaws at which a nut is lowered onto its peg. The square nut also fits at 0, but the arm cannot reach that pose."""


class _View(NamedTuple):
    """Geometry of hand, nut and peg that determines the action, in m and rad."""

    nut: Array
    width: float
    to_handle: Array
    to_peg: Array  # horizontal vector (2,) from the nut's centre
    grasp_yaw: float  # yaw of the gripper across the handle
    misfit: float  # turn of the nut to the nearest angle of _FITTING
    yaw: float  # current yaw of the gripper


class NutExpert(Expert):
    """Descends to the handle, closes, rises above the peg, turns the hole to it, lowers, releases, and rises."""

    horizon = 400
    pace = 1.4
    carry_steps = 60
    slack_m, steepness = 0.008, 3.0

    @abstractmethod
    def choose(self, obs: Obs) -> tuple[Nut, Array]:
        """Return the nut to place next, and its pose (7,): position, quaternion."""

    def act(self, obs: Obs) -> Array:
        """Return the action (7,) for an observation."""
        nut, pose = self.choose(obs)
        view = self._look(obs, nut, pose)
        hand = obs["robot0_eef_pos"]
        among_pegs = hand[0] > _PEGS_X and hand[2] < _CLEARS_M and view.to_handle[0] < -0.1
        if on_peg(nut, pose) or among_pegs:
            rise = max(0.0, (view.width - 0.04) / 0.02)
            return self.move(obs, rise * _AWAY, OPEN, yaw=view.yaw)
        sideways = float(np.linalg.norm(view.to_handle[:2]))
        vertical = abs(float(view.to_handle[2]))
        aligned = abs(view.grasp_yaw - view.yaw) < 0.15
        reached = sideways < 0.01 and vertical < 0.01 and aligned
        closing = view.width < 0.075 and sideways < 0.025 and vertical < 0.025
        if not (reached or closing):
            return self.approach(obs, view.to_handle, yaw=view.grasp_yaw)
        return self._carry(obs, view)

    def _look(self, obs: Obs, nut: Nut, pose: Array) -> _View:
        centre, angle, yaw = pose[:3], yaw_of(pose[3:]), gripper_yaw(obs)
        along = np.array([math.cos(angle), math.sin(angle), 0.0])
        handle = centre + nut.handle_m * along + self.style.grasp_offset_m
        return _View(
            nut=centre,
            width=opening(obs),
            to_handle=handle - obs["robot0_eef_pos"],
            to_peg=nut.peg - centre[:2],
            grasp_yaw=nearest_turn(angle, math.pi, near=float(np.clip(yaw, -_HABIT, _HABIT))),
            misfit=min((nearest_turn(fit - angle, 2 * math.pi) for fit in _FITTING), key=abs),
            yaw=yaw,
        )

    def _carry(self, obs: Obs, view: _View) -> Array:
        """Close, rise as the fingers grip the handle, move above the peg's top, lower when the hole fits."""
        grip = float(np.clip((_TOUCHING_M - view.width) / (_TOUCHING_M - _HELD_M), 0.0, 1.0))
        apart = float(np.linalg.norm(view.to_peg))
        aligned = apart < 0.006 and abs(view.misfit) < 0.05
        threaded = apart < 0.012 and view.nut[2] < 0.95
        height = _ON_PEG_M - 0.03 if aligned or threaded else _CARRY_M
        free = float(np.clip((view.nut[2] - _CLEARS_M + 0.02) / 0.02, 0.0, 1.0))
        if threaded:
            free = 1.0
        goal = np.array([*(free * view.to_peg), height - view.nut[2]])
        displacement = (1.0 - grip) * view.to_handle + grip * goal
        return self.move(obs, displacement, CLOSE, yaw=view.yaw + free * view.misfit)


def on_peg(nut: Nut, pose: Array) -> bool:
    """Return True for a nut that is around its peg and low enough to count as placed."""
    apart = np.abs(nut.peg - pose[:2]).max()
    return bool(apart < _ROUND_PEG_M and pose[2] < _ON_PEG_M)


class NutAssemblySquareExpert(NutExpert):
    """Expert of the square nut."""

    env_name = "NutAssemblySquare"

    def choose(self, obs: Obs) -> tuple[Nut, Array]:
        """Return the square nut and its pose."""
        return _SQUARE, obs["object"][7:14]


class NutAssemblyRoundExpert(NutExpert):
    """Expert of the round nut."""

    env_name = "NutAssemblyRound"

    def choose(self, obs: Obs) -> tuple[Nut, Array]:
        """Return the round nut and its pose."""
        return _ROUND, obs["object"][7:14]


class NutAssemblyExpert(NutExpert):
    """Expert that places both nuts, the square nut first."""

    env_name = "NutAssembly"
    horizon = 800

    def choose(self, obs: Obs) -> tuple[Nut, Array]:
        """Return the square nut with its pose until it is on its peg, then the round nut."""
        square, round_ = obs["object"][7:14], obs["object"][21:28]
        return (_ROUND, round_) if on_peg(_SQUARE, square) else (_SQUARE, square)
