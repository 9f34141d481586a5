"""Switch that decides whether these kernels replace torch's own."""

from __future__ import annotations

import os
from functools import cache

import torch


@cache
def switched_on() -> bool:
    """Return False if the environment variable ``IMITATE_KERNELS`` is 0."""
    return os.environ.get("IMITATE_KERNELS") != "0"


def kernels_apply() -> bool:
    """Return True in plain eager execution with the switch on.

    While torch compiles or exports code, or transforms a function (``torch.func``), it supports only its own operators,
    and neither autograd functions nor operators of oneDNN and numpy.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and not torch._C._are_functorch_transforms_active()
        and switched_on()
    )
