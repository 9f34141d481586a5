"""Precision and speed on a device: bf16 if the hardware supports it, compiled networks, fast mode switching."""

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
"""False if oneDNN does not support bf16 on this processor. Without oneDNN, torch's own kernels compute in any dtype.

This is a constant, because calling the check while a network is traced would make it a part of the network.
"""


CPU_BF16 = ("avx512_bf16", "amx_bf16")
"""CPU instructions for computing in bf16."""
CUDA_BF16 = 8
"""Smallest compute capability of GPUs with bf16 (Ampere). ``torch.cuda.is_bf16_supported()`` also counts emulation."""


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype that ``train.precision`` means on this device.

    'auto' means bf16 only if the hardware supports it.
    """
    if precision == "fp32":
        return torch.float32
    if precision == "bf16" or has_fast_bf16(device):
        return torch.bfloat16
    return torch.float32


def autocast(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that makes autocast contexts, which have an effect if :func:`autocast_dtype` is bf16."""
    if autocast_dtype(precision, device) is torch.float32:
        return nullcontext  # torch 2.4 has no autocast for MPS, not even a disabled one
    return partial(torch.autocast, device.type, dtype=torch.bfloat16)


def has_fast_bf16(device: torch.device) -> bool:
    """Return True if a device computes in bf16 without emulation."""
    if device.type == "cuda":
        capability_of = torch.cuda.get_device_capability
        return torch.version.hip is not None or capability_of(device)[0] >= CUDA_BF16
    if device.type == "cpu":
        # older torch versions cannot report the CPU's instructions; False, which means fp32, is then safe
        capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return any(capability.get(name) for name in CPU_BF16)
    return False


def compile_networks(nets: Iterable[nn.Module], device: torch.device) -> None:
    """Compile networks in place that are not compiled yet; on CUDA with graphs, which speed up small networks."""
    if device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
        warnings.warn(
            "train.compile needs a C++ compiler on the CPU, but none was found; networks are not compiled",
            stacklevel=2,
        )
        return
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    for net in nets:
        if net._compiled_call_impl is None:
            net.compile(mode=mode)


def begin_compiled_step(device: torch.device) -> None:
    """Mark the results of the last update as no longer needed, for CUDA graphs.

    Without this mark, a call of a compiled network may overwrite results of the previous call, such as target values
    that the losses of an update still need.
    """
    if device.type == "cuda":
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def set_mode(net: nn.Module, training: bool) -> None:
    """Switch a network with all its parts, like ``net.train(training)`` but four times as fast.

    torch sets each flag by ``nn.Module.__setattr__``, which first checks for weights. For parts that override
    ``train``, such as frozen encoders, their own method is called.
    """
    waiting = [net]
    while waiting:
        module = waiting.pop()
        values = module.__dict__
        if type(module).train is not nn.Module.train or "training" not in values:
            module.train(training)
            continue
        values["training"] = training
        waiting.extend(part for part in module._modules.values() if part is not None)
