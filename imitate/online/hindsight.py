"""Hindsight relabelling: replay steps as if an outcome achieved later had been their goal.

Andrychowicz et al., "Hindsight Experience Replay", NeurIPS 2017 (arXiv:1707.01495). The strategies are those of the
paper's section 4.5: the goal is the one achieved at a later step of the same episode (``future``), at its last step
(``final``), or at any step (``episode``). A share s of samples is relabelled, s / (1 - s) of them for each original
one: the paper's k = 4 is a share of 0.8.

Departure: the paper stores k relabelled copies of each step after its episode. Here nothing is stored twice:
goals are sampled with the batch, also from the steps so far of a running episode, and again for each batch.
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
        rewards: (B, F) rewards of the environment.
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
        rewards: function from achieved goals (B, G) and desired goals (B, G) to rewards (B,).
        share: average share of relabelled samples.
        strategy: source of the new goals.
        ends_at_goal: true if reaching a goal is a terminal; otherwise terminals stay unchanged.
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
        """Give some of a batch's steps another goal, with its reward and terminal.

        Args:
            ring: ring in which they are stored.
            rows: (B,) rows of the steps.
            windows: (B, F) rows of their stacked frames.
            values: copies of the values there; changed in place.
            generator: random generator.
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
        """Draw (R,) offsets to the later steps whose outcomes become the goals."""
        last = ring.steps_after(steps)
        if self.strategy == "final":
            return last
        first: Any = 0 if self.strategy == "future" else -ring.steps_before(steps)
        return generator.integers(first, last, endpoint=True)

    def _rewards(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Compute rewards (R, F) of achieved and desired goals (R, F, G)."""
        size = achieved.shape[-1]
        rewards = self.rewards(achieved.reshape(-1, size), desired.reshape(-1, size))
        shaped: NDArray[np.float32] = np.asarray(rewards, np.float32).reshape(achieved.shape[:-1])
        return shaped

    def _at_goal(self, achieved: Array, desired: Array) -> NDArray[np.bool_]:
        """Return (R, F) true if the reward equals that of achieving the desired goal exactly."""
        there: NDArray[np.bool_] = self._rewards(achieved, desired) >= self._rewards(
            desired, desired
        )
        return there
