"""Demonstration files: reading, writing, checking, and batches of windows for training.

The public names are imported on first use, so that writing a file needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "DataSource": "imitate.data.batches.store",
    "DatasetFile": "imitate.data.dataset_file",
    "DatasetWriter": "imitate.data.file.writer",
    "Episode": "imitate.data.file.episode",
    "KeyStats": "imitate.data.batches.statistics",
    "SequenceDataset": "imitate.data.batches.sequence_dataset",
    "ShuffledBatches": "imitate.data.batches.sampling",
    "build_datasets": "imitate.data.batches.build",
    "check_dataset": "imitate.data.dataset_file",
    "dataset_metadata": "imitate.data.batches.build",
    "finish_partial": "imitate.data.file.writer",
}

if TYPE_CHECKING:
    from imitate.data.batches.build import build_datasets, dataset_metadata
    from imitate.data.batches.sampling import ShuffledBatches
    from imitate.data.batches.sequence_dataset import SequenceDataset
    from imitate.data.batches.statistics import KeyStats
    from imitate.data.batches.store import DataSource
    from imitate.data.dataset_file import DatasetFile, check_dataset
    from imitate.data.file.episode import Episode
    from imitate.data.file.writer import DatasetWriter, finish_partial

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
