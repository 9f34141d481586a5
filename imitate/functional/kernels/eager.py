"""Test for shortcuts that only plain eager execution may take."""

from __future__ import annotations

import torch


def is_eager() -> bool:
    """Return False while torch compiles or exports code, or a function is transformed (``torch.func``).

    Those know torch's own operators only, not autograd functions, operators of oneDNN and numpy.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and not torch._C._are_functorch_transforms_active()
    )
