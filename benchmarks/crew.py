"""Workers on a private Ray cluster of this machine beside local ones: episodes of Lift, small items, large values.

    python -m benchmarks.crew
    python -m benchmarks.crew --rounds 20 --on ray:127.0.0.1:6379

Two workers each, running from the first round on. Rounds of the two back ends take turns, each pair gives a ratio, and
the median over the pairs counts, because other work on the machine falls on both. An episode is one of robosuite's Lift
with random actions and no images.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.row import Row, table
from imitate.crew import Crew, Shared, open_backend
from imitate.envs import make_env
from imitate.evaluation.environments import named_env

WORKERS, STEPS, EPISODES, ITEMS = 2, 100, 4, 200
SHARED_BYTES = 20_000_000


class Episodes:
    """Work of a worker: plays an episode, or returns the first byte of a value."""

    def __init__(self, reports: Callable[[str], None]) -> None:
        self._env: Any = None

    def __call__(self, item: int | Shared[bytes] | None) -> float:
        if item is None:
            return 0.0
        if isinstance(item, Shared):
            return float(item.get()[0])
        if self._env is None:
            self._env = make_env(named_env("Lift"))
        self._env.reset(seed=item)
        actions = np.random.default_rng(item).uniform(-1, 1, (STEPS, self._env.action_dim))
        return float(sum(self._env.step(action)[1] for action in actions))


def seconds(crew: Crew[Any, Any], items: Sequence[Any]) -> tuple[float, list[Any]]:
    """Seconds of the clock for some items, and their results."""
    start = time.perf_counter()
    results = [done.result for done in crew.in_order(items)]
    return time.perf_counter() - start, results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.crew", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="pairs of rounds")
    parser.add_argument("--on", default="ray", help="place to compare with local")
    options = parser.parse_args()
    with ExitStack() as stack:
        crews = {}
        opened = {}
        for on in ("local", options.on):
            start = time.perf_counter()
            backend = stack.enter_context(open_backend(on))
            crews[on] = stack.enter_context(Crew[Any, Any](Episodes, WORKERS, backend=backend))
            seconds(crews[on], [None] * WORKERS)
            opened[on] = time.perf_counter() - start
        rows = [
            Row(
                "Ray, to the first result", opened[options.on] - opened["local"], "s more", 20, True
            )
        ]
        rows += _rows(
            "Lift episodes",
            "episodes/min",
            crews,
            60 * EPISODES,
            options.rounds,
            range(EPISODES),
            0.9,
        )
        rows += _rows("small items", "items/s", crews, ITEMS, options.rounds, [None] * ITEMS, None)
        rows += _rows("20 MB to each worker", "values/s", crews, 1, options.rounds, None, None)
    print(table("crew", rows))


def _rows(
    name: str,
    unit: str,
    crews: dict[str, Crew[Any, Any]],
    count: float,
    rounds: int,
    items: Sequence[Any] | None,
    target: float | None,
) -> list[Row]:
    """Rates of both back ends, and their ratio.

    Args:
        name: of what is measured.
        unit: of its rate.
        crews: the local one, and the other.
        count: of units in a round, which is divided by its seconds.
        rounds: pairs of them; one more warms up.
        items: of a round; None: a new shared value for each worker.
        target: of the ratio.
    """
    spent: dict[str, list[float]] = {on: [] for on in crews}
    for number in range(rounds + 1):
        results = {}
        for on in list(crews) if number % 2 else list(crews)[::-1]:
            given = [Shared(bytes([number]) * SHARED_BYTES)] * WORKERS if items is None else items
            took_s, results[on] = seconds(crews[on], given)
            if number:
                spent[on].append(took_s)
        first, second = results.values()
        if first != second:
            raise SystemExit(f"{name}: results differ: {first} {second}")
    local, other = spent
    ratios = [a / b for a, b in zip(spent[local], spent[other], strict=True)]
    low, high = min(ratios), max(ratios)
    return [
        Row(f"{name}, {on}", count / statistics.median(taken), unit) for on, taken in spent.items()
    ] + [
        Row(
            f"{name}: Ray / local",
            statistics.median(ratios),
            "x",
            target,
            note=f"{low:.2f} to {high:.2f} in {rounds} pairs",
        )
    ]


if __name__ == "__main__":
    main()
