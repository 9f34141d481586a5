"""Demonstration files: reading, writing, checking, and batches of windows for training.

The public names are imported on first use: writing a file needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "DataSource": "imitate.data.store",
    "DatasetFile": "imitate.data.hdf5_format",
    "DatasetWriter": "imitate.data.writer",
    "Episode": "imitate.data.episode",
    "KeyStats": "imitate.data.statistics",
    "SequenceDataset": "imitate.data.sequence_dataset",
    "ShuffledBatches": "imitate.data.sampling",
    "build_datasets": "imitate.data.build",
    "check_dataset": "imitate.data.check",
    "dataset_metadata": "imitate.data.build",
    "finish_partial": "imitate.data.writer",
}

if TYPE_CHECKING:
    from imitate.data.build import build_datasets, dataset_metadata
    from imitate.data.check import check_dataset
    from imitate.data.episode import Episode
    from imitate.data.hdf5_format import DatasetFile
    from imitate.data.sampling import ShuffledBatches
    from imitate.data.sequence_dataset import SequenceDataset
    from imitate.data.statistics import KeyStats
    from imitate.data.store import DataSource
    from imitate.data.writer import DatasetWriter, finish_partial

__all__ = [
    "DataSource",
    "DatasetFile",
    "DatasetWriter",
    "Episode",
    "KeyStats",
    "SequenceDataset",
    "ShuffledBatches",
    "build_datasets",
    "check_dataset",
    "dataset_metadata",
    "finish_partial",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'imitate.data' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
