"""Numbers with their nouns, and progress bars, for the output of commands.

The progress bars have a lock of this process. tqdm's default lock is shared with forked processes: if one is killed
while drawing, the lock is never released, and the others wait forever.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from tqdm import tqdm


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 episode``, ``3 episodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class ProgressBar(tqdm):  # type: ignore[misc]
    """tqdm's bar; bars of several processes are not kept apart on the screen."""


class DownloadBar(ProgressBar):
    """Bar in bytes, shown on a terminal only."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(desc=name, unit="B", unit_scale=True, **{"disable": None, **options})

    def received(self, count: int, total: int | None) -> None:
        """Advance the bar by new bytes, whose final number is ``total`` if it is known."""
        self.total = total
        self.update(count)


def _renew_lock() -> None:
    ProgressBar.set_lock(threading.RLock())


_renew_lock()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_lock)  # another thread may hold the lock at the fork
