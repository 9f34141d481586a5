"""GPUs for trainings that run at the same time on this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

VISIBLE = "CUDA_VISIBLE_DEVICES"


class GpuShares:
    """GPUs that are given to processes, each the one that has the fewest.

    Args:
        names: as ``CUDA_VISIBLE_DEVICES`` has them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._users = dict.fromkeys(names, 0)
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, device: str | None) -> Iterator[dict[str, str]]:
        """Take a GPU for a process, whose additional environment variables this yields.

        Args:
            device: ``train.device`` of the process; with a number in it, or ``cpu``, the process takes none of ours.
        """
        if len(self._users) < 2 or device not in (None, "cuda"):
            yield {}
            return
        with self._lock:
            name = min(self._users, key=self._users.__getitem__)
            self._users[name] += 1
        try:
            yield {VISIBLE: name}
        finally:
            with self._lock:
                self._users[name] -= 1


def visible_gpus(variables: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` has them."""
    named = variables.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
