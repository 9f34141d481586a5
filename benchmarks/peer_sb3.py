"""Benchmarks of Stable-Baselines3, run on request by an interpreter of its own, without imports of ``imitate``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces

# this file runs by itself, outside of the package
from measuring import timed
from peer_cases import answer
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure

OBS, ACTIONS, BATCH = 17, 6, 256
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


class SacUpdates:
    """Case of SAC: layers 256 by 256, batches of 256."""

    def __init__(self) -> None:
        env = gymnasium.make("HalfCheetahLike-v0")
        self.model = SAC("MlpPolicy", env, device=DEVICE, batch_size=BATCH, buffer_size=20_000)
        self.model.set_logger(configure(None, []))
        rng = np.random.default_rng(0)
        for _ in range(5_000):
            obs = rng.random((2, 1, OBS), dtype=np.float32)
            action = rng.random((1, ACTIONS), dtype=np.float32)
            self.model.replay_buffer.add(obs[0], obs[1], action, np.ones(1), np.zeros(1), [{}])

    def run(self, n: int) -> None:
        self.model.train(gradient_steps=n, batch_size=BATCH)


class RandomWorld(gymnasium.Env):
    """Environment with random observations."""

    observation_space = spaces.Box(-1, 1, (OBS,), np.float32)
    action_space = spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(OBS, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(OBS, np.float32), 0.0, False, False, {}


class PpoSteps:
    """Case of PPO: eight environments, rollouts of 256 steps, ten passes in minibatches of 256."""

    def __init__(self, env_id: str) -> None:
        self.model = PPO(
            "MlpPolicy",
            make_vec_env(env_id, 8, seed=0),
            n_steps=256,
            batch_size=256,
            n_epochs=10,
            device=DEVICE,
        )
        self.model.set_logger(configure(None, []))

    def run(self, n: int) -> None:
        self.model.learn(n * 2048, reset_num_timesteps=False)


def case_of(make: Callable[[], SacUpdates | PpoSteps]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function from a request to one that runs iterations and returns their cost."""

    def case(request: Mapping[str, Any]) -> Callable[[int], dict[str, float]]:
        run = timed(make().run, DEVICE)
        return lambda n: asdict(run(n))

    return case


def main() -> None:
    """Answer requests ``{"case", "n"}`` with seconds."""
    torch.set_num_threads(1)
    gymnasium.register("HalfCheetahLike-v0", RandomWorld, max_episode_steps=1000)
    cases = {
        "sac": case_of(SacUpdates),
        "ppo CartPole-v1": case_of(lambda: PpoSteps("CartPole-v1")),
        "ppo Pendulum-v1": case_of(lambda: PpoSteps("Pendulum-v1")),
    }
    answer({"version": stable_baselines3.__version__}, cases, sys.stdout)


if __name__ == "__main__":
    main()
