"""Study of mixed demonstrations of Lift and PickPlaceCan: offline RL and weighted cloning against plain cloning.

    python -m benchmarks.studies.offline_mixed --seed 1 2 3
    python -m benchmarks.studies.offline_mixed --task lift --method bc iql --seed 1

The files are made by two commands in docs/environments.md (mixed quality). A cell is a task, a method and a training
seed; each is trained by `imitate train` on one thread to the end of its schedule, and its last weights are evaluated
from the same 50 initial states. Finished cells are kept under --out and not run again. The last table pools the
training seeds; a method counts as better or worse than `bc` if the 95 % intervals of the pooled rates do not touch.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.results import HORIZONS, cell, row
from imitate.functional.statistics import wilson_interval

TASKS = ("lift", "pick_place_can")
TIME_COSTS = 'train.reward={"shift": -0.01}'
"""Reward of a step, a hundredth of the reward for success, so that faster demonstrations have larger returns."""
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bc": ("bc", ()),
    "bc_rnn_gmm": ("bc_rnn_gmm", ()),
    "bc_filtered": ("bc", ("train.filter_best=0.25",)),
    "bc_weighted": (
        "bc",
        ('train.sample_weight={"kind": "return", "temperature": 0.1}', TIME_COSTS),
    ),
    "iql": ("iql_mixed", ()),
    "awac": ("awac_mixed", ()),
    "td3_bc": ("td3_bc_mixed", ()),
    "bcq": ("bcq_mixed", ()),
}
"""Ready configuration below ``robosuite/<task>/``, and additional settings."""


def measure(task: str, method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers of one cell."""
    config, settings = METHODS[method]
    data = Path(args.datasets) / task / "mixed.hdf5"
    if not data.is_file():
        raise SystemExit(f"{data} is missing: docs/environments.md has the command that makes it")
    return cell(
        Path(args.out) / task / method / f"seed{seed}",
        {"task": task, "variant": method, "seed": seed},
        f"robosuite/{task}/{config}",
        [f"train.data={data}", f"train.seed={seed}", f"experiment.name={method}", *settings],
        [
            *("--episodes", str(args.episodes), "--workers", str(args.workers)),
            *("--horizon", str(HORIZONS[task])),
        ],
    )


def pooled(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table over all seeds."""
    lines = ["| task | method | seeds | success | 95 % interval | beside bc |", "|" + "---|" * 6]
    totals: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for numbers in cells:
        totals.setdefault((numbers["task"], numbers["variant"]), []).append(numbers)
    intervals = {key: _interval(members) for key, members in totals.items()}
    for (task, method), members in totals.items():
        low, high = intervals[task, method]
        each = ", ".join(str(n["successes"]) for n in members)
        beside = _beside((low, high), intervals.get((task, "bc")))
        solved, played = _sums(members)
        lines.append(
            f"| {task} | {method} | {each} | {solved}/{played} "
            f"| {100 * low:.0f} - {100 * high:.0f} % | {beside} |"
        )
    return lines


def _sums(members: Sequence[dict[str, Any]]) -> tuple[int, int]:
    return sum(n["successes"] for n in members), sum(n["episodes"] for n in members)


def _interval(members: Sequence[dict[str, Any]]) -> tuple[float, float]:
    return wilson_interval(*_sums(members))


def _beside(own: tuple[float, float], base: tuple[float, float] | None) -> str:
    if base is None or own == base:
        return ""
    if own[0] > base[1]:
        return "better"
    return "worse" if own[1] < base[0] else "no difference shown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3], help="training seeds")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2, help="processes of the evaluation")
    parser.add_argument("--datasets", default="datasets", help="folder of <task>/mixed.hdf5")
    parser.add_argument("--out", default="runs/offline_mixed")
    args = parser.parse_args(arguments)
    cells = []
    for seed, task, method in itertools.product(args.seed, args.task, args.method):
        cells.append(measure(task, method, seed, args))
        print(row(cells[-1]), flush=True)
    order = list(itertools.product(args.task, args.method))
    cells.sort(key=lambda numbers: order.index((numbers["task"], numbers["variant"])))
    print("\n| task | method | seed | updates | CPU s | success | 95 % interval |\n|" + "---|" * 7)
    print("\n".join(row(numbers) for numbers in cells))
    print("\n" + "\n".join(pooled(cells)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
