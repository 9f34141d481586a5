"""Tables of papers on offline RL, made again from an empty folder: the data, the trainings, the evaluations.

    python -m benchmarks.published cube-single
    python -m benchmarks.published cube-single scene --method iql fql --seed 1 2 3
    python -m benchmarks.published cube-single --updates 20000 --seed 1    # a look, not a comparison
    python -m benchmarks.published pointmaze-medium                        # goals in place of a task

The data are recorded by OGBench's own oracle (`imitate collect --env ogbench:...`), as many steps as the authors
published, so they have the same distribution, but not the same bytes. Methods have the flags of the authors of FQL:
batches of 256, networks of four layers of 512, 1,000,000 updates, 50 episodes every tenth of a training. As there, the
result of a seed is the mean of its last three evaluations, and +- is the standard deviation over the seeds. Mazes have
the settings of OGBench's authors (arXiv:2410.20092): batches of 1,024, three layers of 512, five tasks of 50 episodes
each, whose mean is the success.

Each part may be interrupted: the same command continues it, from the last checkpoint of a training. The published
figures are those of the default task, arXiv:2502.02538, copied from a second source: look them up before you cite them.
Published figures for mazes were not available. BC and GCBC are negative controls: cloning does not know the task, or
cannot combine parts of demonstrations.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.studies.results import IMITATE, kept, run, trained

EVALUATIONS = 10
"""Number of evaluations of a training."""
LAST = 3
"""Number of the last evaluations whose mean is the result."""


@dataclass(frozen=True)
class Task:
    """A dataset of OGBench.

    Attributes:
        num: number of episodes of 1,000 steps; a tenth is kept for validation.
        fql_weight: ``algo.actor.distill_weight`` of FQL, alpha in the paper.
        published: success in %, mean and standard deviation, by method.
        kind: rest of the dataset's name.
        methods: ready configurations below ``ogbench/``.
        num_tasks: number of tasks with different goals; 0 if the dataset has a single task.
    """

    num: int
    fql_weight: float
    published: dict[str, tuple[float, float]]
    kind: str = "play-singletask"
    methods: tuple[str, ...] = ("bc", "iql", "ifql", "fql", "qc")
    num_tasks: int = 0

    def env(self, name: str, task: int | None = None) -> str:
        """Return the environment of the dataset of this name, or of one of its tasks."""
        return f"ogbench:{name}-{self.kind}{'' if task is None else f'-task{task}'}-v0"


TASKS = {
    "cube-single": Task(1111, 300.0, {"iql": (85.0, 8.0), "ifql": (73.0, 3.0), "fql": (97.0, 2.0)}),
    "cube-double": Task(1111, 300.0, {"iql": (1.0, 1.0), "ifql": (9.0, 5.0), "fql": (36.0, 6.0)}),
    "scene": Task(1111, 300.0, {"iql": (12.0, 3.0), "ifql": (0.0, 0.0), "fql": (76.0, 9.0)}),
    "puzzle-3x3": Task(1111, 1000.0, {"iql": (2.0, 1.0), "ifql": (0.0, 0.0), "fql": (16.0, 5.0)}),
    "pointmaze-medium": Task(
        1111, 0.0, {}, "navigate", ("gcbc", "gcivl", "gciql", "hiql", "crl"), num_tasks=5
    ),
}
METHODS = tuple(dict.fromkeys(method for task in TASKS.values() for method in task.methods))


def collected(task: str, out: Path, num: int, workers: int) -> Path:
    """Return the file of a task's dataset, recorded if it is missing."""
    file = out / "data" / f"{task}-{TASKS[task].kind.split('-')[0]}-{num}.hdf5"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [*IMITATE, "collect", "--env", TASKS[task].env(task), "--num", str(num)]
        command += ["--out", str(file), "--workers", str(workers), "--resume"]
        run(command, file.with_suffix(".log"))
    return file


def cell(task: str, method: str, seed: int, data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers of one training, from the disk if it has been run before."""
    folder = args.out / f"{args.updates}" / task / method / f"seed{seed}"
    settings = [
        f'train.data=[{{"path": "{data.resolve()}", "filter_key": "train"}}]',
        *(f"train.seed={seed}", f"experiment.name={method}", "train.num_threads=1"),
        f"train.num_epochs={EVALUATIONS * LAST}",
        f"experiment.epoch_every_n_steps={args.updates // (EVALUATIONS * LAST)}",
        *(f"experiment.rollout.rate={LAST}", f"experiment.rollout.n={args.episodes}"),
        "experiment.rollout.background=false",  # otherwise some evaluations are left out
    ]
    if method == "fql":
        settings.append(f"algo.actor.distill_weight={TASKS[task].fql_weight}")
    each = [TASKS[task].env(task, k + 1) for k in range(TASKS[task].num_tasks)]
    if each:
        settings += [f"experiment.env={each[0]}"]
        settings += [f"experiment.additional_envs={json.dumps(each[1:])}"]

    def measured() -> dict[str, Any]:
        results, lines = trained(folder, f"ogbench/{method}", settings)
        rollouts = [line for line in lines if line.get("kind") == "rollout"]
        return {
            **{"task": task, "method": method, "seed": seed, "updates": results["step"]},
            "cpu_s": results["times"]["train_cpu_s"],
            "curve": [(line["step"], 100 * line["Rollout/Success_Rate"]) for line in rollouts],
            "tasks": [
                fmean(100 * line[f"Rollout/Success_Rate/{env}"] for line in rollouts[-LAST:])
                for env in each
            ],
        }

    return kept(folder, measured)


def row(task: str, method: str, cells: Sequence[dict[str, Any]]) -> str:
    """Return the line of a method on a task: ours beside the published figure."""
    each = [fmean(value for _, value in numbers["curve"][-LAST:]) for numbers in cells]
    spread = f" ± {stdev(each):.0f}" if len(each) > 1 else ""
    found = TASKS[task].published.get(method)
    theirs = "" if found is None else f"{found[0]:.0f} ± {found[1]:.0f}"
    seeds = ", ".join(f"{value:.0f}" for value in each)
    cpu_h = fmean(numbers["cpu_s"] for numbers in cells) / 3600
    rates = zip(*(numbers["tasks"] for numbers in cells), strict=True)
    by_task = ", ".join(f"{fmean(of_seeds):.0f}" for of_seeds in rates)
    return (
        f"| {task} | {method} | {cells[0]['updates']:,} | {fmean(each):.0f}{spread} | {seeds} | {theirs} "
        f"| {cpu_h:.1f} | {by_task} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="+", choices=TASKS)
    parser.add_argument("--method", nargs="+", choices=METHODS, help="default: all of the task")
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3], help="training seeds")
    parser.add_argument("--updates", type=int, default=1_000_000, help="of each training")
    parser.add_argument("--episodes", type=int, default=50, help="of each evaluation")
    parser.add_argument("--num", type=int, help="episodes of the data; default: as published")
    parser.add_argument("--workers", type=int, default=1, help="processes that record the data")
    parser.add_argument("--out", type=Path, default=Path("runs/published"))
    args = parser.parse_args(arguments)
    table: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for task in args.task:
        data = collected(task, args.out, args.num or TASKS[task].num, args.workers)
        for seed, method in itertools.product(args.seed, args.method or TASKS[task].methods):
            cells = table.setdefault((task, method), [])
            cells.append(cell(task, method, seed, data, args))
            print(f"seed {seed}", row(task, method, cells[-1:]), flush=True)
    print(
        "\n| task | method | updates | success, % | seeds | published | CPU h of a seed | by task |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for (task, method), cells in table.items():
        print(row(task, method, cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
