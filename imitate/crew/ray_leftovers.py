"""End a private Ray cluster's processes when its owner process ends, in any way and at any time.

Ray's processes also notice the end of their owner, but two idle agents of the node take up to a minute. This file is
also the program of the keeper, a process that runs beside the command and imports only the standard library.
"""

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
"""Seconds that processes have to end by themselves before they are killed."""

Processes = dict[int, str]
"""Start time of each process by its PID; it distinguishes a process from a later one with the same PID."""


@contextmanager
def ended_with_this_process() -> Iterator[Callable[[], None]]:
    """Let all processes that this one starts during the body end with it (only on Linux).

    Yields:
        a function that ends the observation: processes that are started after its call are not affected.
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
        parent: PID of the observed process.
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
    """Return start time and parent PID of each process by its PID."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = (fields[19], int(fields[1]))
    return found


def _below(ancestors: Iterable[int]) -> Processes:
    """Return the running descendants of the processes with these PIDs."""
    running, below, level = _starts(), set[int](), set(ancestors)
    while level:
        level = {number for number, (_, parent) in running.items() if parent in level} - below
        below |= level
    return {number: running[number][0] for number in below}


if __name__ == "__main__":
    keep(os.getppid(), map(int, sys.argv[2:]), float(sys.argv[1]))
