"""Pendulum from mixed data: what algorithms make of demonstrations of which few are good.

    python -m benchmarks.offline_pendulum --data pendulum.hdf5                      all of them, three training seeds
    python -m benchmarks.offline_pendulum --data pendulum.hdf5 --algorithms bc iql --seeds 1 --steps 5000

Nothing is trained to make the data: an energy-based swing-up with a proportional-derivative controller near the top
acts (mean return -145), and with a probability that is drawn for each episode, 0.1 to 1, a random torque for 1 to 7
steps.
Printed is the mean return of the last weights over 50 unseen starts, per training seed.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from imitate import load_config
from imitate.data import DatasetWriter, Episode
from imitate.train.evaluation import evaluate
from imitate.train.trainer import train

ENV_META = {"type": 2, "env_name": "Pendulum-v1", "env_kwargs": {}}
STEPS = 200
"""Of an episode, which the clock ends."""
TORQUE = 2.0
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


def swing_up(observation: NDArray[np.float64]) -> float:
    """Torque of the expert: pump energy until the top is in reach, then hold it there."""
    cosine, sine, speed = map(float, observation)
    angle = math.atan2(sine, cosine)  # 0 is upright
    if abs(angle) < 0.5 and abs(speed) < 4.0:
        return -10.0 * angle - 2.0 * speed
    energy = speed**2 / 6.0 + 5.0 * cosine  # of a rod of 1 m and 1 kg, g = 10; 5 is what it takes
    return 2.0 * (5.2 - energy) * math.copysign(1.0, speed)


def write_data(path: Path, episodes: int, seed: int = 0) -> list[float]:
    """Episodes of which the noise is between none and all; the returns."""
    random = np.random.default_rng(seed)
    env = gymnasium.make("Pendulum-v1")
    returns = []
    with DatasetWriter(path, ENV_META, overwrite=True) as writer:
        for number in range(episodes):
            chance = random.uniform(0.1, 1.0)  # of a random torque, held for some steps
            observation, _ = env.reset(seed=seed + number)
            seen, actions, rewards = [observation], [], []
            held, left = 0.0, 0
            for _ in range(STEPS):
                if left == 0:
                    is_random = random.random() < chance
                    held = float(random.uniform(-TORQUE, TORQUE)) if is_random else math.nan
                    left = int(random.integers(1, 8))
                left -= 1
                torque = swing_up(observation) if math.isnan(held) else held
                action = np.clip([torque], -TORQUE, TORQUE).astype(np.float32)
                observation, reward, _, _, _ = env.step(action)
                seen.append(observation)
                actions.append(action)
                rewards.append(float(reward))
            flat = np.asarray(seen, dtype=np.float32)
            never = np.zeros(STEPS, dtype=bool)
            writer.append_episode(
                Episode(
                    obs={"flat": flat[:-1]},
                    next_obs={"flat": flat[1:]},
                    actions=np.asarray(actions),
                    rewards=np.asarray(rewards, dtype=np.float32),
                    terminals=never,
                    timeouts=np.arange(STEPS) == STEPS - 1,
                )
            )
            returns.append(sum(rewards))
    return returns


def returns_of(name: str, data: Path, seed: int, steps: int, folder: Path) -> list[float]:
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
    measured = evaluate(last, ENV_META, episodes=50, horizon=STEPS, seed=TEST_SEED)
    return list(measured.returns)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per algorithm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the file; written if absent")
    parser.add_argument("--episodes", type=int, default=100, help="of the data")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the training")
    parser.add_argument("--steps", type=int, default=10_000, help="updates")
    chosen = parser.parse_args(arguments)
    if not chosen.data.exists():
        returns = write_data(chosen.data, chosen.episodes)
        best = sorted(returns)[-max(1, len(returns) // 10) :]
        sys.stdout.write(f"data: mean return {fmean(returns):.0f}, best tenth {fmean(best):.0f}\n")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.algorithms:
            means = [
                fmean(returns_of(name, chosen.data, seed, chosen.steps, Path(folder)))
                for seed in chosen.seeds
            ]
            spread = f" +- {stdev(means):.0f}" if len(means) > 1 else ""
            each = ", ".join(f"{mean:.0f}" for mean in means)
            sys.stdout.write(f"{name}: mean return {fmean(means):.0f}{spread} ({each})\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
