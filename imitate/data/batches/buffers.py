"""Reuse of the memory of batches.

New memory of some megabytes is allocated page by page, which takes longer than filling it with images.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SMALLEST_BYTES = 2**17
_MAX_FREE = 4
_MAX_SIZES = 8


class Buffers:
    """Pool of tensors. The memory of a tensor returns to the pool when neither it nor a view of it exists any more.

    Attributes:
        pinned: true for memory from which a CUDA device can copy asynchronously. torch then manages the pool, because
            it knows when such a copy is done.
    """

    def __init__(self) -> None:
        self.pinned = False
        self._free: dict[int, list[NDArray[np.uint8]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pinned = False  # true in a worker process, which does not use the device
        self._free = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """Return a tensor with undefined values."""
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALLEST_BYTES:
            return torch.from_numpy(np.empty(shape, dtype))
        if self.pinned:
            like = torch.from_numpy(np.empty(0, dtype))
            return torch.empty(shape, dtype=like.dtype, pin_memory=True)
        free = self._free.get(size)
        memory = free.pop() if free else np.empty(size, np.uint8)
        lent = memory.view(dtype).reshape(shape)
        # Only the tensor and its views hold a reference to `lent`.
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return torch.from_numpy(lent)

    def _take_back(self, memory: NDArray[np.uint8]) -> None:
        if memory.nbytes not in self._free and len(self._free) >= _MAX_SIZES:
            self._free.clear()
        free = self._free.setdefault(memory.nbytes, [])
        if len(free) < _MAX_FREE:
            free.append(memory)
