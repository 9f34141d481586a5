"""Demonstrators that change the expert's actions: four quality levels, and a demonstrator with a person's habits.

``better`` is the expert, quick and exact. ``okay`` also succeeds, but by detours, slowly and with
pauses. ``worse`` is quick but careless: it grasps beside the object, lets it slip, tries again, and gives up in the
end or at the time limit. ``noise`` moves at random, without a goal.

Unlike an expert, these demonstrators remember their aim and their tries. So a policy that imitates them cannot observe
everything on which their choices depend, as with demonstrations by people.

`HumanLike` behaves like a person: timed waits, hesitation, overshooting, missed grasps, an unsteady hand. An
expert is a function of the current observation, but a person is not: they wait before they act, look again
before the fingers close, overshoot a target and come back, close too early and try again. During a wait the
observation does not change, so a policy with a single observation cannot know when the wait ends.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, opening

_EMPTY_M = 0.015  # finger distance below which the fingers hold no object
_HELD_M = (0.03, 0.068)


class Demonstrator:
    """Demonstrator that is the unchanged expert.

    Attributes:
        gave_up: true if the demonstrator makes no further attempt, so that the episode may end.
        still: true while the demonstrator waits: its last action commands no motion, and no noise is added.
    """

    gave_up: bool = False
    still: bool = False

    def __init__(self, expert: Expert, rng: np.random.Generator) -> None:
        self.expert = expert
        self.rng = rng

    def act(self, obs: Obs) -> Array:
        """Return the intended action (7,) for an observation."""
        return self.expert.act(obs)


class Detouring(Demonstrator):
    """Visits two points around the start before it does the task."""

    def __init__(self, expert: Expert, rng: np.random.Generator) -> None:
        super().__init__(expert, rng)
        self._ahead = rng.uniform((-0.1, -0.15, -0.06), (0.1, 0.15, 0.06), (2, 3))
        self._start: Array | None = None

    def act(self, obs: Obs) -> Array:
        """Return the intended action: first towards the two points, then the expert's action."""
        hand = obs["robot0_eef_pos"]
        if self._start is None:
            self._start = np.array(hand)
        if len(self._ahead):
            to_point = self._start + self._ahead[0] - hand
            if float(np.linalg.norm(to_point)) > 0.02:
                return self.expert.move(obs, to_point, OPEN)
            self._ahead = self._ahead[1:]
        return self.expert.act(obs)


class Clumsy(Demonstrator):
    """Careless demonstrator, which misses, notices it late, drops the object, tries again or gives up.

    The demonstrator mistakes half-closed fingers for a grasp. If it aims beside the object, it may open and close the
    fingers there until they meet, or until it believes that it dropped the object.
    """

    MISS, DROP = 0.65, 0.6
    PATIENCE = (2, 6)  # smallest and largest number of attempts
    TRY_STEPS = 60

    def __init__(self, expert: Expert, rng: np.random.Generator) -> None:
        super().__init__(expert, rng)
        self._exact = expert.style
        self._tries_left = int(rng.integers(*self.PATIENCE))
        self._unaware = self._slipping = 0
        self._aim()

    def _aim(self) -> None:
        """Begin an attempt: aim at the object or beside it, and plan whether to drop it on the way."""
        rng, style = self.rng, self._exact
        self._tries_left -= 1
        self.gave_up = self._tries_left < 0
        self._left = self.TRY_STEPS
        self._holds_for: float = rng.integers(2, self.expert.carry_steps)
        if rng.random() >= self.DROP:
            self._holds_for = math.inf
        if rng.random() < self.MISS:
            angle, far = rng.uniform(0, 2 * np.pi), rng.uniform(0.025, 0.05)
            beside = np.array([far * np.cos(angle), far * np.sin(angle), rng.uniform(0.0, 0.03)])
            style = replace(style, grasp_offset_m=style.grasp_offset_m + beside)
        self.expert.style = style

    def act(self, obs: Obs) -> Array:
        """Return the intended action of the current attempt."""
        action, width = self.expert.act(obs), opening(obs)
        if self._slipping or self._unaware:
            return self._blunder(obs)
        closing = action[6] == CLOSE
        self._left -= 1
        if closing and width < _EMPTY_M:
            self._unaware = int(self.rng.integers(4, 15))
        elif closing and _HELD_M[0] < width < _HELD_M[1]:
            self._left = self.TRY_STEPS
            self._holds_for -= 1
            if self._holds_for <= 0:
                self._slipping = int(self.rng.integers(5, 10))
        elif self._left <= 0:
            self._aim()
        return action

    def _blunder(self, obs: Obs) -> Array:
        """Rise with an empty hand, or drop the object on the way; then begin the next attempt."""
        gripper = OPEN if self._slipping else CLOSE
        self._unaware, self._slipping = max(0, self._unaware - 1), max(0, self._slipping - 1)
        if not (self._unaware or self._slipping):
            self._aim()
        return self.expert.move(obs, np.array([0.0, 0.0, 0.04]), gripper)


class Aimless(Demonstrator):
    """Moves aimlessly: each axis follows a random walk towards 0, and the fingers sometimes open and close."""

    STEPS = (60, 120)

    def __init__(self, expert: Expert, rng: np.random.Generator) -> None:
        super().__init__(expert, rng)
        self._left = int(rng.integers(*self.STEPS))
        self._drift, self._gripper = np.zeros(6), OPEN

    def act(self, obs: Obs) -> Array:
        """Return the next random action."""
        self._left -= 1
        self.gave_up = self._left <= 0
        self._drift = 0.85 * self._drift + self.rng.normal(0.0, 0.35, 6)
        if self.rng.random() < 0.05:
            self._gripper = -self._gripper
        return np.concatenate([self._drift * ([1.0] * 3 + [0.3] * 3), [self._gripper]])


LEVELS: dict[str, type[Demonstrator]] = {
    "better": Demonstrator,
    "okay": Detouring,
    "worse": Clumsy,
    "noise": Aimless,
}


_TOUCHING_M = 0.066  # finger distance below which closing fingers touch or miss the object
_FAST = 0.6
"""Sideways command, as a fraction of the largest command, above which the hand counts as moving."""
_BRAKING = 0.4
"""Sideways command, as a fraction of the largest command, below which the hand counts as arriving."""


@dataclass(frozen=True)
class Habits:
    """Habits of a person. Durations are half-open ranges of control steps; 20 steps are 1 s.

    Attributes:
        speed_range: largest commanded translation of an episode, drawn uniformly; in (0, 1].
        hover_range_m: height at which an episode's objects are approached, drawn uniformly.
        bend_m: largest sideways bend of an episode's approach, in x and in y.
        sway: standard deviation of the hand's deviation from its course, as a fraction of the full command; smaller if
            the hand moves slowly.
        sway_steps: number of steps in which a deviation fades to about a third.
        start_steps: wait before the first motion.
        grasp_steps: hesitation over the object, before the fingers close.
        hold_steps: wait with the object between the fingers before it is moved.
        release_steps: wait at the target, before the fingers open.
        pause_probability: probability per moving step of a short stop.
        pause_steps: duration of a short stop.
        overshoot_probability: probability per arrival of overshooting the target.
        overshoot_steps: duration of the motion past the target.
        look_steps: wait after an overshoot or a missed grasp, until the person notices it.
        miss_probability: probability per attempt of closing the fingers above the object.
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
        """Last fast horizontal command, kept until the target is reached."""
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
        """Begin a wait or an overshoot if the current phase of the motion calls for one."""
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
        """Return True if an overshoot begins, which sometimes happens when the motion towards a target ends."""
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
