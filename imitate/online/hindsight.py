"""Steps that missed their goal, replayed as if what came later had been the goal.

Andrychowicz et al., "Hindsight Experience Replay", NeurIPS 2017 (arXiv:1707.01495). The strategies are those of the
paper's section 4.5: a goal is what a later step of the same episode achieved (``future``), what its last one did
(``final``), or any of its steps (``episode``). A share s of samples has such goals, which is s / (1 - s) of them for
each one with its own: the paper's k = 4 is a share of 0.8.

Departure: the paper stores k relabelled copies of each step when its episode is over. Here nothing is stored twice:
goals are sampled with the batch, so also from an episode that still runs, from its steps so far, and anew each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from imitate.online.ring import StepRing
from imitate.online.steps import Array

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
GOALS = (ACHIEVED, DESIRED)
GoalRewards = Callable[[Array, Array], Array]
Strategy = Literal["future", "final", "episode"]


@dataclass(frozen=True)
class Gathered:
    """Values at the rows of a batch, and one step later.

    Attributes:
        seen, following: (B, F, D) observations that are vectors.
        rewards: (B, F) of the environment.
        terminals: (B, F) bool.
    """

    seen: Array
    following: Array
    rewards: Array
    terminals: NDArray[np.bool_]


@dataclass(frozen=True)
class Hindsight:
    """Replacement of the goals of replayed steps.

    Attributes:
        rewards: (B,) of having achieved goals (B, G) where goals (B, G) were desired.
        share: of the samples that are relabelled, on average.
        strategy: where their goals come from.
        ends_at_goal: reaching a goal is a terminal. Otherwise terminals do not depend on goals, and stay.
    """

    rewards: GoalRewards
    share: float = 0.8
    strategy: Strategy = "future"
    ends_at_goal: bool = False

    def relabel(
        self,
        ring: StepRing,
        rows: NDArray[np.int64],
        windows: NDArray[np.int64],
        values: Gathered,
        generator: np.random.Generator,
    ) -> None:
        """Give some of a batch's steps another goal, and the reward and the terminal that this means.

        Args:
            ring: where they lie.
            rows: (B,) of the steps.
            windows: (B, F) rows of their frames.
            values: copies of what is there; changed.
            generator: draws.
        """
        chosen = np.flatnonzero(generator.random(len(rows)) < self.share)
        if not len(chosen):
            return
        achieved, desired = (ring.columns[key] for key in GOALS)
        steps, frames = rows[chosen], windows[chosen]
        goals = ring.vectors[ring.later(steps, self._offsets(ring, steps, generator) + 1), achieved]
        goals = np.repeat(goals[:, None], frames.shape[1], axis=1)
        reached = ring.vectors[ring.later(frames, 1), achieved]
        if self.ends_at_goal:
            old = values.seen[chosen, :, desired]
            others = values.terminals[chosen] & ~self._at_goal(reached, old)
            values.terminals[chosen] = others | self._at_goal(reached, goals)
        values.rewards[chosen] = self._rewards(reached, goals)
        values.seen[chosen, :, desired] = goals
        values.following[chosen, :, desired] = goals

    def _offsets(self, ring: StepRing, steps: Array, generator: np.random.Generator) -> Array:
        """(R,) how many steps later the step is whose outcome becomes the goal."""
        last = ring.steps_after(steps)
        if self.strategy == "final":
            return last
        first: Any = 0 if self.strategy == "future" else -ring.steps_before(steps)
        return generator.integers(first, last, endpoint=True)

    def _rewards(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """(R, F) of goals (R, F, G)."""
        size = achieved.shape[-1]
        rewards = self.rewards(achieved.reshape(-1, size), desired.reshape(-1, size))
        shaped: NDArray[np.float32] = np.asarray(rewards, np.float32).reshape(achieved.shape[:-1])
        return shaped

    def _at_goal(self, achieved: Array, desired: Array) -> NDArray[np.bool_]:
        """(R, F) whether the reward is that of having achieved exactly what was desired."""
        there: NDArray[np.bool_] = self._rewards(achieved, desired) >= self._rewards(
            desired, desired
        )
        return there
