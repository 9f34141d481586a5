"""Mean, standard deviation and range of each key."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class KeyStats:
    """Statistics of one key over all steps, float64, with the shape of one step; for images per channel, in [0, 1].

    Attributes:
        mean: average.
        std: population standard deviation (with n, not n - 1).
        min: smallest value.
        max: largest value.
        find_quantiles: function that computes :attr:`quantiles` from all values; None if there are too many values.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    find_quantiles: Callable[[], Mapping[float, NDArray[np.float64]]] | None = None

    @property
    def quantiles(self) -> Mapping[float, NDArray[np.float64]] | None:
        """Quantiles of vectors by their level in :data:`QUANTILES`; None for images and scans."""
        return None if self.find_quantiles is None else self.find_quantiles()


QUANTILES = (0.01, 0.1, 0.9, 0.99)
"""Levels of the quantiles that normalizations use."""


def quantiles_of(values: NDArray[Any]) -> dict[float, NDArray[np.float64]]:
    """Compute the quantiles of :data:`QUANTILES` over the first axis, column by column to save memory."""
    columns = values.reshape(len(values), -1)
    found = np.empty((len(QUANTILES), columns.shape[1]))
    for number, column in enumerate(columns.T):
        found[:, number] = np.quantile(column.astype(np.float64), QUANTILES)
    found = found.reshape(-1, *values.shape[1:])
    return dict(zip(QUANTILES, found, strict=True))


def statistics_of(chunks: Iterable[NDArray[Any]]) -> KeyStats:
    """Compute statistics over the first axis of successive arrays, in float64, without keeping them in memory.

    Chunks are merged by mean and sum of squared differences (Chan, Golub, LeVeque 1983), which avoids the cancellation
    of a difference of two sums of squares.

    Args:
        chunks: arrays (n, ...), with at least one row in total.
    """
    count = 0
    mean = squares = low = high = np.zeros(())
    for chunk in chunks:
        values = chunk.astype(np.float64)
        n = len(values)
        chunk_mean = values.mean(axis=0)
        chunk_squares = ((values - chunk_mean) ** 2).sum(axis=0)
        chunk_low, chunk_high = values.min(axis=0), values.max(axis=0)
        if count == 0:
            mean, squares, low, high = chunk_mean, chunk_squares, chunk_low, chunk_high
        else:
            delta = chunk_mean - mean
            mean = mean + delta * (n / (count + n))
            squares = squares + chunk_squares + delta**2 * (count * n / (count + n))
            low, high = np.minimum(low, chunk_low), np.maximum(high, chunk_high)
        count += n
    return KeyStats(mean, np.sqrt(squares / count), low, high)


def image_statistics(chunks: Iterable[NDArray[Any]]) -> KeyStats:
    """Compute statistics per channel of successive images, with uint8 as [0, 1].

    For uint8 images, the number of pixels with each of the 256 values is counted, which is exact and takes a tenth of
    the time of sums in float64.

    Args:
        chunks: arrays (n, H, W, C) of one type, with at least one image in total.
    """
    images = (image for chunk in chunks for image in chunk)
    first = next(images)
    every = itertools.chain([first], images)
    if first.dtype != np.uint8:
        return statistics_of(image.reshape(-1, image.shape[-1]) for image in every)
    counts = np.zeros((first.shape[-1], 256), dtype=np.int64)
    for image in every:
        for channel, levels in enumerate(counts):
            levels += np.bincount(image[..., channel].ravel(), minlength=256)
    levels, total = np.arange(256) / 255.0, counts.sum(axis=1)
    mean = counts @ levels / total
    variance = (counts * (levels - mean[:, None]) ** 2).sum(axis=1) / total
    seen = counts > 0
    low, high = seen.argmax(axis=1), 255 - seen[:, ::-1].argmax(axis=1)
    return KeyStats(mean, np.sqrt(variance), low / 255.0, high / 255.0)


class StatsOnDemand(Mapping[str, KeyStats]):
    """Statistics per key, each computed on first use.

    Args:
        keys: the available keys.
        compute: function that computes the statistics of one key.
    """

    def __init__(self, keys: Iterable[str], compute: Callable[[str], KeyStats]) -> None:
        self._compute = compute
        self._known: dict[str, KeyStats | None] = dict.fromkeys(keys)

    def __getitem__(self, key: str) -> KeyStats:
        known = self._known[key]
        if known is None:
            known = self._known[key] = self._compute(key)
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
