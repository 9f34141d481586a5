"""Study of success over the number of expert labels, for corrected rollouts and for more demonstrations.

    python -m benchmarks.studies.dagger --seed 0 1 2
    python -m benchmarks.studies.dagger --method bc hg_dagger --seed 1 --rounds 5

All begin with the same 5 demonstrations of Lift. `bc` is trained on more and more of them; the others go through
rounds of corrected rollouts, see docs/interactive.md. A label is a step with an action of the expert's; if not each
step has one (`dagger_sparse`: each fourth; `hg_dagger`: corrections alone), a round has more episodes. Each policy
is evaluated from the same 50 initial states. The table shows, per seed, the number of labels at which the wanted
success rate was first reached. Finished cells are kept under --out and not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.studies.results import HORIZONS, IMITATE, run
from imitate.data import DatasetFile

METHODS: dict[str, tuple[str, ...]] = {
    "bc": (),
    "dagger": ("--episodes", "2", "--beta", "0.5"),
    "dagger_sparse": ("--episodes", "8", "--beta", "0.5", "--label-every", "4"),
    "hg_dagger": ("--episodes", "10", "--take-over", "expert"),
}
BEGIN = 5
HORIZON = f"experiment.rollout.horizon={HORIZONS['lift']}"
MORE = (5, 10, 15, 20, 30, 40, 60)
"""Numbers of demonstrations on which bc is trained."""

Points = list[tuple[int, float]]
"""Pair of number of labels and success rate."""


def cloned(seed: int, args: argparse.Namespace) -> Points:
    """Train plain cloning with more and more demonstrations."""
    points: Points = []
    for count in MORE:
        folder = args.out / "bc" / f"seed{seed}" / f"demos{count}"
        kept = folder / "cell.json"
        if not kept.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            data = json.dumps([{"path": str(args.dataset), "demo_limit": count}])
            command = [*IMITATE, "train", "--config", args.config, "--output-dir", str(folder)]
            settings = (f"train.data={data}", f"train.seed={seed}", f"experiment.name=bc_{count}")
            settings += (HORIZON,)
            run([*command, *_set(settings)], folder / "train.log")
            metrics = max(folder.glob("*/*/metrics.jsonl")).read_text().splitlines()
            rates = [json.loads(line).get("Rollout/Success_Rate") for line in metrics]
            rate = [rate for rate in rates if rate is not None][-1]
            kept.write_text(json.dumps([_steps(args.dataset, count), rate]))
        labels, rate = json.loads(kept.read_text())
        points.append((labels, rate))
    return points


def _steps(dataset: Path, count: int) -> int:
    with DatasetFile(dataset) as file:
        return sum(file.length(demo) for demo in file.demos()[:count])


def corrected(method: str, seed: int, args: argparse.Namespace) -> Points:
    """Return labels and success rate after each round of corrected rollouts."""
    folder = args.out / method / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    command = [*IMITATE, "dagger", "--config", args.config, "--dataset", str(args.dataset)]
    command += ["--first", str(BEGIN), "--rounds", str(args.rounds), "--seed", str(1000 * seed)]
    command += ["--out", str(folder / "run"), *METHODS[method]]
    settings = (f"train.seed={seed}", HORIZON)
    run([*command, *_set(settings)], folder / "dagger.log")
    rounds = json.loads((folder / "run" / "progress.json").read_text())["rounds"]
    return [(done["labels"], done["success_rate"]) for done in rounds]


def _set(settings: Sequence[str]) -> list[str]:
    return list(itertools.chain(*(("--set", setting) for setting in settings)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], help="training seeds")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--wanted", type=float, default=0.95, help="wanted success rate")
    parser.add_argument("--config", default="robosuite/lift/bc")
    parser.add_argument("--dataset", type=Path, default=Path("datasets/lift/scripted.hdf5"))
    parser.add_argument("--out", type=Path, default=Path("runs/dagger_labels"))
    args = parser.parse_args(arguments)
    lines = []
    for method, seed in itertools.product(args.method, args.seed):
        points = cloned(seed, args) if method == "bc" else corrected(method, seed, args)
        first = next((str(labels) for labels, rate in points if rate >= args.wanted), "not reached")
        each = ", ".join(f"{labels}: {100 * rate:.0f} %" for labels, rate in points)
        lines.append(f"| {method} | {seed} | {first} | {each} |")
        print(lines[-1], flush=True)
    print(f"\n| method | seed | labels for {100 * args.wanted:.0f} % | labels: success |")
    print("|---|---|---|---|\n" + "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
