"""Hindsight goals of offline goal-conditioned RL: states of the data that become the goals of samples.

Goals are drawn as in OGBench (Park et al., ICLR 2025, arXiv:2410.20092). For step t of a demo, with s[T] the state
after the demo's last known transition, a goal is one of:

    own        s[t]
    random     a state before any transition of the data
    later      s[min(t + k, T)], with k geometric, P(k) = (1 - g) g^(k - 1) for k >= 1; or uniform from s[t+1] to s[T],
               where these two have half the probability of each state between them
    subgoal    s[min(t + n, T)], for the low level of a hierarchy; the target of the high level is s[min(t + n, goal)],
               or s[min(t + n, T)] if the goal is random

The random numbers are seeded with the indices of the batch's samples, in their order. So a resumed training gets the
same goals, with any number of loading processes.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.data_needs import GoalShares, HindsightGoals
from imitate.data.batches.windows import Gatherer, Observations, WindowRows
from imitate.functional.transfer import to_device

Rows = NDArray[np.int64]


class GoalStates(NamedTuple):
    """States of the data that were drawn as goals.

    Attributes:
        rows: (B,) row of the store at which the state was observed.
        after: (B,) bool, true if the state was observed after this row, which is then the last one of its demo.
    """

    rows: Rows
    after: NDArray[np.bool_]


class GoalSampler:
    """Draws the goals of the samples of a batch.

    Args:
        wanted: distributions of the goals.
        demo_end: (number of demos,) index after the last row of each demo.
        end_is_known: true if the state after a demo's last row is known; if not, the last row is not a transition.
    """

    def __init__(self, wanted: HindsightGoals, demo_end: Rows, *, end_is_known: bool) -> None:
        self._wanted, self._end_is_known = wanted, end_is_known
        usable = np.ones(int(demo_end[-1]), dtype=bool)
        usable[demo_end - 1] = end_is_known
        self.usable: NDArray[np.bool_] = usable
        """(N,) false for rows that are not transitions."""
        self._starts = None if end_is_known else np.flatnonzero(usable)
        self._count = int(usable.sum())

    def add_to(
        self, batch: dict[str, object], now: Rows, window: WindowRows, read: Gatherer
    ) -> None:
        """Add goals for the samples at rows ``now`` (B,) to their batch.

        The batch gets ``goal_obs`` and ``value_goals`` {key: (B, ...)}, the goals for the policy and for the value
        function; ``at_goal`` (B,) bool, true if the value goal is the sample's own state; and for a hierarchical policy
        ``low_goals`` and ``high_targets`` {key: (B, ...)}.
        """
        chosen = self.draw(now, window.last[:, 0], generator_of(batch["index"]))
        last = window.last
        for name, states in chosen.items():
            batch[name] = self._observed(states, last, read)
        own = chosen["value_goals"]
        at_goal = torch.from_numpy((own.rows == now) & ~own.after)
        device = next(iter(batch["goal_obs"].values())).device  # type: ignore[attr-defined]
        batch["at_goal"] = to_device(at_goal, device)

    def draw(self, now: Rows, last: Rows, generator: np.random.Generator) -> dict[str, GoalStates]:
        """Draw the goals of samples at rows ``now`` (B,), in demos whose last rows are ``last`` (B,)."""
        # If the file contains the state after a demo's last step, this state is the last one of the demo.
        final = last + self._end_is_known
        goal, is_random = self._goals(now, final, self._wanted.value, generator)
        drawn = {"value_goals": self._states(goal, last, is_random)}
        steps = self._wanted.subgoal_steps
        goal, is_random = self._goals(now, final, self._wanted.actor, generator)
        drawn["goal_obs"] = self._states(goal, last, is_random)
        if steps is not None:
            never = np.zeros(len(now), dtype=bool)
            ahead = np.minimum(now + steps, final)
            drawn["low_goals"] = self._states(ahead, last, never)
            nearest = np.where(is_random, ahead, np.minimum(ahead, goal))
            drawn["high_targets"] = self._states(nearest, last, never)
        return drawn

    def _goals(
        self, now: Rows, final: Rows, shares: GoalShares, generator: np.random.Generator
    ) -> tuple[Rows, NDArray[np.bool_]]:
        """Draw the rows (B,) of goal states, and a mask that is true for states drawn from all data."""
        count = len(now)
        if shares.geometric:
            goal = np.minimum(now + generator.geometric(1.0 - self._wanted.discount, count), final)
        else:
            first = np.minimum(now + 1, final)
            goal = first + np.rint(generator.random(count) * (final - first)).astype(np.int64)
        kind = generator.random(count)
        is_random = kind < shares.random
        goal = np.where(kind >= 1.0 - shares.current, now, goal)
        any_row = generator.integers(self._count, size=count)
        if self._starts is not None:
            any_row = self._starts[any_row]
        return np.where(is_random, any_row, goal), is_random

    @staticmethod
    def _states(number: Rows, last: Rows, is_random: NDArray[np.bool_]) -> GoalStates:
        """Return the states at rows ``number`` (B,); row ``last + 1`` means the state after the demo's last step."""
        after = ~is_random & (number > last)
        return GoalStates(np.where(after, last, number), after)

    def _observed(self, states: GoalStates, last: Rows, read: Gatherer) -> Observations:
        keys = self._wanted.keys
        obs = {
            key: value[:, 0]
            for key, value in read.observations(states.rows[:, None], keys=keys).items()
        }
        rows = np.flatnonzero(states.after)
        if len(rows):
            ends = read.after(states.rows[rows, None], last[rows], keys=keys)
            for key, value in ends.items():
                obs[key][to_device(torch.from_numpy(rows), value.device)] = value[:, 0]
        return obs


def generator_of(index: object) -> np.random.Generator:
    """Return a random number generator that is seeded with the indices (B,) of a batch's samples."""
    assert isinstance(index, Tensor)
    digest = hashlib.blake2b(index.numpy().tobytes(), digest_size=16).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))


def goal_sampler(
    wanted: HindsightGoals | None, demo_end: Rows, *, end_is_known: bool
) -> GoalSampler | None:
    """Return the sampler of hindsight goals, or None if the algorithm needs no goals."""
    return None if wanted is None else GoalSampler(wanted, demo_end, end_is_known=end_is_known)
