"""Benchmark of inserting and sampling 256 x 17 observations: our buffer, a Python list, Stable-Baselines3's buffer.

    python -m benchmarks.replay --peer-python PEER/bin/python

The peer is a separate Python environment with stable-baselines3; without one, only the list is compared. Samples are
tensors in all three.
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring import Contestant, compare, timed
from benchmarks.row import Row, table
from benchmarks.sb3 import StableBaselines
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.steps import Step

OBS, ACTIONS, ENVS, BATCH, CAPACITY = 17, 6, 256, 256, 100_000
COUNTS = {"ours": 200, "peer": 200, "list": 10}


def run(peer: StableBaselines | None) -> list[Row]:
    """Return the rows of the table."""
    torch.set_num_threads(1)
    ours, plain = _Ours(), _Plain()
    cases: dict[str, dict[str, Contestant]] = {
        "add": {"ours": timed(ours.add), "list": timed(plain.add)},
        "sample": {"ours": timed(ours.sample), "list": timed(plain.sample)},
    }
    rows = []
    for case, contestants in cases.items():
        if peer is not None:
            contestants["peer"] = peer.contestant(case)
        spent = compare(contestants, {name: COUNTS[name] for name in contestants})
        per_s = {name: 1.0 / cost.cpu_s for name, cost in spent.items()}
        rows.append(Row(f"{case}, times a list", per_s["ours"] / per_s["list"], "x", 20.0))
        if peer is not None:
            ratio = per_s["ours"] / per_s["peer"]
            rows.append(Row(f"{case}, times Stable-Baselines3", ratio, "x", 3.0))
        rows.append(Row(f"{case} of {BATCH}", per_s["ours"], "calls/CPU s", None))
    raw = CAPACITY * (OBS + ACTIONS + 3) * 4
    rows.append(Row("memory, times raw", ours.buffer.nbytes / raw, "x", 1.05, at_most=True))
    return rows


class _Ours:
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.buffer = ReplayBuffer({"s": (OBS,)}, ACTIONS, CAPACITY, num_envs=ENVS)
        none = np.zeros(ENVS, dtype=np.bool_)
        obs = rng.random((2, ENVS, OBS), dtype=np.float32)
        self.step = Step(
            {"s": obs[0]},
            rng.random((ENVS, ACTIONS), dtype=np.float32),
            rng.random(ENVS, dtype=np.float32),
            none,
            none,
            {"s": obs[1]},
        )
        self.add(400)

    def add(self, n: int) -> None:
        for _ in range(n):
            self.buffer.add(self.step)

    def sample(self, n: int) -> None:
        for _ in range(n):
            self.buffer.sample(BATCH)


class _Plain:
    """Replay buffer that is a deque of transitions, which are stacked when sampled."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.memory: deque[tuple[np.ndarray, ...]] = deque(maxlen=CAPACITY)
        self.obs = rng.random((2, ENVS, OBS), dtype=np.float32)
        self.actions = rng.random((ENVS, ACTIONS), dtype=np.float32)
        self.rewards = rng.random(ENVS, dtype=np.float32)
        self.add(400)

    def add(self, n: int) -> None:
        for _ in range(n):
            for e in range(ENVS):
                row = (
                    self.obs[0, e].copy(),
                    self.obs[1, e].copy(),
                    self.actions[e].copy(),
                    self.rewards[e : e + 1].copy(),
                    np.zeros(1, dtype=np.float32),
                )
                self.memory.append(row)

    def sample(self, n: int) -> None:
        for _ in range(n):
            chosen = [self.memory[i] for i in random.choices(range(len(self.memory)), k=BATCH)]
            for part in zip(*chosen, strict=True):
                torch.from_numpy(np.stack(part))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--peer-python", type=Path, metavar="PATH")
    args = parser.parse_args()
    if args.peer_python is None:
        print(table("replay", run(None)))
        return
    with StableBaselines(args.peer_python) as peer:
        print(table("replay", run(peer), f"Stable-Baselines3 {peer.version}"))


if __name__ == "__main__":
    main()
