"""Environment steps of robosuite's Lift per second: one and two collecting processes.

    python -m benchmarks.collectors
    python -m benchmarks.collectors --staleness 20

Each process has one environment and acts with SAC's policy of 256 by 256. Seconds are those of the clock, so that
nothing else should run meanwhile; two processes can be no faster than the cores that they find.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from typing import Any

import torch

from benchmarks.measuring import Contestant, Spent, compare
from benchmarks.row import Row, table
from imitate import load_config
from imitate.train.online_parts import make_collector
from imitate.train.online_setup import build_online

STEPS = 100
ROUNDS = 5


def contestant(collector: Any) -> Contestant:
    """Seconds of the clock per step of one environment, over all environments."""

    def run(n: int) -> Spent:
        start, number = time.perf_counter(), 0
        while number < n * STEPS:
            number += collector.collect(20).num_steps
        wall_s = (time.perf_counter() - start) * n / number
        return Spent(wall_s, wall_s)

    return run


def collector(processes: int, staleness: int | None) -> Any:
    """So many processes on Lift."""
    online = {"num_envs": processes, "num_workers": processes, "max_staleness": staleness}
    config = load_config("robosuite/lift/sac").with_overrides(
        {f"train.online.{key}": value for key, value in online.items()}
    )
    return make_collector(build_online(config, torch.device("cpu")))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.collectors", description=__doc__)
    parser.add_argument("--staleness", type=int, help="updates that weights may lag; default: none")
    staleness = parser.parse_args().staleness
    torch.set_num_threads(1)
    with closing(collector(1, staleness)) as one, closing(collector(2, staleness)) as two:
        spent = compare({"one": contestant(one), "two": contestant(two)}, 1, rounds=ROUNDS)
    per_s = {name: 1.0 / cost.wall_s for name, cost in spent.items()}
    rows = [
        Row("one process", per_s["one"], "env steps/s"),
        Row("two processes", per_s["two"], "env steps/s"),
        Row("two processes: times one", per_s["two"] / per_s["one"], "x", 1.6),
    ]
    print(table("collectors", rows))


if __name__ == "__main__":
    main()
