"""Copies of tensors from the host's memory to a device."""

import torch
from torch import Tensor

_WAITING = ("cpu", "mps")


def to_device(
    value: Tensor, device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """Copy a tensor to a device and convert it to a dtype; the copy is asynchronous where that is safe.

    CUDA reads unpinned memory before the call returns, and waits for pinned memory before it is reused. MPS reads the
    host's memory later, when another tensor may already occupy it (pytorch issues 139550 and 189690), and an
    asynchronous copy to the CPU has arbitrary values until it is done; copies to MPS and to the CPU are therefore
    synchronous.
    """
    return value.to(device, dtype, non_blocking=torch.device(device).type not in _WAITING)
