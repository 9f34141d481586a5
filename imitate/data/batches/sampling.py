"""Sampling of batches, and the order in which a training loads shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


class ShuffledBatches:
    """Endless batches of shuffled sample numbers, as ``batch_sampler`` of a DataLoader.

    Each pass visits every sample once, in a new order. The k-th batch depends only on ``seed`` and k, so training
    resumes exactly with ``start_batch=k``. With weights, a pass draws the same number of samples with replacement.

    Args:
        num_samples: number of samples, which are numbered from 0.
        batch_size: size of a batch; the last batch of a pass may be smaller.
        seed: seed of the order.
        start_batch: index k of the first batch.
        drop_last: true to leave out the smaller batch at the end of a pass.
        weights: (num_samples,) relative probability of each sample; None to draw all samples without replacement.
        part: slice of each batch for this process, if several processes share a batch.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        seed: int,
        start_batch: int = 0,
        drop_last: bool = False,
        weights: ArrayLike | None = None,
        part: slice = slice(None),
    ) -> None:
        if num_samples < 1 or batch_size < 1:
            raise ValueError(
                f"the number of samples and the batch size must be at least 1, got {num_samples} and {batch_size}"
            )
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.start_batch = start_batch
        self.part = part
        self._cumulative: NDArray[np.float64] | None = None
        if weights is not None:
            self._cumulative = np.cumsum(np.asarray(weights, dtype=np.float64))
            if self._cumulative.shape != (num_samples,) or not self._cumulative[-1] > 0:
                raise ValueError(f"expected {num_samples} weights with a positive sum")
        # a pass with fewer samples than a batch is one batch, even with drop_last
        whole = max(1, num_samples // batch_size)
        self.batches_per_pass = whole if drop_last else -(-num_samples // batch_size)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        number, batch = divmod(self.start_batch, self.batches_per_pass)
        while True:
            order = self._pass(number)
            for start in range(batch, self.batches_per_pass):
                yield order[start * self.batch_size : (start + 1) * self.batch_size][self.part]
            number, batch = number + 1, 0

    def _pass(self, number: int) -> NDArray[np.int64]:
        """Return the order of the samples in one pass over the data."""
        random = np.random.default_rng([self.seed, number])
        if self._cumulative is None:
            return random.permutation(self.num_samples)
        drawn = random.random(self.num_samples) * self._cumulative[-1]
        order: NDArray[np.int64] = np.searchsorted(self._cumulative, drawn, side="right")
        return order


@dataclass(frozen=True)
class Turn:
    """The batches drawn from one window of shards during one pass.

    Attributes:
        shards: numbers of the shards, ascending.
        sampler: yields batches of indices into the samples of these shards, starting with the first batch to use.
        batches: number of batches to take from ``sampler``, which is endless.
    """

    shards: tuple[int, ...]
    sampler: ShuffledBatches
    batches: int

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        for _, batch in zip(range(self.batches), self.sampler, strict=False):
            yield batch


class WindowSchedule:
    """Windows of shards, in a new order in each pass; the batches of a window are shuffled.

    The k-th batch depends only on the seed, k and the number of samples of each shard. If one window has all shards,
    the batches are the same as those of :class:`ShuffledBatches`.

    Args:
        samples: number of samples of each shard, at least one.
        window: number of shards that are used together.
        batch_size: size of a batch; the last batch of a window may be smaller.
        seed: seed of the order of shards and samples.
        drop_last: true to leave out the smaller batch at the end of a window.
        part: slice of each batch for this process, if several processes share a batch.
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
        """Yield the batches of the windows endlessly, from the batch with index ``start_batch`` on."""
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
