"""The DataLoader of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader


def make_loader(
    dataset: Any, batches: Iterable[Any], workers: int, device: torch.device
) -> DataLoader[Any]:
    """Make a standard DataLoader over an endless batch sampler, so that one iterator serves the whole run.

    The loader has its own generator for the workers' seeds, so torch's default generator stays unchanged. For a CUDA
    device batches are in pinned memory: a thread of the loader copies the workers' batches there, and without workers
    images are gathered there directly.
    """
    if device.type == "cuda" and workers == 0:
        dataset.pin_batches()
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        pin_memory=device.type == "cuda" and workers > 0,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers > 0 else None,
        generator=torch.Generator(),
    )
