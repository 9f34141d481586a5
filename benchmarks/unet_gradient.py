"""Passes of the U-Net of diffusion and flow policies: its convolutions by oneDNN, and as matrix products.

Chunks of 16 actions, one thread, in turns: by oneDNN alone; with kernels' gradients as products, as imitate computes
them on processors with AVX-512; and with all of large kernels as products, as it does with AVX2 alone (see
:mod:`imitate.functional.short_convolution`). Forward and backward passes, then forward passes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from benchmarks.bench import Bench
from benchmarks.convolution_ways import BY_ONEDNN, WAYS, convolutions, way_here
from benchmarks.measuring import Contestant, compare, timed
from benchmarks.row import Row
from imitate.models.unet import ConditionalUnet1D

LEARNING = (((128, 256, 512), 8), ((256, 512, 1024), 16), ((256, 512, 1024), 100))
ACTING = (((256, 512, 1024), 1), ((256, 512, 1024), 5), ((256, 512, 1024), 20))
STEPS, ACTION, CONDITION = 16, 7, 64
ROUNDS = 5


def run(bench: Bench) -> list[Row]:
    """CPU milliseconds per pass, and how many times faster products make it."""
    torch.set_num_threads(1)
    rows = [row for dims, batch in LEARNING for row in _rows(dims, batch, learning=True)]
    return rows + [row for dims, batch in ACTING for row in _rows(dims, batch, learning=False)]


def _rows(dims: tuple[int, ...], batch: int, *, learning: bool) -> list[Row]:
    net = ConditionalUnet1D(ACTION, CONDITION, down_dims=dims).train(learning)
    contestants = {way: _passes(net, batch, way, learning) for way in WAYS}
    spent = compare(contestants, dict.fromkeys(contestants, 1), ROUNDS)
    ms = {way: 1e3 * cost.cpu_s for way, cost in spent.items()}
    alone = ms.pop(BY_ONEDNN)
    name = (
        f"{'pass' if learning else 'forward pass'}, U-Net {'-'.join(map(str, dims))}, batch {batch}"
    )
    here = {way_here(): ", imitate's way here"}
    return [
        Row(
            f"{name}: {way}",
            alone / took,
            "x",
            note=f"{took:.0f} ms, {alone:.0f} by oneDNN alone{here.get(way, '')}",
        )
        for way, took in ms.items()
    ]


def _passes(net: ConditionalUnet1D, batch: int, way: str, learning: bool) -> Contestant:
    """Return passes with the convolutions of one way."""
    chunk, condition = torch.randn(batch, STEPS, ACTION), torch.randn(batch, CONDITION)
    step = torch.randint(0, 100, (batch,))
    mode: Callable[[], AbstractContextManager[object]] = (
        nullcontext if learning else torch.inference_mode
    )

    def iterate(n: int) -> None:
        with convolutions(way):
            for _ in range(n):
                net.zero_grad()
                with mode():
                    loss = net(chunk, step, condition).square().mean()
                if learning:
                    loss.backward()

    return timed(iterate)
