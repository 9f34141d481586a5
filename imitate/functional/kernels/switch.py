"""Switch: whether the kernels of this room take the place of torch's."""

from __future__ import annotations

import os
from functools import cache

import torch


@cache
def switched_on() -> bool:
    """Return False where the environment variable ``IMITATE_KERNELS`` is 0."""
    return os.environ.get("IMITATE_KERNELS") != "0"


def kernels_apply() -> bool:
    """Return True in plain eager execution, where the switch is on.

    While torch compiles or exports code, or transforms a function (``torch.func``), torch's own operators alone are
    known, and neither autograd functions nor operators of oneDNN and numpy.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and not torch._C._are_functorch_transforms_active()
        and switched_on()
    )
