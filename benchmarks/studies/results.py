"""Study of the success rates in docs/results.md: it trains and evaluates each cell, and prints a table.

    python -m benchmarks.studies.results --task lift --variant bc bc_rnn_gmm --seed 1 2 3 --epochs 2 5 10 --episodes 100

A cell is a task, a variant, a training seed and a number of epochs (100 updates each). Each is trained by
`imitate train` on one thread without rollouts and evaluated by `imitate eval`, from the same initial states for all.
Finished cells are kept under --out and not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from imitate.system.run_folder import to_json, write_text
from imitate.system.statistics import wilson_interval

TASKS = ("lift", "stack", "pick_place_can")
VARIANTS = (
    *("bc", "bc_gaussian", "bc_gmm", "bc_vae", "bc_rnn", "bc_rnn_gmm"),
    *("bc_chunk", "bc_transformer_gmm", "flow_policy", "diffusion_policy", "act", "vq_bet"),
)
ON_STACK = ("hbc", "iris")
"""Further variants, which have ready configurations for Stack only."""
HORIZONS = {"lift": 150, "stack": 300, "pick_place_can": 400}
"""Numbers of steps of an evaluation episode, constant so that results of different demonstrations can be compared."""
IMITATE = (str(Path(sys.executable).with_name("imitate")),)


def run(command: Iterable[str], log: Path) -> None:
    """Run a command to its end, with its output in a file. Raises CalledProcessError."""
    command = list(command)
    print("$", shlex.join(["imitate", *command[len(IMITATE) :]]), flush=True)
    with log.open("w") as file:
        subprocess.run(command, check=True, stdout=file, stderr=subprocess.STDOUT)


def kept(folder: Path, measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a cell, from its folder if it has been run before."""
    file = folder / "cell.json"
    if not file.is_file():
        write_text(file, to_json(measured()) + "\n")
    return json.loads(file.read_text())


def cell(
    folder: Path,
    of: dict[str, Any],
    config: str,
    settings: Sequence[str],
    evaluation: Sequence[str],
) -> dict[str, Any]:
    """Return one cell's numbers, from the disk if it has been run before; an interrupted training is resumed.

    Args:
        folder: folder of the cell.
        of: description of the cell, saved with the numbers.
        config: ready configuration.
        settings: ``key=value`` for ``imitate train --set``.
        evaluation: options of ``imitate eval``.
    """

    def measured() -> dict[str, Any]:
        alone = ("train.num_threads=1", "experiment.rollout.enabled=false")
        results, _ = trained(folder, config, (*alone, *settings))
        report = folder / "eval.json"
        evaluate = [*IMITATE, "eval", "--agent", results["checkpoint"], "--seed", "0"]
        run([*evaluate, *evaluation, "--out", str(report)], folder / "eval.log")
        found = json.loads(report.read_text())["evaluations"][0]
        return {
            **of,
            "steps": results["step"],
            "train_cpu_s": results["times"]["train_cpu_s"],
            **{key: found[key] for key in ("successes", "episodes", "mean_length")},
            "checkpoint": results["checkpoint"],
        }

    return kept(folder, measured)


def trained(
    folder: Path, config: str, settings: Iterable[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train, or resume from the last checkpoint in the folder; return the results and the lines of metrics.

    Args:
        folder: folder of the runs.
        config: ready configuration.
        settings: ``key=value`` for ``imitate train --set``.
    """
    begun = sorted(folder.glob("*/*/checkpoints/last.pth"))
    if begun:
        run([*IMITATE, "train", "--resume", str(begun[-1].parents[1])], folder / "resumed.log")
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [*IMITATE, "train", "--config", config, "--output-dir", str(folder)]
        run([*command, *itertools.chain(*(("--set", s) for s in settings))], folder / "train.log")
    results = max(folder.glob("*/*/results.json"))
    lines = (results.parent / "metrics.jsonl").read_text().splitlines()
    return json.loads(results.read_text()), [json.loads(line) for line in lines]


def cell_of(
    task: str, variant: str, seed: int, epochs: int | None, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the cell of a ready configuration."""
    folder = Path(args.out) / task / variant / f"seed{seed}_epochs{epochs or 'ready'}"
    settings = [f"train.seed={seed}", f"experiment.name={variant}"]
    settings += [] if epochs is None else [f"train.num_epochs={epochs}"]
    evaluation = ["--episodes", str(args.episodes), "--workers", str(args.workers)]
    evaluation += ["--horizon", str(HORIZONS[task])]
    of = {"task": task, "variant": variant, "seed": seed}
    return cell(folder, of, f"robosuite/{task}/{variant}", [*settings, *args.set], evaluation)


def row(numbers: dict[str, Any]) -> str:
    """Return a line of the table."""
    low, high = wilson_interval(numbers["successes"], numbers["episodes"])
    return (
        f"| {numbers['task']} | {numbers['variant']} | {numbers['seed']} | {numbers['steps']} "
        f"| {numbers['train_cpu_s']:.1f} | {numbers['successes']}/{numbers['episodes']} "
        f"| {100 * low:.0f} - {100 * high:.0f} % |"
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--variant", nargs="+", default=VARIANTS, choices=(*VARIANTS, *ON_STACK))
    parser.add_argument("--seed", nargs="+", type=int, default=[1], help="training seeds")
    parser.add_argument(
        "--epochs", nargs="+", type=int, default=[None], help="default: as configured"
    )
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--set", nargs="*", default=[], help="further settings, a.b=value")
    parser.add_argument("--out", default="runs/results")
    args = parser.parse_args()
    rows = []
    for chosen in itertools.product(args.task, args.variant, args.seed, args.epochs):
        rows.append(row(cell_of(*chosen, args)))
        print(rows[-1], flush=True)
    print("\n| task | variant | seed | updates | CPU s | success | 95 % interval |\n|" + "---|" * 7)
    print("\n".join(rows))


if __name__ == "__main__":
    main()
