"""Average of gradients over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from imitate.system.ranks import Ranks, collective


class GradientAverage:
    """Averages the gradients of any list of weights over the ranks.

    DistributedDataParallel does this only for networks that are called through it; algorithms here call parts of their
    networks, and train only some of the weights in a loss.

    Args:
        ranks: the ranks, all of which average the gradients of the same weights in the same order.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @contextmanager
    def __call__(self, weights: Sequence[nn.Parameter]) -> Iterator[None]:
        """Replace ``grad`` of each of these weights by its mean over the ranks after the backward pass in the body.

        A weight keeps None if no rank has a gradient for it; if only some ranks have one, the others count as 0.
        """
        yield
        sizes = [weight.numel() for weight in weights]
        # A single exchange holds all gradients, followed by the number of ranks that have a gradient of each weight.
        flat = torch.zeros(
            sum(sizes) + len(sizes), device=weights[0].device, dtype=weights[0].dtype
        )
        *parts, shares = torch.split(flat, [*sizes, len(sizes)])
        means = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        has = [weight.grad is not None for weight in weights]
        own = [(mean, w.grad) for mean, w in zip(means, weights, strict=True) if w.grad is not None]
        if own:
            torch._foreach_copy_([mean for mean, _ in own], [gradient for _, gradient in own])
        if all(has):
            shares.fill_(1.0)  # a copy would make the process wait for the GPU
        else:
            shares.copy_(torch.tensor(has, dtype=flat.dtype), non_blocking=True)
        with collective():
            dist.all_reduce(flat)
        flat /= self._ranks.world
        if own:
            torch._foreach_copy_([gradient for _, gradient in own], [mean for mean, _ in own])
        if not all(has):
            for weight, mean, share in zip(weights, means, shares.tolist(), strict=True):
                if weight.grad is None and share > 0:
                    weight.grad = torch.empty_like(weight).copy_(mean)
