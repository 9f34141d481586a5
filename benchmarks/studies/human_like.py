"""Study of policies from demonstrations like a person's: they are collected, each cell is trained and evaluated.

    python -m benchmarks.studies.human_like --task stack --variant flow_policy vq_bet --seed 1 2 3

Demonstrations are those of ``imitate collect --human-like --seed 0``. A cell is a task, a variant and a training seed;
configurations are the ready ones (NutAssemblySquare has those of PickPlaceCan, with its own file), and an episode of
the evaluation may take twice as long as the longest demonstration. Finished files and cells are kept under --out and
not made again. ``--cells FILE`` adds finished cells to a JSON file and skips those that it contains, so that
another machine can continue.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.studies.results import IMITATE, KnownCells, cell, run
from imitate.data import DatasetFile
from imitate.functional.statistics import wilson_interval


class Task(NamedTuple):
    """A task of the study.

    Attributes:
        env: name of the robosuite task.
        configs: folder of its ready configurations.
    """

    env: str
    configs: str


TASKS = {
    "stack": Task("Stack", "stack"),
    "pick_place_can": Task("PickPlaceCan", "pick_place_can"),
    "nut_assembly_square": Task("NutAssemblySquare", "pick_place_can"),
}
VARIANTS = ("bc", "bc_rnn_gmm", "vq_bet", "act", "flow_policy", "diffusion_policy")
HEADER = "| task | variant | seeds | updates | CPU s | each | together |\n" + "|---" * 7 + "|"


def demonstrations(task: str, num: int, out: Path, workers: int) -> Path:
    """Return the file of a task's demonstrations; collect it if it is missing, or resume an interrupted collection."""
    path = out / f"{task}.hdf5"
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        options = ["--env", TASKS[task].env, "--num", str(num), "--workers", str(workers)]
        options += ["--seed", "0", "--human-like", "--resume", "--out", str(path)]
        run([*IMITATE, "collect", *options], out / f"{task}.collect.log")
    return path


def habits_of(lengths: Sequence[int], motions: Iterable[np.ndarray]) -> dict[str, float]:
    """Measure the habits in demonstrations.

    Args:
        lengths: number of steps of each demonstration.
        motions: commanded motion (T, 6) of each demonstration.

    Returns:
        median and longest length, the part of the steps in which nothing moves, and the correlation of neighbouring
        sideways commands while the hand moves.
    """
    still, moving, pairs = 0, 0, []
    for motion in motions:
        rests = (motion == 0.0).all(axis=1)
        still, moving = still + int(rests.sum()), moving + int((~rests).sum())
        on = ~rests[:-1] & ~rests[1:]
        pairs.append(np.stack([motion[:-1, :2][on], motion[1:, :2][on]]).reshape(2, -1))
    return {
        "median_steps": float(np.median(lengths)),
        "longest_steps": float(max(lengths)),
        "still": still / max(still + moving, 1),
        "neighbours": float(np.corrcoef(np.concatenate(pairs, axis=1))[0, 1]),
    }


def describe(path: Path) -> str:
    """Return one line about a file of demonstrations."""
    with DatasetFile(path) as file:
        names = file.demos()
        lengths = [file.length(name) for name in names]
        numbers = habits_of(lengths, (file.read(name, "actions")[:, :6] for name in names))
    return (
        f"{path.stem}: {len(lengths)} demonstrations, {numbers['median_steps']:.0f} steps at the median, "
        f"{numbers['longest_steps']:.0f} at most; nothing moves in {100 * numbers['still']:.0f} % of the steps; "
        f"neighbouring commands correlate by {numbers['neighbours']:.2f}"
    )


def cell_of(
    task: str, variant: str, seed: int, data: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the cell of a ready configuration, with the horizon that follows from the demonstrations."""
    name = f"seed{seed}" if args.epochs is None else f"seed{seed}_epochs{args.epochs}"
    folder = Path(args.out) / task / variant / name
    settings = [f"train.seed={seed}", f"experiment.name={variant}", f"train.data={data}"]
    settings += ["experiment.rollout.horizon=null"]
    settings += [] if args.epochs is None else [f"train.num_epochs={args.epochs}"]
    with DatasetFile(data) as file:
        longest = max(file.length(name) for name in file.demos())
    evaluation = ["--episodes", str(args.episodes), "--workers", str(args.workers)]
    evaluation += ["--horizon", str(2 * longest)]
    of = {"task": task, "variant": variant, "seed": seed, "epochs": args.epochs}
    config = f"robosuite/{TASKS[task].configs}/{variant}"
    return cell(folder, of, config, [*settings, *args.set], evaluation)


def row(cells: Sequence[dict[str, Any]]) -> str:
    """Return a line of the table: the pooled training seeds of one task and variant."""
    successes = sum(numbers["successes"] for numbers in cells)
    episodes = sum(numbers["episodes"] for numbers in cells)
    low, high = wilson_interval(successes, episodes)
    seconds = [numbers["train_cpu_s"] for numbers in cells]
    cost = f"{min(seconds):.0f}" + (f" - {max(seconds):.0f}" if len(cells) > 1 else "")
    seeds = ", ".join(str(numbers["seed"]) for numbers in cells)
    each = ", ".join(f"{numbers['successes']}/{numbers['episodes']}" for numbers in cells)
    return (
        f"| {cells[0]['task']} | {cells[0]['variant']} | {seeds} | {cells[0]['steps']} | {cost} "
        f"| {each} | {successes}/{episodes} ({100 * low:.0f} - {100 * high:.0f} %) |"
    )


def finished(out: Path) -> list[dict[str, Any]]:
    """Return all finished cells under a folder."""
    return [json.loads(path.read_text()) for path in sorted(out.glob("*/*/seed*/cell.json"))]


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of cells: one for each task, variant and number of updates."""
    order = [(task, variant) for task in TASKS for variant in VARIANTS]
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for numbers in found:
        key = (order.index((numbers["task"], numbers["variant"])), numbers["steps"])
        groups.setdefault(key, []).append(numbers)
    return [row(sorted(groups[key], key=lambda cell: cell["seed"])) for key in sorted(groups)]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--variant", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--seed", nargs="+", type=int, default=[1], help="training seeds")
    parser.add_argument("--demos", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="epochs of 100 updates; default: as configured")
    parser.add_argument("--set", nargs="*", default=[], help="further settings, a.b=value")
    parser.add_argument("--out", default="runs/human_like")
    parser.add_argument("--table", action="store_true", help="only print the finished cells")
    parser.add_argument("--cells", type=Path, help="JSON file of finished cells, read and written")
    args = parser.parse_args()
    out = Path(args.out).resolve()
    known = KnownCells(args.cells)
    if args.cells is None:
        known.cells = finished(out)
    if not args.table:
        for task in args.task:
            for variant, seed in itertools.product(args.variant, args.seed):
                of = {"task": task, "variant": variant, "seed": seed, "epochs": args.epochs}
                if not known.of(**of):
                    data = demonstrations(task, args.demos, out, args.workers)
                    known.add([cell_of(task, variant, seed, data, args)])
                print(row(known.of(**of)), flush=True)
            if (out / f"{task}.hdf5").is_file():
                print(describe(out / f"{task}.hdf5"), flush=True)
    print("\n".join([HEADER, *table(known.cells)]))


if __name__ == "__main__":
    main()
