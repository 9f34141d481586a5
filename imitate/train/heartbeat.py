"""Heartbeats of the ranks: a busy rank stays alive, and a silent one ends the training of all.

A rank waits for others as long as they need: rank 0 may be evaluating. A process that died is noticed at once, because
its connections close; a machine that lost its network, or a process that was stopped, closes none. So a thread of each
rank writes a counter to the store of the rendezvous and reads those of the others. If a counter does not change for too
long, this process ends: its main thread may be inside a collective, which nothing interrupts.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from imitate.system import clock
from imitate.system.ranks import RESUME

BEAT_S = 5.0
"""Seconds between two signs of life."""
SILENCE_S = 45.0
"""Seconds without a sign of life after which a rank counts as lost."""
_TICK_S = 0.5
_LEFT = b"left"


class Store(Protocol):
    """Store of a rendezvous; its calls raise RuntimeError (``DistStoreError``) if it cannot be reached."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Read values; all of them must exist."""


class Heartbeat:
    """Sends this rank's signs of life and watches those of the others.

    Args:
        store: store shared by all ranks; its calls time out after seconds.
        rank: rank of this process.
        world: number of ranks.
        silence_s: see :data:`SILENCE_S`.
        end: called in a thread with a line that names the silent ranks.
    """

    def __init__(
        self,
        store: Store,
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
        """Tell the others that this rank leaves, and stop watching them."""
        self._stop.set()
        if self._exchanges.ident is not None:
            self._exchanges.join(timeout=BEAT_S)
        try:
            self._store.set(self._keys[self._rank], _LEFT.decode())
        except RuntimeError:
            return  # the store is gone, and with it all readers

    def _beat(self, number: int) -> None:
        self._store.set(self._keys[self._rank], f"{number} {platform.node()}")

    def _exchange(self) -> None:
        """Write the own counter and read all."""
        number = 0
        while not clock.wait(self._stop, min(BEAT_S, self._silence_s / 4)):
            number += 1
            try:
                self._beat(number)
                values = self._store.multi_get(self._keys)
            except RuntimeError:
                continue  # no news; the other thread measures the silence
            now = clock.now()
            for other, value in enumerate(values):
                if value != self._seen[other]:
                    self._seen[other], self._heard_at[other] = value, now

    def _watch(self) -> None:
        """Look for ranks that are silent; the exchange itself may hang, so this is a thread of its own."""
        before = clock.now()
        while not clock.wait(self._stop, min(_TICK_S, self._silence_s / 10)):
            now = clock.now()
            if now - before > self._silence_s / 2:  # this process itself was stopped for a while
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
            f"rank {self._rank}: no sign of life of rank {names} for {self._silence_s:.0f} s (stopped, or its machine "
            f"or the network is down): this process ends. To continue, {RESUME}"
        )


def _end_process(words: str) -> None:
    """Print a line and end; checkpoints are replaced atomically, so those on disk are whole."""
    sys.stderr.write(f"error: {words}\n")
    sys.stderr.flush()
    os._exit(1)
