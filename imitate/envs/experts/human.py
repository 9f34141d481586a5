"""Demonstrator that behaves like a person: timed waits, hesitation, overshooting, missed grasps, an unsteady hand.

An expert is a function of the current observation, but a person is not: they wait before they act, look again
before the fingers close, overshoot a target and come back, close too early and try again. During a wait the
observation does not change, so a policy with a single observation cannot know when the wait ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.demonstrators import Demonstrator
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, opening

_TOUCHING_M = 0.066  # distance below which closing fingers have met the object, or will miss it
_EMPTY_M = 0.015  # opening below which the fingers hold nothing
_FAST, _BRAKING = 0.6, 0.4
"""Sideways commands as fractions of the largest command: during the motion, and shortly before arrival."""


@dataclass(frozen=True)
class Habits:
    """Habits of a person. Durations are half-open ranges of control steps; 20 steps are 1 s.

    Attributes:
        speed_range: largest commanded translation of an episode, drawn uniformly; in (0, 1].
        hover_range_m: height at which an episode's objects are approached, drawn uniformly.
        bend_m: largest sideways bend of an episode's approach, in x and in y.
        sway: standard deviation of the hand's deviation from its course, as a fraction of the full command; smaller if
            the hand moves slowly.
        sway_steps: time in which a deviation fades to a third.
        start_steps: wait before the first motion.
        grasp_steps: hesitation over the object, before the fingers close.
        hold_steps: wait with the object between the fingers before it is moved.
        release_steps: wait at the target, before the fingers open.
        pause_probability: probability per moving step of a short stop.
        pause_steps: length of such a stop.
        overshoot_probability: probability per arrival of overshooting the target.
        overshoot_steps: duration of the motion past it.
        look_steps: wait after an overshoot or a missed grasp, until it is noticed.
        miss_probability: probability per try of closing the fingers above the object.
        margin_m: distance to keep from the edges of a bin; a slow descent next to its wall would end on the wall.
    """

    speed_range: tuple[float, float] = (0.3, 0.7)
    hover_range_m: tuple[float, float] = (0.05, 0.12)
    bend_m: float = 0.06
    sway: float = 0.12
    sway_steps: float = 8.0
    start_steps: tuple[int, int] = (5, 21)
    grasp_steps: tuple[int, int] = (5, 26)
    hold_steps: tuple[int, int] = (3, 13)
    release_steps: tuple[int, int] = (3, 16)
    pause_probability: float = 0.01
    pause_steps: tuple[int, int] = (5, 21)
    overshoot_probability: float = 0.3
    overshoot_steps: tuple[int, int] = (2, 6)
    look_steps: tuple[int, int] = (4, 13)
    miss_probability: float = 0.2
    margin_m: float = 0.03


class HumanLike(Demonstrator):
    """An expert with a person's habits. Two arms wait, overshoot and sway independently."""

    def __init__(self, expert: Expert, rng: np.random.Generator, habits: Habits) -> None:
        super().__init__(expert, rng)
        self._habits = habits
        self._exact = replace(
            expert.style,
            speed=float(rng.uniform(*habits.speed_range)),
            hover_m=float(rng.uniform(*habits.hover_range_m)),
            detour_m=rng.uniform(-habits.bend_m, habits.bend_m, 2),
            margin_m=habits.margin_m,
        )
        self._motion, self._gripper_at = expert.layout.motion, expert.layout.gripper
        self._grippers = np.full(self._gripper_at.shape, OPEN)
        self._waiting = self._length(habits.start_steps)
        self._overshooting = 0
        self._sway = np.zeros(self._motion.shape)
        self._sideways = np.zeros((len(self._motion), 2))
        """Last fast command in the plane, until the target is reached."""
        self._decided = self._holding = self._has_missed = False
        self._begin_try()

    def act(self, obs: Obs) -> Array:
        """Return the action (A,) with a person's habits."""
        wanted = np.clip(self.expert.act(obs), -1.0, 1.0)
        if self._waiting == 0 and self._overshooting == 0:
            self._react(wanted, self._openings(obs))
        self.still = self._waiting > 0
        if self.still:
            self._waiting -= 1
            wanted[self._motion] = 0.0
        elif self._overshooting > 0:
            self._overshooting -= 1
            if self._overshooting == 0:
                self._waiting = self._length(self._habits.look_steps)
            wanted[self._motion[:, :2]], wanted[self._motion[:, 2]] = self._sideways, 0.0
        else:
            wanted[self._motion] += self._swayed(wanted)
        wanted[self._gripper_at] = self._grippers
        return wanted

    def _openings(self, obs: Obs) -> Array:
        return np.array([opening(obs, arm) for arm in range(len(self._gripper_at))])

    def _begin_try(self) -> None:
        """Aim at the object, or so far above it that the fingers will close on nothing."""
        style, rng, clearance_m = self._exact, self.rng, self.expert.clearance_m
        if clearance_m is not None and rng.random() < self._habits.miss_probability:
            above = np.array([*rng.uniform(-0.01, 0.01, 2), clearance_m])
            style = replace(style, grasp_offset_m=style.grasp_offset_m + above)
        self.expert.style = style

    def _react(self, wanted: Array, widths: Array) -> None:
        """Begin a wait or an overshoot if the situation requires one."""
        habits, grippers = self._habits, wanted[self._gripper_at]
        changes = bool((grippers != self._grippers).any())
        closed = self._grippers == CLOSE
        empty, touching = closed & (widths < _EMPTY_M), closed & (widths < _TOUCHING_M)
        if changes and not empty.any() and not self._decided:
            self._decided = True
            closes = bool((grippers > self._grippers).any())
            self._waiting = self._length(habits.grasp_steps if closes else habits.release_steps)
            return
        if changes:
            self._grippers, self._decided, self._holding = grippers, False, False
        if (empty & (self._grippers == CLOSE)).any() and self.expert.clearance_m is not None:
            if not self._has_missed:
                self._has_missed = True
                self._waiting = self._length(habits.look_steps)
                return
            self._grippers = np.where(empty, OPEN, self._grippers)
            self._has_missed = False
            self._begin_try()
        elif (touching & (self._grippers == CLOSE)).any() and not self._holding:
            self._holding = True
            self._waiting = self._length(habits.hold_steps)
        elif not self._arrive(wanted) and self.rng.random() < habits.pause_probability:
            self._waiting = self._length(habits.pause_steps)

    def _arrive(self, wanted: Array) -> bool:
        """Overshoot the target sometimes, when the motion towards it ends."""
        fastest = min(1.0, self.expert.style.speed * self.expert.pace)
        sideways = wanted[self._motion[:, :2]]
        speed = float(np.linalg.norm(sideways, axis=1).max()) / fastest
        if speed > _FAST:
            self._sideways = sideways.copy()
        elif speed < _BRAKING and self._sideways.any():
            if self.rng.random() < self._habits.overshoot_probability:
                self._overshooting = self._length(self._habits.overshoot_steps)
                return True
            self._sideways = np.zeros_like(self._sideways)
        return False

    def _swayed(self, wanted: Array) -> Array:
        """Return the deviation (arms, 6) from the course; it changes slowly and is small if the arm is slow."""
        keep = math.exp(-1.0 / self._habits.sway_steps)
        fresh = self.rng.normal(0.0, self._habits.sway, self._sway.shape)
        self._sway = keep * self._sway + math.sqrt(1.0 - keep**2) * fresh
        speed = np.linalg.norm(wanted[self._motion[:, :3]], axis=1, keepdims=True)
        found: Array = self._sway * np.minimum(1.0, speed)
        return found

    def _length(self, steps: tuple[int, int]) -> int:
        return int(self.rng.integers(*steps))
