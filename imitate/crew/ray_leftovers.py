"""End a private Ray cluster's processes when its owner process ends, in any way and at any time.

Ray's own processes notice themselves that it is gone; two idle agents of the node take up to a minute. This file
is also the program of a process beside the command, the keeper, which imports nothing but Python's own modules.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOK_S = 0.2
"""Seconds between two checks of the started processes."""
PATIENCE_S = 2.0
"""Seconds that processes have to end themselves."""

Processes = dict[int, str]
"""Start times of processes by their numbers: a number may belong to another process later."""


@contextmanager
def ended_with_this_process() -> Iterator[Callable[[], None]]:
    """Let processes that this one starts from now on end with it (only on Linux).

    Yields:
        a function to call when all of them are started: later ones are not affected.
    """
    if sys.platform != "linux":
        yield lambda: None
        return
    keeper = subprocess.Popen(
        [sys.executable, "-IS", __file__, str(PATIENCE_S), *map(str, _below([os.getpid()]))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )
    pipe, ready = keeper.stdin, keeper.stdout
    assert pipe is not None and ready is not None
    ready.read(1)
    try:
        yield lambda: _tell(pipe.fileno())
    finally:
        keeper.kill()
        keeper.communicate()


def _tell(pipe: int) -> None:
    with suppress(BrokenPipeError):  # the keeper was killed
        os.write(pipe, b".")


def keep(parent: int, others: Iterable[int], patience_s: float) -> None:
    """Wait until stdin is closed, then kill the processes that the parent had started.

    Args:
        parent: number of the process.
        others: PIDs of its descendants to spare.
        patience_s: seconds in which processes may end by themselves.
    """
    spared, found, is_all = {*others, os.getpid()}, Processes(), False
    os.write(1, b".")
    while True:
        if not is_all:
            found |= _without(_below([parent]), spared)
        if select.select([0], [], [], None if is_all else LOOK_S)[0]:
            if not os.read(0, 1):
                break
            found |= _without(_below([parent]), spared)
            is_all = True
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        found |= _below(found)
        time.sleep(LOOK_S)
    alive = _starts()
    for number, start in found.items():
        if alive.get(number, ("", 0))[0] == start:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)


def _without(processes: Processes, numbers: set[int]) -> Processes:
    return {number: start for number, start in processes.items() if number not in numbers}


def _starts() -> dict[int, tuple[str, int]]:
    """Return start time and parent of each process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = (fields[19], int(fields[1]))
    return found


def _below(ancestors: Iterable[int]) -> Processes:
    """Return the running descendants of processes: start time by process number."""
    running, below, level = _starts(), set[int](), set(ancestors)
    while level:
        level = {number for number, (_, parent) in running.items() if parent in level} - below
        below |= level
    return {number: running[number][0] for number in below}


if __name__ == "__main__":
    keep(os.getppid(), map(int, sys.argv[2:]), float(sys.argv[1]))
