"""A demonstrator with a person's habits: timed waits, hesitation, overshooting, missed grasps.

The expert underneath is a function of the current observation. A person is not: they wait before they act, look again
before the fingers close, drive past a target and come back, close too early and try again. During a wait the
observation stays and only the clock moves, so a policy that sees a single observation cannot tell when the wait ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.demonstrators import Demonstrator
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, opening

_TOUCHING_M = 0.066  # closing fingers nearer than this have met the object, or will not
_EMPTY_M = 0.015  # the fingers have closed on nothing
_FAST, _BRAKING = (
    0.6,
    0.4,
)  # sideways command as a part of the fastest: on the way, and about to arrive


@dataclass(frozen=True)
class Habits:
    """How a person differs from a scripted expert. Lengths are control steps, half-open ranges; 20 steps are 1 s.

    Attributes:
        speed_range: largest commanded translation of an episode, drawn uniformly; in (0, 1].
        start_steps: wait before the first motion.
        grasp_steps: hesitation over the object, before the fingers close.
        hold_steps: wait with the object between the fingers, before it is moved.
        release_steps: wait at the target, before the fingers open.
        pause_probability: per moving step, of stopping for a moment.
        pause_steps: length of such a stop.
        overshoot_probability: per arrival, of driving past the target.
        overshoot_steps: how long the motion continues past it.
        look_steps: wait after an overshoot or a missed grasp, until it is noticed.
        miss_probability: per try, of closing the fingers above the object.
        margin_m: distance kept from the edges of a bin; a slow descent beside its wall would end on the wall.
    """

    speed_range: tuple[float, float] = (0.3, 0.7)
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
    """An expert with a person's habits."""

    def __init__(self, expert: Expert, rng: np.random.Generator, habits: Habits) -> None:
        super().__init__(expert, rng)
        self._habits = habits
        speed = float(rng.uniform(*habits.speed_range))
        self._exact = replace(expert.style, speed=speed, margin_m=habits.margin_m)
        self._gripper = OPEN
        self._waiting = self._length(habits.start_steps)
        self._overshooting = 0
        self._sideways = np.zeros(
            3
        )  # the last fast command in the plane, until the target is reached
        self._decided = self._holding = False
        self._begin_try()

    def act(self, obs: Obs) -> Array:
        """See the class."""
        wanted, width = self.expert.act(obs), opening(obs)
        if self._waiting == 0 and self._overshooting == 0:
            self._react(wanted, width)
        self.still = self._waiting > 0
        if self.still:
            self._waiting -= 1
            return np.array([*np.zeros(6), self._gripper])
        if self._overshooting > 0:
            self._overshooting -= 1
            if self._overshooting == 0:
                self._waiting = self._length(self._habits.look_steps)
            return np.concatenate([self._sideways, wanted[3:6], [self._gripper]])
        return np.concatenate([wanted[:6], [self._gripper]])

    def _begin_try(self) -> None:
        """Aim at the object, or so high above it that the fingers will close on nothing."""
        style, rng = self._exact, self.rng
        if rng.random() < self._habits.miss_probability:
            above = np.array([*rng.uniform(-0.01, 0.01, 2), self.expert.clearance_m])
            style = replace(style, grasp_offset_m=style.grasp_offset_m + above)
        self.expert.style = style

    def _react(self, wanted: Array, width: float) -> None:
        """Begin a wait or an overshoot, where the situation calls for one."""
        habits = self._habits
        if wanted[6] != self._gripper and width > _EMPTY_M and not self._decided:
            self._decided = True
            closes = wanted[6] == CLOSE
            self._waiting = self._length(habits.grasp_steps if closes else habits.release_steps)
            return
        if wanted[6] != self._gripper:
            self._gripper, self._decided, self._holding = float(wanted[6]), False, False
        if self._gripper == CLOSE and width < _EMPTY_M:
            self._waiting = self._length(habits.look_steps)
            self._begin_try()
        elif self._gripper == CLOSE and width < _TOUCHING_M and not self._holding:
            self._holding = True
            self._waiting = self._length(habits.hold_steps)
        elif not self._arrive(wanted) and self.rng.random() < habits.pause_probability:
            self._waiting = self._length(habits.pause_steps)

    def _arrive(self, wanted: Array) -> bool:
        """Drive past the target now and then, where the way to it ends."""
        fastest = min(1.0, self.expert.style.speed * self.expert.pace)
        speed = float(np.linalg.norm(wanted[:2])) / fastest
        if speed > _FAST:
            self._sideways = np.array([*wanted[:2], 0.0])
        elif speed < _BRAKING and self._sideways.any():
            if self.rng.random() < self._habits.overshoot_probability:
                self._overshooting = self._length(self._habits.overshoot_steps)
                return True
            self._sideways = np.zeros(3)
        return False

    def _length(self, steps: tuple[int, int]) -> int:
        return int(self.rng.integers(*steps))
