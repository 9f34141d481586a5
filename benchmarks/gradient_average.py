"""Seconds of a backward pass with averaged gradients, by the size of the buckets.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.gradient_average

"at the end" is one exchange of all gradients after the backward pass. The ways are timed in turn, so that each sees the
same load of the machine; the median of the rounds counts, on rank 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

import torch
from torch import nn

from imitate.train.gradients import GradientAverage
from imitate.train.ranks import joined_ranks

MEGABYTE = 2**20
WAYS = {"at the end": 2**40, "16 MB": 16 * MEGABYTE, "4 MB": 4 * MEGABYTE, "1 MB": MEGABYTE}


def seconds(
    net: nn.Module, batch: torch.Tensor, average: Callable[..., AbstractContextManager[None]]
) -> float:
    """Time one backward pass."""
    weights = list(net.parameters())
    for weight in weights:
        weight.grad = None
    loss = net(batch).square().mean()
    began = time.perf_counter()
    with average(weights):
        loss.backward(inputs=weights)  # type: ignore[no-untyped-call]
    return time.perf_counter() - began


def main() -> None:
    """Time all ways in turn and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(args.layers):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    net, batch = nn.Sequential(*layers), torch.randn(args.batch, args.width)
    with joined_ranks(uses_cuda=False) as ranks:
        ways = {name: GradientAverage(ranks, size) for name, size in WAYS.items()}
        times: dict[str, list[float]] = {name: [] for name in WAYS}
        for number in range(args.rounds + 2):
            for name, average in ways.items():
                ranks.any(False)
                took = seconds(net, batch, average)
                if number >= 2:
                    times[name].append(took)
        if ranks.rank == 0:
            size = sum(weight.nbytes for weight in net.parameters()) / MEGABYTE
            sys.stdout.write(f"gradients of {size:.0f} MB, median of {args.rounds} rounds\n")
            for name, took_all in times.items():
                sys.stdout.write(f"{name:>12}  {1000 * median(took_all):8.1f} ms\n")


if __name__ == "__main__":
    main()
