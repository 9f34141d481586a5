"""Copies from the host's memory to a device."""

from __future__ import annotations

import torch
from torch import Tensor

_WAITING = ("cpu", "mps")


def to_device(
    value: Tensor, device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the tensor on a device, as a dtype; the process goes on while the copy is made, where that is safe.

    CUDA has read memory that is not pinned before the call returns, and waits for pinned memory before it is used
    again. MPS reads the host's memory later, when another tensor may already lie there (pytorch issues 139550 and
    189690), and a copy to the CPU that is not waited for has arbitrary values: these two wait.
    """
    return value.to(device, dtype, non_blocking=torch.device(device).type not in _WAITING)
