"""Measurement of durations on a shared machine.

The contestants run shortly in turn, in several rounds, so that other load of the machine affects all of
them alike; the median round counts. CPU seconds decide; wall seconds are reported too.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROUNDS = 7
Contestant = Callable[[int], "Spent"]


@dataclass(frozen=True)
class Spent:
    """Cost of some iterations, in seconds."""

    cpu_s: float
    wall_s: float


def timed(iterate: Callable[[int], None], device: str = "cpu") -> Contestant:
    """Return a contestant that calls a function with the number of iterations; the work of a GPU is waited for."""

    def wait() -> None:
        if device.startswith("cuda"):
            from torch import cuda

            cuda.synchronize(device)

    def run(n: int) -> Spent:
        wait()
        cpu, wall = time.process_time(), time.perf_counter()
        iterate(n)
        wait()
        return Spent(time.process_time() - cpu, time.perf_counter() - wall)

    return run


def drawn(batches: Iterator[Any]) -> Contestant:
    """Return a contestant that draws batches and does nothing with them."""

    def iterate(n: int) -> None:
        for _ in range(n):
            next(batches)

    return timed(iterate)


def compare(
    contestants: Mapping[str, Contestant], n: Mapping[str, int] | int, rounds: int = ROUNDS
) -> dict[str, Spent]:
    """Return the cost of one iteration of each contestant: the median over rounds in turn.

    Args:
        contestants: functions by name.
        n: number of iterations in a round, for all or by name.
        rounds: number of rounds; the first one warms up and is not counted.
    """
    counts = {name: n if isinstance(n, int) else n[name] for name in contestants}
    return {
        name: Spent(
            statistics.median(s.cpu_s for s in costs), statistics.median(s.wall_s for s in costs)
        )
        for name, costs in all_rounds(contestants, counts, rounds).items()
    }


def all_rounds(
    contestants: Mapping[str, Contestant], n: Mapping[str, int], rounds: int = ROUNDS
) -> dict[str, list[Spent]]:
    """Return the cost of one iteration of each contestant in each round; see :func:`compare`."""
    spent: dict[str, list[Spent]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            one = run(n[name])
            if number > 0:
                spent[name].append(Spent(one.cpu_s / n[name], one.wall_s / n[name]))
    return spent


def percentiles(call: Callable[[], object], calls: int, warm_up: int = 50) -> dict[str, float]:
    """Return p50 and p99 of a call in milliseconds: CPU time of this thread, and wall time."""
    cpu, wall = [], []
    for number in range(warm_up + calls):
        c, w = time.thread_time_ns(), time.perf_counter_ns()
        call()
        c, w = time.thread_time_ns() - c, time.perf_counter_ns() - w
        if number >= warm_up:
            cpu.append(c / 1e6)
            wall.append(w / 1e6)
    cpu.sort()
    wall.sort()
    return {
        "cpu_p50_ms": cpu[len(cpu) // 2],
        "cpu_p99_ms": cpu[int(len(cpu) * 0.99)],
        "wall_p50_ms": wall[len(wall) // 2],
        "wall_p99_ms": wall[int(len(wall) * 0.99)],
    }


_LAUNCHER = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_bytes(command: Sequence[str]) -> int:
    """Return the peak of the resident memory of a command. Linux only.

    A small process starts it: Linux counts the memory of the process that starts a command as the command's own.

    Raises:
        RuntimeError: the command fails.
    """
    launched = [sys.executable, "-S", "-c", _LAUNCHER, *command]
    done = subprocess.run(launched, check=True, stdout=subprocess.PIPE, text=True)
    code, peak_kb = map(int, done.stdout.split())
    if code != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {code}")
    return 1024 * peak_kb
