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

    Its own generator gives the workers' seeds: making a loader leaves torch's default generator alone. For a CUDA
    device batches lie in pinned memory: a thread of the loader copies those of workers into it, and without workers
    images are gathered there at once.
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
