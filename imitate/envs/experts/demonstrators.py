"""Demonstrators of four quality levels, which change the expert's actions.

``better`` is the expert, quick and exact. ``okay`` also succeeds, but by detours, slowly and with
pauses. ``worse`` is quick but careless: it grasps beside the object, lets it slip, tries again, and gives up in the
end or at the time limit. ``noise`` moves at random, without a goal.

Unlike an expert, they have a memory of their aim and their tries. So a policy that imitates them cannot
observe everything on which their choices depend, as with demonstrations of people.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, opening

_EMPTY_M = 0.015  # fingers closed further than this hold no object
_HELD_M = (0.03, 0.068)


class Demonstrator:
    """Demonstrator that is the unchanged expert.

    Attributes:
        gave_up: true if it makes no further try; the episode may end.
        still: true if it waits: its last action commands no motion, and no noise is added.
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
        """Return the intended action: first towards the detours, then the expert's."""
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

    It mistakes half-closed fingers for a grasp. So if it aims beside the object, it may continue opening and closing
    there, until the fingers meet, or until it believes that it dropped the object.
    """

    MISS, DROP = 0.65, 0.6
    PATIENCE = (2, 6)  # tries
    TRY_STEPS = 60

    def __init__(self, expert: Expert, rng: np.random.Generator) -> None:
        super().__init__(expert, rng)
        self._exact = expert.style
        self._tries_left = int(rng.integers(*self.PATIENCE))
        self._unaware = self._slipping = 0
        self._aim()

    def _aim(self) -> None:
        """Begin a try: aim beside the object or at it, and plan to hold it or to drop it on the way."""
        rng, style = self.rng, self._exact
        self._tries_left -= 1
        self.gave_up = self._tries_left < 0
        self._left = self.TRY_STEPS
        self._holds_for = int(rng.integers(2, self.expert.carry_steps))
        if rng.random() >= self.DROP:
            self._holds_for = self.TRY_STEPS * 10
        if rng.random() < self.MISS:
            angle, far = rng.uniform(0, 2 * np.pi), rng.uniform(0.025, 0.05)
            beside = np.array([far * np.cos(angle), far * np.sin(angle), rng.uniform(0.0, 0.03)])
            style = replace(style, grasp_offset_m=style.grasp_offset_m + beside)
        self.expert.style = style

    def act(self, obs: Obs) -> Array:
        """Return the intended action of the current try."""
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
        """Rise with an empty hand, or open it on the way; then begin the next try."""
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
