"""Training by several processes at once, started by ``torchrun``: each learns from its part of every batch.

Gradients are averaged over the ranks after each backward pass, so the weights stay equal. Rank 0 writes, logs and
evaluates; the others only compute. Flags (a signal came, the loss went bad) are exchanged before each step, so that all
ranks stop at the same one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from imitate.errors import ConfigError

PATIENCE = timedelta(hours=12)
"""Longest wait of a rank for another, which may be evaluating."""


@dataclass(frozen=True)
class Ranks:
    """Place of this process among those of one training.

    Attributes:
        rank: number of this process; 0 is the one that writes.
        world: how many there are.
        local: number of this process on its machine, which is that of its GPU.
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return each flag, true if it is true on any rank."""
        if self.world == 1:
            return flags
        risen = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(risen, op=dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in risen.tolist())

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the ranks, in place."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.world
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        torch._foreach_copy_(
            list(tensors), [part.view_as(x) for part, x in zip(parts, tensors, strict=True)]
        )

    def share(self, module: nn.Module) -> None:
        """Give all ranks the weights and buffers of rank 0."""
        if self.world > 1:
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor.data, src=0)

    def draw_apart(self, seed: int) -> None:
        """Seed torch differently on this rank than on rank 0, which keeps its generator."""
        if self.rank > 0:
            torch.manual_seed(seed + 1_000_003 * self.rank)

    def part_of(self, batch_size: int) -> slice:
        """Return the samples of each batch for this rank.

        Raises:
            ConfigError: the ranks cannot share a batch equally.
        """
        if batch_size % self.world:
            raise ConfigError(
                f"train.batch_size is {batch_size}, which {self.world} processes cannot share equally: "
                f"set it to a multiple of {self.world}"
            )
        return slice(self.rank, None, self.world)


@contextmanager
def joined_ranks(uses_cuda: bool) -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started; a process alone is rank 0 of 1."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    # Flags go through gloo also where gradients go through nccl.
    dist.init_process_group("cpu:gloo,cuda:nccl" if uses_cuda else "gloo", timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), world, int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        dist.destroy_process_group()
