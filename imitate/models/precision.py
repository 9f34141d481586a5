"""Fast computing on a device: bf16 where it has that, compiled networks."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

CPU_COMPUTES_BF16 = (
    not torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
)
"""False on a processor for which oneDNN refuses bf16. Without oneDNN, torch's own kernels compute in any type.

A constant, because an operator that is called while a network is traced becomes a part of what is traced.
"""


CPU_BF16 = ("avx512_bf16", "amx_bf16")
"""Instructions with which a processor computes in bf16."""
CUDA_BF16 = 8
"""Compute capability from which a GPU does, that of Ampere; ``torch.cuda.is_bf16_supported()`` counts emulation."""


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype that ``train.precision`` means on this device: bf16 on 'auto' only where the hardware has it."""
    if precision == "fp32":
        return torch.float32
    if precision == "bf16" or has_fast_bf16(device):
        return torch.bfloat16
    return torch.float32


def autocast(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a maker of contexts in which wide layers compute in bf16, if :func:`autocast_dtype` is bf16."""
    if autocast_dtype(precision, device) is torch.float32:
        return nullcontext  # torch 2.4 has no autocast for MPS, not even one that is off
    return partial(torch.autocast, device.type, dtype=torch.bfloat16)


def has_fast_bf16(device: torch.device) -> bool:
    """Return True where a device computes in bf16, rather than emulating it."""
    if device.type == "cuda":
        capability_of = torch.cuda.get_device_capability
        return torch.version.hip is not None or capability_of(device)[0] >= CUDA_BF16
    if device.type == "cpu":
        # Older torch has no such test; then fp32 is the safe answer.
        capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return any(capability.get(name) for name in CPU_BF16)
    return False


def compile_networks(nets: Iterable[nn.Module], device: torch.device) -> None:
    """Compile networks in place; on CUDA with graphs, which pay for small networks."""
    if device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
        warnings.warn(
            "train.compile needs a C++ compiler on the CPU and none was found; continuing without it",
            stacklevel=2,
        )
        return
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    for net in nets:
        net.compile(mode=mode)


def begin_compiled_step(device: torch.device) -> None:
    """Tell CUDA graphs that results of the last update are no longer needed.

    Without it each call of a compiled network may overwrite results of the call before, such as those of target
    networks, which the losses of the same update still need.
    """
    if device.type == "cuda":
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
