"""Order in which a training processes shards, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imitate.data.batches.sampling import ShuffledBatches


@dataclass(frozen=True)
class Turn:
    """The batches drawn from one window of shards during one pass.

    Attributes:
        shards: numbers of the shards, ascending.
        sampler: yields the batches of this window, from the first one to use, as sample numbers of these shards.
        batches: number of batches.
    """

    shards: tuple[int, ...]
    sampler: ShuffledBatches
    batches: int

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        for _, batch in zip(range(self.batches), self.sampler, strict=False):
            yield batch


class WindowSchedule:
    """Windows of shards, in a new order in each pass; the batches of a window are shuffled.

    The k-th batch depends only on the seed, k and the numbers of samples. With one window for all shards, the batches
    equal those of :class:`ShuffledBatches`.

    Args:
        samples: number of samples of each shard, at least one.
        window: number of shards that are used together.
        batch_size: size of a batch; the last batch of a window may be smaller.
        seed: seed of the orders.
        drop_last: leave out the smaller batch at the end of a window.
        part: part of each batch to return, if several processes share a batch.
    """

    def __init__(
        self,
        samples: Sequence[int],
        window: int,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = False,
        part: slice = slice(None),
    ) -> None:
        self._samples, self._window, self._batch_size = tuple(samples), window, batch_size
        self._seed, self._drop_last, self._part = seed, drop_last, part

    def turns(self, start_batch: int = 0) -> Iterator[Turn]:
        """Yield the windows' batches endlessly, from the batch of this number on."""
        number, skipped = 0, start_batch
        while True:
            for shards in self.windows(number):
                sampler = self._sampler(shards)
                batches = sampler.batches_per_pass
                if skipped >= batches:
                    skipped -= batches
                    continue
                sampler.start_batch = number * batches + skipped
                yield Turn(shards, sampler, batches - skipped)
                skipped = 0
            number += 1

    def windows(self, number: int) -> list[tuple[int, ...]]:
        """Return the windows of one pass, in order."""
        order = np.random.default_rng([self._seed, number, 1]).permutation(len(self._samples))
        return [
            tuple(sorted(order[i : i + self._window].tolist()))
            for i in range(0, len(order), self._window)
        ]

    def _sampler(self, shards: Sequence[int]) -> ShuffledBatches:
        return ShuffledBatches(
            sum(self._samples[shard] for shard in shards),
            self._batch_size,
            self._seed,
            drop_last=self._drop_last,
            part=self._part,
        )
