"""In which numbers a device computes."""

from __future__ import annotations

from typing import Any

import torch


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype that ``train.precision`` means on this device: bf16 on 'auto' only where the hardware has it."""
    if precision == "fp32":
        return torch.float32
    if precision == "bf16" or has_fast_bf16(device):
        return torch.bfloat16
    return torch.float32


def has_fast_bf16(device: torch.device) -> bool:
    """Whether a device computes in bf16, rather than emulating it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if device.type == "cpu":
        # Older torch cannot tell; then fp32 is the safe answer.
        capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(capability.get("avx512_bf16") or capability.get("amx_bf16"))
    return False
