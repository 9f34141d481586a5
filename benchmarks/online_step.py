"""Benchmark of SAC's updates, and of PPO's environment steps and updates, on one thread: ours and Stable-Baselines3's.

    python -m benchmarks.online_step --peer-python PEER/bin/python

SAC: 17 observations, 6 actions, layers 256 by 256, batches of 256, from memory to updated targets. PPO: eight
environments, rollouts of 256 steps, ten passes in minibatches of 256, layers 64 by 64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import Contestant, compare, timed
from benchmarks.peer import PeerProcess, stable_baselines
from benchmarks.row import Row, table
from imitate import algo_factory, load_config
from imitate.train.online.parts import make_collector, make_learner
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.setup import build_online
from imitate.train.online.steps import Step

OBS, ACTIONS, BATCH, ROLLOUT = 17, 6, 256, 2048
ENVS = ("CartPole-v1", "Pendulum-v1")
ROUNDS = 21
"""Number of rounds; there are many because figures vary by 20 % on a shared machine."""


def run(peer: PeerProcess) -> list[Row]:
    """Return the rows of the table."""
    torch.set_num_threads(1)
    rows = []
    cases: list[tuple[str, Contestant, int, float]] = [
        ("sac", timed(sac_updates()), 30, 1.0),
        *((f"ppo {env}", timed(ppo_rounds(env)), 1, float(ROLLOUT)) for env in ENVS),
    ]
    for case, ours, number, steps in cases:
        spent = compare({"ours": ours, "peer": peer.contestant(case)}, number, rounds=ROUNDS)
        per_s = {name: steps / cost.cpu_s for name, cost in spent.items()}
        unit = "updates/CPU s" if case == "sac" else "env steps/CPU s"
        rows.append(Row(case, per_s["ours"], unit, None, False, per_s["peer"], "same run"))
        wanted = 1.3 if case == "sac" else 1.5
        ratio = per_s["ours"] / per_s["peer"]
        rows.append(Row(f"{case}: times Stable-Baselines3", ratio, "x", wanted))
    return rows


def _tree(name: str, **sections: Any) -> dict[str, Any]:
    return {
        "algo_name": name,
        "experiment": {"epoch_every_n_steps": 1000},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
        **sections,
    }


def sac_updates(device: str = "cpu") -> Callable[[int], None]:
    """Run ``n`` updates of SAC, with their batches."""
    config = load_config(_tree("sac"))
    algo = algo_factory("sac", config, {"flat": (OBS,)}, ACTIONS, device)
    algo.set_train()
    memory = ReplayBuffer(
        {"flat": (OBS,)}, ACTIONS, 20_000, transitions=config.algo.data_needs(config).transitions
    )
    rng = np.random.default_rng(0)
    none = np.zeros(1, dtype=np.bool_)
    for _ in range(5_000):
        obs = rng.random((2, 1, OBS), dtype=np.float32)
        action = rng.random((1, ACTIONS), dtype=np.float32)
        memory.add(
            Step({"flat": obs[0]}, action, np.ones(1, np.float32), none, none, {"flat": obs[1]})
        )

    def iterate(n: int) -> None:
        for _ in range(n):
            algo.train_on_batch(algo.process_batch_for_training(memory.sample(BATCH)), 1)

    return iterate


def ppo_rounds(env: str, device: str = "cpu") -> Callable[[int], None]:
    """Run ``n`` rollouts of PPO, with the updates on each."""
    train = {
        "batch_size": 256,
        "max_grad_norm": 0.5,
        "online": {"env": env, "num_envs": 8, "collect_steps": ROLLOUT // 8},
    }
    config = load_config({**_tree("ppo", train=train), "algo": {"rollout_epochs": 10}})
    setup = build_online(config, torch.device(device))
    collector, learner = make_collector(setup), make_learner(setup)
    setup.algo.set_train()

    def iterate(n: int) -> None:
        for _ in range(n):
            learner.take(collector.collect(ROLLOUT // 8))
            for _ in learner.updates_due(1):
                pass

    return iterate


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.online_step", description=__doc__)
    parser.add_argument("--peer-python", type=Path, metavar="PATH", required=True)
    with stable_baselines(parser.parse_args().peer_python) as peer:
        print(table("online_step", run(peer), f"Stable-Baselines3 {peer.hello['version']}"))


if __name__ == "__main__":
    main()
