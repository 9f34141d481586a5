"""Passes of the U-Net of diffusion and flow policies: its convolutions by oneDNN, and as matrix products.

Chunks of 16 actions, one thread, in turns: by oneDNN alone; with kernels' gradients as products, as imitate computes
them on processors with AVX-512; and with all of large kernels as products, as it does with AVX2 alone (see
:mod:`imitate.functional.short_convolution`). Forward and backward passes, then forward passes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch

from benchmarks.bench import Bench
from benchmarks.measuring import Contestant, compare, timed
from benchmarks.row import Row
from imitate.functional import short_convolution
from imitate.models.unet import ConditionalUnet1D

LEARNING = (((128, 256, 512), 8), ((256, 512, 1024), 16), ((256, 512, 1024), 100))
ACTING = (((256, 512, 1024), 1), ((256, 512, 1024), 5), ((256, 512, 1024), 20))
UNREACHED = 2**62
STEPS, ACTION, CONDITION = 16, 7, 64
ROUNDS = 5
LIMITS = ("SHORT_STEPS", "LARGE_KERNEL")
WAYS: dict[str, tuple[bool, tuple[int, int]]] = {
    "oneDNN": (False, (0, UNREACHED)),
    "kernels' gradients": (False, (short_convolution.SHORT_STEPS, short_convolution.LARGE_KERNEL)),
    "all of large kernels": (True, (0, UNREACHED)),
}
"""Whether the limits are those of AVX2 alone, and the limits of the others."""


def run(bench: Bench) -> list[Row]:
    """CPU milliseconds per pass, and how many times faster products make it."""
    torch.set_num_threads(1)
    chooses = short_convolution._has_avx2_alone
    here = "all of large kernels" if chooses() else "kernels' gradients"
    limits = [getattr(short_convolution, name) for name in LIMITS]
    rows = []
    try:
        for dims, batch in LEARNING:
            rows += _rows(dims, batch, here, learning=True)
        for dims, batch in ACTING:
            rows += _rows(dims, batch, here, learning=False)
    finally:
        short_convolution._has_avx2_alone = chooses
        for name, value in zip(LIMITS, limits, strict=True):
            setattr(short_convolution, name, value)
    return rows


def _rows(dims: tuple[int, ...], batch: int, here: str, *, learning: bool) -> list[Row]:
    net = ConditionalUnet1D(ACTION, CONDITION, down_dims=dims).train(learning)
    contestants = {way: _passes(net, batch, way, learning) for way in WAYS}
    spent = compare(contestants, dict.fromkeys(contestants, 1), ROUNDS)
    ms = {way: 1e3 * cost.cpu_s for way, cost in spent.items()}
    kind = "pass" if learning else "forward pass"
    return [
        Row(
            f"{kind}, U-Net {'-'.join(map(str, dims))}, batch {batch}: {way}",
            ms["oneDNN"] / ms[way],
            "x",
            note=f"{ms[way]:.0f} ms, {ms['oneDNN']:.0f} by oneDNN alone"
            + (", imitate's way here" if way == here else ""),
        )
        for way in WAYS
        if way != "oneDNN"
    ]


def _passes(net: ConditionalUnet1D, batch: int, way: str, learning: bool) -> Contestant:
    """Return passes with the limits of one way."""
    chunk, condition = torch.randn(batch, STEPS, ACTION), torch.randn(batch, CONDITION)
    step = torch.randint(0, 100, (batch,))
    avx2_alone, limits = WAYS[way]
    without: Callable[[], object] = nullcontext if learning else torch.inference_mode

    def iterate(n: int) -> None:
        short_convolution._has_avx2_alone = lambda: avx2_alone
        for name, value in zip(LIMITS, limits, strict=True):
            setattr(short_convolution, name, value)
        for _ in range(n):
            net.zero_grad()
            with without():
                loss = net(chunk, step, condition).square().mean()
            if learning:
                loss.backward()

    return timed(iterate)
