"""Pendulum and InvertedPendulum from mixed data: what algorithms make of demonstrations of which few are good.

    python -m benchmarks.studies.offline_pendulum --data pendulum.hdf5          all of them, three training seeds
    python -m benchmarks.studies.offline_pendulum --data pendulum.hdf5 --algorithms bc iql --seeds 1 --steps 5000
    python -m benchmarks.studies.offline_pendulum --task inverted_pendulum --data inverted.hdf5

The data are made without training, see offline_pendulum_data.py.
Printed is the mean return of the last weights over 50 unseen starts, per training seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.studies.offline_pendulum_data import TASKS, Task, write_data
from imitate import load_config
from imitate.evaluation.evaluate import evaluate
from imitate.train.trainer import train

TEST_SEED = 10_000
FAST = {"learning_rate": {"initial": 1e-3}}
SLOW = {"learning_rate": {"initial": 3e-4}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "bc": {"algo_name": "bc", "algo": {"optim_params": {"policy": FAST}}},
    "bc, best 10 %": {
        "algo_name": "bc",
        "algo": {"optim_params": {"policy": FAST}},
        "train": {"filter_best": 0.1},
    },
    "iql": {
        "algo_name": "iql",
        "algo": {
            "optim_params": {"critic": SLOW, "vf": SLOW, "actor": SLOW},
            "vf_quantile": 0.8,
            "adv": {"beta": 0.2},
        },
    },
    "td3_bc": {
        "algo_name": "td3_bc",
        # The paper's 2.5 is for data of one quality: here it stays at the mean of all actions.
        "algo": {"alpha": 40.0, "optim_params": {"critic": FAST, "actor": FAST}},
    },
    "awac": {"algo_name": "awac", "algo": {"adv": {"beta": 0.2}}},
    "rebrac": {
        "algo_name": "rebrac",
        "algo": {
            "optim_params": {"critic": SLOW, "actor": SLOW},
            "actor": {"bc_weight": 0.1},
            "critic": {"bc_weight": 0.01},
        },
    },
}


def returns_of(
    name: str, task: Task, data: Path, seed: int, steps: int, folder: Path
) -> list[float]:
    """Train once; the returns of 50 episodes."""
    chosen = ALGORITHMS[name]
    layers = [256, 256]
    sizes: dict[str, Any] = {"actor": {"layer_dims": layers}, "critic": {"layer_dims": layers}}
    if chosen["algo_name"] == "bc":
        sizes = {"actor_layer_dims": layers}
    algo = chosen.get("algo", {})
    tree = {
        "algo_name": chosen["algo_name"],
        "experiment": {
            "name": name.replace(" ", "_").replace(",", "").replace("%", "percent"),
            "epoch_every_n_steps": min(1000, steps),
            "rollout": {"enabled": False},
        },
        "train": {
            "obs_normalization": "mean_std",
            "batch_size": 256,
            "num_epochs": max(1, steps // 1000),
            "seed": seed,
            "num_threads": 1,
            "action_config": {"actions": {"normalization": "min_max"}},
            "reward": {"scale": 0.1},
            **chosen.get("train", {}),
        },
        "algo": {
            **algo,
            **{k: {**v, **algo.get(k, {})} if isinstance(v, dict) else v for k, v in sizes.items()},
        },
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    result = train(load_config(tree), dataset=data, output_dir=folder, quiet=True)
    last = result.run_dir / "checkpoints" / "last.pth"
    measured = evaluate(last, task.env_meta, episodes=50, horizon=task.play_steps, seed=TEST_SEED)
    return list(measured.returns)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per algorithm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, default="pendulum")
    parser.add_argument("--data", type=Path, required=True, help="the file; written if absent")
    parser.add_argument("--episodes", type=int, help="of the data")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the training")
    parser.add_argument("--steps", type=int, default=10_000, help="updates")
    chosen = parser.parse_args(arguments)
    task = TASKS[chosen.task]
    if not chosen.data.exists():
        returns = write_data(chosen.data, task, chosen.episodes)
        best = sorted(returns)[-max(1, len(returns) // 10) :]
        sys.stdout.write(f"data: mean return {fmean(returns):.0f}, best tenth {fmean(best):.0f}\n")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.algorithms:
            means = [
                fmean(returns_of(name, task, chosen.data, seed, chosen.steps, Path(folder)))
                for seed in chosen.seeds
            ]
            spread = f" +- {stdev(means):.0f}" if len(means) > 1 else ""
            each = ", ".join(f"{mean:.0f}" for mean in means)
            sys.stdout.write(f"{name}: mean return {fmean(means):.0f}{spread} ({each})\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
