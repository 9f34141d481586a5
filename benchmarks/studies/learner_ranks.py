"""Online RL with one learner and with two learner ranks: the same returns for the same environment steps.

    python -m benchmarks.studies.learner_ranks --seed 0 1 2

A cell is an algorithm, a number of ranks and a training seed. All settings are those of one process (environments,
batch, update ratio, environment steps); under torchrun the ranks share them. The return is the mean over the last 100
training episodes of all ranks at the end. Finished cells are kept under --out and not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

FLAT = {"modalities": {"obs": {"low_dim": ["flat"]}}}
CASES: dict[str, dict[str, Any]] = {
    "ppo_cartpole": {
        "algo_name": "ppo",
        "algo": {"optim_params": {"policy": {"learning_rate": {"initial": 1e-3}}}},
        "experiment": {"epoch_every_n_steps": 8192},
        "train": {
            "batch_size": 256,
            "num_epochs": 5,
            "online": {"env": "CartPole-v1", "num_envs": 8, "collect_steps": 256},
        },
    },
}


def cell(case: str, ranks: int, seed: int, out: Path) -> float:
    """Train once, unless it has been done; return the mean return of the last training episodes."""
    folder = out / case / f"ranks{ranks}_seed{seed}"
    finished = sorted(folder.glob("*/*/results.json"))
    if not finished:
        tree = {**CASES[case], "observation": FLAT}
        tree["experiment"] = {
            **tree["experiment"],
            "name": case,
            "logging": {"log_tb": False},
            "rollout": {"enabled": False, "horizon": 500},
        }
        tree["train"] = {**tree["train"], "cuda": False, "num_threads": 1, "seed": seed}
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.json"
        config.write_text(json.dumps(tree))
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *(launcher if ranks > 1 else ()), "-m", "imitate", "train"]
        with (folder / "train.log").open("w") as log:
            subprocess.run(
                [*command, "--config", str(config), "-o", str(folder)],
                check=True,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        finished = sorted(folder.glob("*/*/results.json"))
    lines = (finished[-1].parent / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["Metrics/AverageReturn"])


def main() -> None:
    """Train all cells and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/learner_ranks"))
    args = parser.parse_args()
    rows = []
    for case in args.case:
        for ranks in (1, 2):
            returns = [cell(case, ranks, seed, args.out) for seed in args.seed]
            each = ", ".join(f"{value:.0f}" for value in returns)
            rows.append(f"| {case} | {ranks} | {fmean(returns):.0f} | {each} |")
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    header = ["| | ranks | mean return | of each seed |", "|---|--:|--:|--:|"]
    sys.stdout.write("\n".join(["", *header, *rows, ""]))


if __name__ == "__main__":
    main()
