"""A forward and backward pass of the U-Net of diffusion and flow policies, with two gradients of its kernels.

Chunks of 16 actions, one thread, in turns: by oneDNN alone, and as imitate computes it (see
:mod:`imitate.functional.short_convolution`).
"""

from __future__ import annotations

import torch

from benchmarks.bench import Bench
from benchmarks.measuring import Contestant, compare, timed
from benchmarks.row import Row
from imitate.functional import short_convolution
from imitate.models.unet import ConditionalUnet1D

SIZES = (((128, 256, 512), 8), ((256, 512, 1024), 16), ((256, 512, 1024), 100))
UNREACHED = 2**62
STEPS, ACTION, CONDITION = 16, 7, 64
ROUNDS = 5


def run(bench: Bench) -> list[Row]:
    """CPU milliseconds per pass, and how many times faster the product makes it."""
    torch.set_num_threads(1)
    rows = []
    limits = (short_convolution.SHORT_STEPS, short_convolution.LARGE_KERNEL)
    for dims, batch in SIZES:
        net = ConditionalUnet1D(ACTION, CONDITION, down_dims=dims)
        contestants: dict[str, Contestant] = {
            "oneDNN": _passes(net, batch, (0, UNREACHED)),
            "imitate": _passes(net, batch, limits),
        }
        spent = compare(contestants, dict.fromkeys(contestants, 1), ROUNDS)
        ours, former = (1e3 * spent[name].cpu_s for name in ("imitate", "oneDNN"))
        name = f"U-Net {'-'.join(map(str, dims))}, batch {batch}"
        rows.append(
            Row(name, former / ours, "x", note=f"{ours:.0f} ms, {former:.0f} by oneDNN alone")
        )
    short_convolution.SHORT_STEPS, short_convolution.LARGE_KERNEL = limits
    return rows


def _passes(net: ConditionalUnet1D, batch: int, limits: tuple[int, int]) -> Contestant:
    """Return passes with these limits of the product."""
    chunk, condition = torch.randn(batch, STEPS, ACTION), torch.randn(batch, CONDITION)
    step = torch.randint(0, 100, (batch,))

    def iterate(n: int) -> None:
        short_convolution.SHORT_STEPS, short_convolution.LARGE_KERNEL = limits
        for _ in range(n):
            net.zero_grad()
            net(chunk, step, condition).square().mean().backward()

    return timed(iterate)
