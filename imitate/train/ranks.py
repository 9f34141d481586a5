"""Distributed training by processes that ``torchrun`` starts, each of which learns from its part of every batch.

Gradients are averaged over the ranks after each backward pass, so the weights stay equal. Rank 0 writes, logs and
evaluates; the others only compute. Flags (a signal was received, the loss became bad) are exchanged before each step,
so that all ranks stop at the same step.

Heartbeats distinguish a busy rank from a lost one, which ends the training of all. A rank waits for others as long as
they need, because rank 0 may be evaluating. A process that died is noticed at once, because its connections close; a
machine that lost its network, or a process that was stopped, closes none. So a thread of each rank writes a counter to
the store of the rendezvous and reads those of the others. If a counter does not change for too long, this process ends:
its main thread may be inside a collective, which nothing interrupts.
"""

import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from imitate.system import clock
from imitate.system.ranks import RESUME, Ranks, collective

BEAT_S = 5.0
"""Seconds between two heartbeats."""
SILENCE_S = 45.0
"""Seconds without a heartbeat after which a rank counts as lost."""
_TICK_S = 0.5
_LEFT = b"left"


class RendezvousStore(Protocol):
    """Store of a rendezvous; its calls raise RuntimeError (``DistStoreError``) if it cannot be reached."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value under a key."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Read the values of keys; all of them must exist."""


class Heartbeat:
    """Sends this rank's heartbeats and watches those of the others.

    Args:
        store: store shared by all ranks, whose calls time out after some seconds.
        rank: rank of this process.
        world: number of ranks.
        silence_s: see :data:`SILENCE_S`.
        end: called in a thread with a line that names the silent ranks.
    """

    def __init__(
        self,
        store: RendezvousStore,
        rank: int,
        world: int,
        *,
        silence_s: float = SILENCE_S,
        end: Callable[[str], None] | None = None,
    ) -> None:
        self._store, self._rank, self._silence_s = store, rank, silence_s
        self._end = end or _end_process
        self._keys = [f"alive/{number}" for number in range(world)]
        self._seen = [b""] * world
        self._heard_at = [clock.now()] * world
        self._stop = threading.Event()
        self._exchanges = threading.Thread(target=self._exchange, name="heartbeat", daemon=True)
        self._watches = threading.Thread(target=self._watch, name="heartbeat-watch", daemon=True)
        self._beat(0)

    def start(self) -> None:
        """Begin to watch; call it after all ranks have joined."""
        self._heard_at = [clock.now()] * len(self._keys)
        self._exchanges.start()
        self._watches.start()

    def close(self) -> None:
        """Announce to the others that this rank leaves, and stop watching them."""
        self._stop.set()
        if self._exchanges.ident is not None:
            self._exchanges.join(timeout=BEAT_S)
        try:
            self._store.set(self._keys[self._rank], _LEFT.decode())
        except RuntimeError:
            return  # the store is gone, so no rank can read the value

    def _beat(self, number: int) -> None:
        self._store.set(self._keys[self._rank], f"{number} {platform.node()}")

    def _exchange(self) -> None:
        """Write this rank's counter, and read those of all ranks."""
        number = 0
        while not clock.wait(self._stop, min(BEAT_S, self._silence_s / 4)):
            number += 1
            try:
                self._beat(number)
                values = self._store.multi_get(self._keys)
            except RuntimeError:
                continue  # the store does not answer; the watching thread measures how long
            now = clock.now()
            for other, value in enumerate(values):
                if value != self._seen[other]:
                    self._seen[other], self._heard_at[other] = value, now

    def _watch(self) -> None:
        """Look for silent ranks, in a separate thread because the exchange itself may hang."""
        before = clock.now()
        while not clock.wait(self._stop, min(_TICK_S, self._silence_s / 10)):
            now = clock.now()
            if now - before > self._silence_s / 2:  # this process itself was suspended
                self._heard_at = [now] * len(self._keys)
            before = now
            silent = [
                number
                for number, at in enumerate(self._heard_at)
                if number != self._rank
                and self._seen[number] != _LEFT
                and now - at > self._silence_s
            ]
            if silent:
                self._stop.set()
                self._end(self._words(silent))

    def _words(self, silent: list[int]) -> str:
        hosts = [self._seen[number].decode().partition(" ")[2] for number in silent]
        names = ", ".join(
            f"{number}{f' on {host}' if host else ''}"
            for number, host in zip(silent, hosts, strict=True)
        )
        return (
            f"rank {self._rank}: no heartbeat of rank {names} for {self._silence_s:.0f} s (stopped, or its machine "
            f"or the network is down): this process ends. To continue, {RESUME}"
        )


def _end_process(words: str) -> None:
    """Print a line and end this process; checkpoints are replaced atomically, so those on disk are complete."""
    sys.stderr.write(f"error: {words}\n")
    sys.stderr.flush()
    os._exit(1)


__all__ = ["Ranks", "joined_ranks"]

PATIENCE = timedelta(hours=12)
"""Longest wait of a rank for another that is alive, such as rank 0 during an evaluation."""
STORE_PATIENCE = timedelta(seconds=15)
"""Longest wait for the store of the heartbeats."""


@contextmanager
def joined_ranks(uses_cuda: bool, silence_s: float = SILENCE_S) -> Iterator[Ranks]:
    """Context in which this process trains with the others that ``torchrun`` started; alone it is rank 0 of 1.

    Args:
        uses_cuda: true if gradients are on GPUs and are exchanged by nccl.
        silence_s: seconds without a heartbeat of another rank after which this process ends.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    # gloo exchanges the flags, which are on the CPU, even if nccl exchanges the gradients.
    dist.init_process_group("cpu:gloo,cuda:nccl" if uses_cuda else "gloo", timeout=PATIENCE)
    ranks = Ranks(dist.get_rank(), world, int(os.environ.get("LOCAL_RANK", "0")))
    heartbeat = Heartbeat(_store(), ranks.rank, world, silence_s=silence_s)
    ranks.any(False)  # wait until all ranks have written a first heartbeat
    heartbeat.start()
    try:
        yield ranks
    finally:
        heartbeat.close()
        dist.destroy_process_group()


def _store() -> RendezvousStore:
    """Return a separate connection to the store of the rendezvous, so that waiting on it does not delay others."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=STORE_PATIENCE)
    # torchrun keeps the store when it restarts the processes, so each attempt needs keys of its own.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    separate: RendezvousStore = PrefixStore(f"imitate/{attempt}", store)
    return separate


class GradientAverage:
    """Averages the gradients of any list of weights over the ranks.

    DistributedDataParallel does this only for networks that are called through it; algorithms here call parts of their
    networks, and train only some of the weights in a loss.

    Args:
        ranks: the ranks; all must average the gradients of the same weights in the same order.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @contextmanager
    def __call__(self, weights: Sequence[nn.Parameter]) -> Iterator[None]:
        """Context that replaces each weight's ``grad`` by its mean over the ranks, after the backward pass in its body.

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
            shares.fill_(1.0)  # copying from the CPU would make the process wait for the GPU
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
