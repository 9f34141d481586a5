"""Prioritized replay: steps with large TD errors are sampled more often.

Schaul et al., "Prioritized Experience Replay", ICLR 2016 (arXiv:1511.05952). With the temporal-difference error d of a
step, its probability is p / sum p, p = (|d| + eps)^alpha, and its weight in the loss (N P)^-beta, divided by the
largest weight of the batch. New steps have the highest priority seen so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.online.replay import ReplayBuffer
from imitate.online.steps import Array
from imitate.system.ranks import ALONE, Ranks

SMALLEST = 1e-6


class SumTree:
    """Array with search in prefix sums and change of entries in log(size) steps, vectorized.

    Args:
        size: number of entries.
    """

    def __init__(self, size: int) -> None:
        self._leaves = 1 << max(size - 1, 0).bit_length()
        self._sums = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """Sum of all entries."""
        return float(self._sums[1])

    def __getitem__(self, index: Array) -> NDArray[np.float64]:
        """Return the entries at these indices."""
        numbers: NDArray[np.float64] = self._sums[np.asarray(index) + self._leaves]
        return numbers

    def set(self, index: Array, values: Array | float) -> None:
        """Change entries; for a repeated index the last value counts."""
        nodes = np.asarray(index) + self._leaves
        self._sums[nodes] = values
        while len(nodes) and nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, sums: NDArray[np.float64]) -> NDArray[np.int64]:
        """Find for each s in [0, total) the index i with sum before i <= s < sum up to i."""
        nodes = np.ones(len(sums), dtype=np.int64)
        rest = sums.copy()
        while nodes[0] < self._leaves:
            nodes *= 2
            left = self._sums[nodes]
            # Rounding errors must not lead into an empty half.
            right = (rest >= left) & (self._sums[nodes + 1] > 0)
            rest -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self._leaves


class PrioritizedReplay(ReplayBuffer):
    """Replay buffer that samples steps by priority.

    Args:
        alpha: exponent of the priorities; 0 samples uniformly, 1 in proportion to errors.
        beta: exponent of the importance weights in the loss at the start of the training; 0 for none, 1 for full
            correction. :meth:`anneal` raises it to 1.
        ranks: the processes whose weights are scaled together.
        **kwargs: arguments of :class:`ReplayBuffer`.
    """

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        ranks: Ranks = ALONE,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._ranks = ranks
        self.beta = self._beta_at_start = beta
        self._alpha = alpha
        self._tree = SumTree(len(self.live))
        self._highest = 1.0

    def _draw(self, size: int) -> NDArray[np.int64]:
        """Draw one row from each of ``size`` equal parts of the sum."""
        if not self._size:
            raise ValueError("nothing to sample: the memory is empty")
        parts = (np.arange(size) + self.generator.random(size)) / size
        return self._tree.find(parts * self._tree.total)

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Sample by priority, with ``weight`` (B, F) beside what :meth:`at` returns; all ranks call this together."""
        rows = self._draw(batch_size)
        batch = self.at(rows)
        probability = self._tree[rows] / max(self._tree.total, SMALLEST)
        size = self._ranks.total(self._size)
        weight = (size * np.maximum(probability, SMALLEST**2)) ** -self.beta
        largest = self._ranks.table(weight.max()).max()
        weights = torch.from_numpy((weight / largest).astype(np.float32))
        weights = weights.unsqueeze(-1).expand(-1, self.frame_stack)
        batch["weight"] = batch["weight"] * weights if "weight" in batch else weights
        return batch

    def anneal(self, progress: float) -> None:
        """Raise ``beta`` linearly to 1 with the training's progress in [0, 1]."""
        self.beta = self._beta_at_start + (1.0 - self._beta_at_start) * progress

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Set priorities from the TD errors (B,) of the samples ``rows`` (B,); skip overwritten rows."""
        kept = self.live[rows]
        priorities = (np.abs(errors[kept]) + SMALLEST) ** self._alpha
        if len(priorities):
            self._tree.set(rows[kept], priorities)
            self._highest = max(self._highest, float(priorities.max()))

    def _remember(self, rows: Any, count: int) -> None:
        super()._remember(rows, count)
        self._tree.set(self._numbers(rows), self._highest)

    def _forget(self, rows: Any) -> None:
        super()._forget(rows)
        self._tree.set(self._numbers(rows), 0.0)

    def _numbers(self, rows: Any) -> NDArray[np.int64]:
        """Convert a slice of rows to an array of rows."""
        return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows

    def state_dict(self) -> dict[str, Any]:
        """Return the base class's state with the priorities."""
        state = super().state_dict()
        rows = len(state["rows"]["live"])
        state["rows"]["priority"] = torch.from_numpy(self._tree[np.arange(rows)].copy())
        return {**state, "highest": self._highest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the base class's state with the priorities."""
        rows = dict(state["rows"])
        priority = rows.pop("priority").numpy()
        super().load_state_dict({**state, "rows": rows})
        self._tree.set(np.arange(len(priority)), priority)
        self._highest = float(state["highest"])
