"""Windows of the training data to which the steps of ``train.preprocess`` are fitted."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from imitate.algo.base.algo import Algo
from imitate.data import SequenceDataset
from imitate.models.preprocessing.measuring import Sample

MAX_WINDOWS = 20_000
"""Largest number of windows, evenly spread, for the statistics of preprocessed values."""
MAX_FRAMES = 1000
"""Largest number of images per key in these windows."""
_WINDOWS_AT_ONCE = 256


def samples_of(train_set: SequenceDataset, algo: Algo, keys: Collection[str]) -> Iterator[Sample]:
    """Return windows with these observations and with the actions that an algorithm learns.

    Args:
        train_set: the data.
        algo: defines the reference observation of relative actions: the one at a chunk's beginning, or each step's own.
        keys: requested observations.
    """
    first, per_chunk = algo.frame_stack - 1, algo.execution is not None
    most = min(len(train_set), MAX_WINDOWS)
    if any(len(train_set.obs_shapes[key]) > 1 for key in keys):
        most = min(most, max(1, MAX_FRAMES // train_set.window_steps))
    index = np.linspace(0, len(train_set) - 1, most).astype(np.int64)
    for part in np.array_split(index, -(-most // _WINDOWS_AT_ONCE)):
        window = train_set.windows(part, keys)
        obs, start = window["obs"], first if per_chunk else 0
        yield Sample(
            obs,
            window["actions"][:, start:],
            {key: obs[key][:, first] if per_chunk else obs[key] for key in keys},
            window["pad_mask"][:, start:],
        )
