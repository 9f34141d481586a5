"""Sampling of batches."""

from __future__ import annotations

from collections.abc import Iterator

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
        start_batch: number of the first batch.
        drop_last: leave out the smaller batch at the end of a pass.
        weights: (num_samples,) relative probability of each sample; None: all are equally likely, without replacement.
        part: part of each batch to return, if several processes share a batch.
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
                f"expected at least one sample and one per batch, got {num_samples} and {batch_size}"
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
        # a pass smaller than one batch is a single batch, also with drop_last
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
