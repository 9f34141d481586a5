"""End of a private Ray cluster's processes with the process that it was started for, however that ends.

Ray's own processes notice by themselves that it is gone; two idle agents of the node take up to a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Names of processes are numbers with start times: a number may belong to another process by then.
PROGRAM = """
import os, signal, sys, time
sys.stdin.read()
time.sleep(float(sys.argv[1]))
for name in sys.argv[2:]:
    number, start = name.split(":")
    try:
        with open(f"/proc/{number}/stat") as file:
            if file.read().rpartition(")")[2].split()[19] == start:
                os.kill(int(number), signal.SIGKILL)
    except OSError:
        pass
"""
PATIENCE_S = 2.0
"""Seconds in which processes may end by themselves."""


Names = frozenset[str]
"""Processes, each as ``number:start``."""


def descendants() -> Names:
    """Return the processes below this one; none where the system is not Linux, which alone tells."""
    return frozenset(f"{number}:{start}" for number, start in _below(os.getpid()).items())


@contextmanager
def ended_with_this_process(names: Names) -> Iterator[None]:
    """Let processes end with this one.

    Args:
        names: of :func:`descendants`; others of this program's processes are left alone.
    """
    if not names:
        yield
        return
    keeper = subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM, str(PATIENCE_S), *names],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        keeper.kill()
        keeper.communicate()


def _below(ancestor: int) -> dict[int, str]:
    """Return the start time of each process below another one, by number."""
    parents, starts = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number], starts[number] = int(fields[1]), fields[19]
    below: set[int] = set()
    level = {ancestor}
    while level:
        level = {number for number, parent in parents.items() if parent in level}
        below |= level
    return {number: starts[number] for number in below}
