"""Activations of latent models on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from imitate.functional.kernels.products import kernels_apply

LARGEST = 20.0
"""Input from which the Mish activation is the identity in float32."""


def mish(x: Tensor) -> Tensor:
    """Mish activation ``x tanh(log(1 + e^x))`` (Misra 2020, arXiv:1908.08681).

    With w = e^x and n = w (w + 2) it is ``x n / (n + 2)``: one exponential instead of torch's three functions, without
    gradients.
    """
    if x.device.type != "cpu" or torch.is_grad_enabled() or not kernels_apply():
        return F.mish(x)
    w = x.clamp(max=LARGEST).exp_()
    n = w.add(2.0).mul_(w)
    torch.add(n, 2.0, out=w)  # new memory for many rows takes as long as computing them
    return n.div_(w).mul_(x)


def group_softmax(x: Tensor, size: int) -> Tensor:
    """Softmax in each group of ``size`` neighbours of (*B, D); torch's own does not vectorize so few numbers."""
    groups = x.reshape(*x.shape[:-1], -1, size)
    if x.device.type != "cpu" or not kernels_apply():
        return groups.softmax(-1).flatten(-2)
    powers = (groups - groups.amax(-1, keepdim=True).detach()).exp()
    return (powers / powers.sum(-1, keepdim=True)).flatten(-2)
