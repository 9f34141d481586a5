"""Environment steps of robosuite's Lift per second: one and two collecting workers, on this machine and on Ray.

    python -m benchmarks.collectors
    python -m benchmarks.collectors --staleness 20
    python -m benchmarks.collectors --ray --before ../before

Each worker has one environment and acts with SAC's policy of 512 by 512, 1 MB of weights, which are new with each
request for 20 steps. Seconds are those of the clock, so that nothing else should run meanwhile; two workers can be no
faster than the cores that they find. --before is a clone of another version, whose two workers take their turn too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import Contestant, Spent, compare
from benchmarks.row import Row, table
from imitate import load_config
from imitate.train.online_parts import make_collector
from imitate.train.online_setup import build_online

STEPS = 200
CHUNK = 20
ROUNDS = 5


def contestant(collector: Any) -> Contestant:
    """Seconds of the clock per step of one environment, over all environments."""

    def run(n: int) -> Spent:
        start, number = time.perf_counter(), 0
        while number < n * STEPS:
            collector.version += 1
            number += collector.collect(CHUNK).num_steps
        wall_s = (time.perf_counter() - start) * n / number
        return Spent(wall_s, wall_s)

    return run


def collector(workers: int, staleness: int | None, on: str = "local") -> Any:
    """So many workers on Lift."""
    online = {"num_envs": workers, "num_workers": workers, "max_staleness": staleness}
    settings: dict[str, Any] = {f"train.online.{key}": value for key, value in online.items()}
    settings["algo.actor.layer_dims"] = [512, 512]
    if on != "local":
        settings["cluster.on"] = on
    config = load_config("robosuite/lift/sac").with_overrides(settings)
    return make_collector(build_online(config, torch.device("cpu")))


@contextmanager
def other_version(clone: Path, staleness: int | None) -> Iterator[Contestant]:
    """Two workers of another version of this package, in a process that runs when it is told to."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child"]
    command += [] if staleness is None else ["--staleness", str(staleness)]
    environ = {**os.environ, "PYTHONPATH": str(clone.resolve())}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=clone
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        inward, outward = child.stdin, child.stdout

        def run(n: int) -> Spent:
            inward.write(f"{n}\n")
            inward.flush()
            wall_s = float(outward.readline())
            return Spent(wall_s, wall_s)

        yield run
        inward.close()


def serve(staleness: int | None) -> None:
    """Measure once for each number on stdin; print the seconds."""
    with closing(collector(2, staleness)) as two:
        run = contestant(two)
        for line in sys.stdin:
            print(run(int(line)).wall_s, flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.collectors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--staleness", type=int, help="updates that weights may lag; default: none")
    parser.add_argument("--ray", action="store_true", help="two workers on Ray too")
    parser.add_argument("--before", type=Path, metavar="CLONE", help="of another version")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.child:
        serve(args.staleness)
        return
    with ExitStack() as stack:

        def workers(number: int, on: str = "local") -> Contestant:
            return contestant(stack.enter_context(closing(collector(number, args.staleness, on))))

        contestants = {"one": workers(1), "two": workers(2)}
        if args.ray:
            contestants["ray"] = workers(2, "ray")
        if args.before:
            contestants["before"] = stack.enter_context(other_version(args.before, args.staleness))
        spent = compare(contestants, 1, rounds=args.rounds)
    per_s = {name: 1.0 / cost.wall_s for name, cost in spent.items()}
    rows = [
        Row("one worker", per_s["one"], "env steps/s"),
        Row("two workers", per_s["two"], "env steps/s"),
        Row("two workers: times one", per_s["two"] / per_s["one"], "x", 1.6),
    ]
    for name, words in (("ray", "on Ray"), ("before", "of the other version")):
        if name in per_s:
            rows.append(Row(f"two workers {words}", per_s[name], "env steps/s"))
    if args.ray:
        rows.append(Row("on Ray: times local", per_s["ray"] / per_s["two"], "x", 0.9))
    if args.before:
        rows.append(Row("two workers: times before", per_s["two"] / per_s["before"], "x", 1.0))
    print(table("collectors", rows))


if __name__ == "__main__":
    main()
