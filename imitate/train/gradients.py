"""Average of gradients over the ranks, in buckets that are exchanged while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from imitate.ranks import Ranks, collective

BUCKET_BYTES = 4 * 2**20
"""Size from which on a bucket is full; networks that are smaller have one, exchanged after the backward pass."""


class GradientAverage:
    """Averages the gradients of any list of weights over the ranks.

    DistributedDataParallel does so for networks that are called through it; algorithms here call parts of their
    networks, and let only some of the weights in a loss learn.

    Args:
        ranks: all of them average the gradients of the same weights in the same order.
        bucket_bytes: see :data:`BUCKET_BYTES`.
    """

    def __init__(self, ranks: Ranks, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._ranks, self._bucket_bytes = ranks, bucket_bytes
        self._known: dict[tuple[int, ...], _Buckets] = {}

    def __call__(self, weights: Sequence[nn.Parameter]) -> AbstractContextManager[None]:
        """Return the context of a backward pass, after which ``grad`` of these weights is the mean over the ranks.

        A weight that no rank has a gradient for keeps None; where some have one, the others count as 0.
        """
        key = tuple(map(id, weights))
        if key not in self._known:
            self._known[key] = _Buckets(weights, self._ranks.world, self._bucket_bytes)
        return self._known[key].averaging()


class _Bucket:
    """Some of the weights: their gradients side by side, and room for numbers at the end."""

    def __init__(self, weights: Sequence[nn.Parameter], extra: int = 0) -> None:
        self.weights = list(weights)
        sizes = [weight.numel() for weight in weights]
        self.flat = torch.zeros(
            sum(sizes) + extra, device=weights[0].device, dtype=weights[0].dtype
        )
        *parts, self.extra = torch.split(self.flat, [*sizes, extra])
        self.views = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        self.missing = len(weights)
        self.work: dist.Work | None = None

    def pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the views and gradients of the weights that have one."""
        have = [(v, w.grad) for v, w in zip(self.views, self.weights, strict=True)]
        return [v for v, g in have if g is not None], [g for _, g in have if g is not None]

    def exchange(self) -> None:
        """Begin to sum the bucket over the ranks."""
        views, gradients = self.pairs()
        if len(gradients) < len(self.weights):
            self.flat[: self.flat.numel() - self.extra.numel()].zero_()
        if gradients:
            torch._foreach_copy_(views, gradients)
        with collective():
            self.work = dist.all_reduce(self.flat, async_op=True)


class _Buckets:
    """Buckets of a list of weights, in the order in which a backward pass reaches them: the last weights first."""

    def __init__(self, weights: Sequence[nn.Parameter], world: int, bucket_bytes: int) -> None:
        self._world, self._is_armed, self._next = world, False, 0
        groups: list[list[nn.Parameter]] = [[]]
        for weight in reversed(weights):
            if sum(w.nbytes for w in groups[-1]) >= bucket_bytes:
                groups.append([])
            groups[-1].append(weight)
        # The last one also tells which weights have a gradient, on how many ranks.
        self._buckets = [
            _Bucket(group, extra=len(weights) if group is groups[-1] else 0) for group in groups
        ]
        if len(groups) > 1:
            for bucket in self._buckets[:-1]:
                for weight in bucket.weights:
                    weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        partial(self._has_come, bucket)
                    )

    @contextmanager
    def averaging(self) -> Iterator[None]:
        """Average the gradients that the body computes."""
        self._is_armed, self._next = True, 0
        for bucket in self._buckets:
            bucket.missing, bucket.work = len(bucket.weights), None
        try:
            yield
        finally:
            self._is_armed = False
        self._finish()

    def _has_come(self, bucket: _Bucket, weight: Tensor) -> None:
        """Exchange the buckets that are whole, in the order that all ranks have in common."""
        if not self._is_armed:
            return
        bucket.missing -= 1
        # The last one waits for the end: until then a weight without a gradient may still get one.
        while self._next < len(self._buckets) - 1 and self._buckets[self._next].missing == 0:
            self._buckets[self._next].exchange()
            self._next += 1

    def _finish(self) -> None:
        """Exchange what is left, wait for all, take the means."""
        last = self._buckets[-1]
        has = [w.grad is not None for bucket in self._buckets for w in bucket.weights]
        if all(has):
            last.extra.fill_(1.0)  # a copy would make the process wait for the GPU
        else:
            last.extra.copy_(torch.tensor(has, dtype=last.flat.dtype), non_blocking=True)
        for bucket in self._buckets[self._next :]:
            bucket.exchange()
        for bucket in self._buckets:
            assert bucket.work is not None
            with collective():
                bucket.work.wait()
            bucket.flat /= self._world
            views, gradients = bucket.pairs()
            if gradients:
                torch._foreach_copy_(gradients, views)
        if not all(has):
            self._fill(last.extra.tolist())

    def _fill(self, shares: Sequence[float]) -> None:
        """Set the gradients of weights that only other ranks have one for."""
        pairs = (p for b in self._buckets for p in zip(b.weights, b.views, strict=True))
        for (weight, view), share in zip(pairs, shares, strict=True):
            if weight.grad is None and share > 0:
                weight.grad = torch.empty_like(weight).copy_(view)
