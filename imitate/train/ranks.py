"""Distributed training by processes that ``torchrun`` starts: each learns from its part of every batch.

Gradients are averaged over the ranks after each backward pass (:mod:`imitate.train.gradients`), so the weights stay
equal. Rank 0 writes, logs and evaluates; the others only compute. Flags (a signal came, the loss went bad) are
exchanged before each step, so that all ranks stop at the same step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from imitate.system.ranks import Ranks
from imitate.train.heartbeat import SILENCE_S, Heartbeat, Store

__all__ = ["Ranks", "joined_ranks"]

PATIENCE = timedelta(hours=12)
"""Longest wait of a rank for another that is alive, such as rank 0 during an evaluation."""
STORE_PATIENCE = timedelta(seconds=15)
"""Longest wait for the store of the heartbeats."""


@contextmanager
def joined_ranks(uses_cuda: bool, silence_s: float = SILENCE_S) -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started; a process alone is rank 0 of 1.

    Args:
        uses_cuda: true if gradients are on GPUs and are exchanged by nccl.
        silence_s: seconds without a sign of life of another rank after which this process ends.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    # Flags are exchanged by gloo even if gradients use nccl.
    dist.init_process_group("cpu:gloo,cuda:nccl" if uses_cuda else "gloo", timeout=PATIENCE)
    ranks = Ranks(dist.get_rank(), world, int(os.environ.get("LOCAL_RANK", "0")))
    heartbeat = Heartbeat(_store(), ranks.rank, world, silence_s=silence_s)
    ranks.any(False)  # all ranks have written a first sign of life
    heartbeat.start()
    try:
        yield ranks
    finally:
        heartbeat.close()
        dist.destroy_process_group()


def _store() -> Store:
    """Return a separate connection to the store of the rendezvous, so that waiting on it delays nobody."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=STORE_PATIENCE)
    # torchrun keeps the store when it restarts the processes.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    separate: Store = PrefixStore(f"imitate/{attempt}", store)
    return separate
