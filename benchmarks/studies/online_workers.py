"""Online RL with two workers that collect during the updates, on this machine and on Ray: is the same learned?

    imitate collect --env Lift --quality mixed --num 280 --workers 2 --seed 0 --out datasets/lift/mixed.hdf5
    python -m benchmarks.studies.online_workers --seed 0 1 2

A cell is a case, a place where the workers run, and a training seed. Each is trained by `imitate train` on one thread,
for so long that learning shows and is not over, with weights at most 50 updates old; its last policy is evaluated by
`imitate eval` from the same 50 starts for all. Settings are those of ready configurations, for Lift with smaller
networks. Finished cells are kept under --out and not run again, and an interrupted one goes on where its last
checkpoint is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.studies.results import IMITATE, run
from imitate.functional.over_seeds import estimate

PLACES = ("local", "ray")
EPISODES = 50
WORKERS = (
    "train.online.num_envs=2",
    "train.online.num_workers=2",
    "train.online.collect_steps=10",
    "train.online.max_staleness=50",
    "experiment.rollout.enabled=false",
    "experiment.early_stopping.enabled=false",
)


@dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
        config: ready configuration.
        metric: of an evaluation, as `imitate eval --json` names it.
        horizon: steps of an evaluation episode.
        settings: in place of the configuration's.
    """

    config: str
    metric: str
    horizon: int
    settings: tuple[str, ...]


CASES = {
    "sac_pendulum": Case("sac/sac_pendulum", "mean_return", 200, ("train.num_epochs=8",)),
    "rlpd_lift": Case(
        "robosuite/lift/rlpd",
        "success_rate",
        150,
        (
            "train.num_epochs=8",
            "train.batch_size=128",
            "algo.actor.layer_dims=[128, 128]",
            "algo.critic.layer_dims=[128, 128]",
        ),
    ),
}
LIFT_DATA = (
    '[{{"path": "{0}", "filter_key": "better", "demo_limit": 50}}, '
    '{{"path": "{0}", "filter_key": "worse", "demo_limit": 50}}]'
)


def cell(name: str, place: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The numbers of one training, from the disk if it has been run before."""
    folder, case = args.out / name / place / f"seed{seed}", CASES[name]
    kept = folder / "cell.json"
    if kept.is_file():
        numbers: dict[str, Any] = json.loads(kept.read_text())
        return numbers
    begun = sorted(folder.glob("*/*/checkpoints/last.pth"))
    if begun:
        run([*IMITATE, "train", "--resume", str(begun[-1].parents[1])], folder / "resumed.log")
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        settings = [*WORKERS, *case.settings, f"train.seed={seed}", f"experiment.name={name}"]
        if name == "rlpd_lift":
            settings.append(f"train.data={LIFT_DATA.format(args.lift_data)}")
        train = [*IMITATE, "train", "--config", case.config, "--output-dir", str(folder)]
        train += ["--on", place] if place != "local" else []
        run([*train, *itertools.chain(*(("--set", s) for s in settings))], folder / "train.log")
    results = max(folder.glob("*/*/results.json"))
    trained = json.loads(results.read_text())
    report = folder / "eval.json"
    evaluate = [*IMITATE, "eval", "--agent", str(results.parent / "checkpoints" / "last.pth")]
    evaluate += ["--episodes", str(EPISODES), "--horizon", str(case.horizon), "--seed", "0"]
    run([*evaluate, "--json", str(report)], folder / "eval.log")
    records = map(json.loads, (results.parent / "metrics.jsonl").read_text().splitlines())
    numbers = {
        "case": name,
        "place": place,
        "seed": seed,
        "steps": trained["step"],
        "cpu_s": trained["times"]["train_cpu_s"],
        "staleness": max(record.get("Metrics/Staleness", 0.0) for record in records),
        "value": json.loads(report.read_text())["evaluations"][0][case.metric],
    }
    kept.write_text(json.dumps(numbers))
    return numbers


def row(name: str, place: str, cells: Sequence[dict[str, Any]]) -> str:
    """A line of the table: all seeds of a case in a place."""
    digits = 2 if CASES[name].metric == "success_rate" else 0
    values = [numbers["value"] for numbers in cells]
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    over = estimate(values, bounds=(0.0, 1.0) if digits else (-math.inf, math.inf))
    interval = "" if over.low is None else f" ({over.low:.{digits}f} to {over.high:.{digits}f})"
    stale = max(numbers["staleness"] for numbers in cells)
    return (
        f"| {name} | {place} | {cells[0]['steps']} | {CASES[name].metric.replace('_', ' ')} | {each} "
        f"| {over.value:.{digits}f}{interval} | {stale:.0f} | {sum(n['cpu_s'] for n in cells) / len(cells):.0f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.studies.online_workers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--place", nargs="+", default=PLACES, choices=PLACES)
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], help="training seeds")
    parser.add_argument("--lift-data", type=Path, default=Path("datasets/lift/mixed.hdf5"))
    parser.add_argument("--out", type=Path, default=Path("runs/online_workers"))
    args = parser.parse_args(arguments)
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed, name, place in itertools.product(args.seed, args.case, args.place):
        cells.setdefault((name, place), []).append(cell(name, place, seed, args))
        print(f"seed {seed}", row(name, place, cells[name, place][-1:]), flush=True)
    print(
        "\n| case | workers | steps | of 50 episodes | seeds | mean and 95 % interval | oldest weights | CPU s |\n"
        + "|---" * 8
        + "|"
    )
    for (name, place), found in cells.items():
        print(row(name, place, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
