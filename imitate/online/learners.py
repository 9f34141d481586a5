"""From collected steps to updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from imitate.algo.algo import Algo, Info
from imitate.online.replay import ReplayBuffer
from imitate.online.steps import Collected


class Source(Protocol):
    """Anything that batches come from."""

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Raw values of ``batch_size`` samples."""


class MixedBuffer:
    """Batches of which a fixed share comes from each source, such as half from demonstrations.

    Args:
        parts: sources and their shares of a batch, which sum to 1. What is left by rounding falls to the first.
    """

    def __init__(self, parts: Sequence[tuple[Source, float]]) -> None:
        total = sum(share for _, share in parts)
        if abs(total - 1.0) > 1e-6 or any(share < 0 for _, share in parts):
            raise ValueError(f"shares {[share for _, share in parts]} do not sum to 1")
        self.parts = [(source, share) for source, share in parts if share > 0]

    def sample(self, batch_size: int) -> dict[str, Any]:
        """A batch in the order of the parts; keys that not all have are left out."""
        sizes = [round(batch_size * share) for _, share in self.parts]
        sizes[0] += batch_size - sum(sizes)
        return joined(
            [source.sample(n) for (source, _), n in zip(self.parts, sizes, strict=True) if n]
        )


def joined(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One batch from several."""
    if len(batches) == 1:
        return dict(batches[0])
    first = batches[0]
    return {
        key: joined([batch[key] for batch in batches])
        if isinstance(value, Mapping)
        else torch.cat([batch[key] for batch in batches])
        for key, value in first.items()
        if all(key in batch for batch in batches)
    }


class ReplayLearner:
    """Remembers steps and learns from samples, ``update_ratio`` updates per environment step.

    Args:
        algo: learns.
        memory: takes the steps.
        source: gives the batches: the memory, or a mixture with demonstrations.
        batch_size: of an update.
        update_ratio: updates per environment step.
        warmup_steps: environment steps that are remembered before the first update.

    Attributes:
        updates: done so far.
    """

    def __init__(
        self,
        algo: Algo,
        memory: ReplayBuffer,
        source: Source,
        *,
        batch_size: int,
        update_ratio: float,
        warmup_steps: int,
    ) -> None:
        self.algo, self.memory, self.source, self.updates = algo, memory, source, 0
        self._batch_size, self._ratio = batch_size, update_ratio
        self._warmup_left = float(warmup_steps)
        self._owed = 0.0

    def take(self, collected: Collected) -> None:
        """Remember steps."""
        for step in collected.steps:
            self.memory.add(step, collected.lanes)
        steps = collected.num_steps - self._warmup_left
        self._warmup_left = max(-steps, 0.0)
        self._owed += self._ratio * max(steps, 0.0)

    def updates_due(self, epoch: int) -> Iterator[Info]:
        """The updates that the steps so far allow."""
        while self._owed >= 1.0 and len(self.memory):
            self._owed -= 1.0
            yield self.update(epoch)

    def update(self, epoch: int) -> Info:
        """One update."""
        batch = self.algo.process_batch_for_training(self.source.sample(self._batch_size))
        self.updates += 1
        return self.algo.train_on_batch(batch, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Counters; the memory is saved apart."""
        return {"updates": self.updates, "owed": self._owed, "warmup_left": self._warmup_left}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self.updates = int(state["updates"])
        self._owed, self._warmup_left = float(state["owed"]), float(state["warmup_left"])
