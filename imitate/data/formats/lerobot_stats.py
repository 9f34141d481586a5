"""Exact statistics of a dataset that does not fit into memory.

Vectors are written to a temporary file and read back one dimension at a time, so that quantiles include all values.
Frames are counted in a histogram of 256 values per channel, which is equally exact.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Stats = dict[str, NDArray[np.float64]]


def stats_of(values: NDArray[Any]) -> Stats:
    """Return statistics of (T, D) values per dimension: min, max, mean, std, count, quantiles."""
    exact = values.astype(np.float64)
    return {
        "min": exact.min(axis=0),
        "max": exact.max(axis=0),
        "mean": exact.mean(axis=0),
        "std": exact.std(axis=0),
        "count": np.array([len(exact)], dtype=np.float64),
        **{name: np.quantile(exact, level, axis=0) for name, level in QUANTILES.items()},
    }


def stats_of_frames(counts: NDArray[np.int64], frames: int) -> Stats:
    """Return statistics of a histogram (C, 256) of pixel values in [0, 1], like :func:`stats_of` but (C, 1, 1)."""
    levels = np.arange(256) / 255.0
    total = counts.sum(axis=1)
    mean = (counts * levels).sum(axis=1) / total
    variance = (counts * (levels[None] - mean[:, None]) ** 2).sum(axis=1) / total
    seen = counts > 0
    found = {
        "min": levels[seen.argmax(axis=1)],
        "max": levels[255 - seen[:, ::-1].argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt(variance),
        **{name: _quantile(counts, total, level) / 255.0 for name, level in QUANTILES.items()},
    }
    shaped = {key: value.reshape(-1, 1, 1) for key, value in found.items()}
    return {**shaped, "count": np.array([frames], dtype=np.float64)}


def _quantile(
    counts: NDArray[np.int64], total: NDArray[np.int64], level: float
) -> NDArray[np.float64]:
    """Interpolate between the two values around the position (n - 1) * level, as numpy does."""
    cumulated = counts.cumsum(axis=1)
    position = (total - 1) * level
    below, above = np.floor(position), np.ceil(position)
    low = np.array(
        [np.searchsorted(row, at, side="right") for row, at in zip(cumulated, below, strict=True)]
    )
    high = np.array(
        [np.searchsorted(row, at, side="right") for row, at in zip(cumulated, above, strict=True)]
    )
    return np.asarray(low + (high - low) * (position - below), dtype=np.float64)


def histogram(frames: NDArray[Any]) -> NDArray[np.int64]:
    """Count each value per channel of uint8 images (T, H, W, C): (C, 256)."""
    return np.stack(
        [
            np.bincount(frames[..., channel].ravel(), minlength=256)
            for channel in range(frames.shape[-1])
        ]
    )


class RunningStats:
    """Statistics of one feature over all episodes."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by result()
        self._counts: NDArray[np.int64] | None = None
        self._dims = self._rows = 0

    def add(self, values: NDArray[Any]) -> Stats:
        """Add the next episode, (T, D) numbers or (T, H, W, C) frames; return its own statistics."""
        self._rows += len(values)
        if values.ndim == 4:
            counts = histogram(values)
            self._counts = counts if self._counts is None else self._counts + counts
            return stats_of_frames(counts, len(values))
        self._dims = values.shape[1]
        self._file.write(np.ascontiguousarray(values, dtype=np.float32).tobytes())
        return stats_of(values)

    def result(self) -> Stats:
        """Return the statistics of all episodes."""
        with self._file as file:
            if self._counts is not None:
                return stats_of_frames(self._counts, self._rows)
            file.flush()
            rows: Any = np.memmap(file, dtype=np.float32, mode="r", shape=(self._rows, self._dims))
            columns = [stats_of(np.asarray(rows[:, [dim]])) for dim in range(self._dims)]
        merged = {key: np.concatenate([column[key] for column in columns]) for key in columns[0]}
        return {**merged, "count": np.array([self._rows], dtype=np.float64)}
