"""Online RL on a robot, with a person who helps: RLPD on the pendulum as a simulated robot.

    python -m benchmarks.studies.robot_learning                 time stands still between actions: a minute
    python -m benchmarks.studies.robot_learning --real-time     20 steps a second, updates between them
    python -m benchmarks.studies.robot_learning --alone         nobody helps

The person is a script: in the first episodes it takes over where the pendulum still hangs after two seconds, and swings
it up. Its steps are stored as they were executed, and are drawn with the demonstrations. The demonstrations are two
episodes of the same script. The result is evaluated in the plain environment.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from imitate import load_config
from imitate.data import DatasetWriter
from imitate.deploy.robot import Guidance, Observation, Teleoperator
from imitate.envs import make_env
from imitate.envs.trust import trust
from imitate.evaluation.environments import at_rate, named_env
from imitate.evaluation.evaluate import evaluate
from imitate.train.trainer import train

PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
HERE = "benchmarks.studies.robot_learning"
RATE_HZ, HORIZON, EPISODES = 20.0, 200, 50
SAFETY = {"late": 0, "watchdog_s": 10.0, "hold_s": 5.0}
"""A simulated robot on a busy machine may be late; a real one has the defaults."""


def swing_up(flat: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The torque (1,) for (cos, sin, speed): energy up to that of standing, and a spring near the top."""
    cos, sin, speed = map(float, flat)
    angle = np.arctan2(sin, cos)
    if abs(angle) < 0.5 and abs(speed) < 3.0:
        torque = -12.0 * angle - 3.0 * speed
    else:
        missing = 5.0 - (speed**2 / 6.0 + 5.0 * cos)
        torque = 2.0 * np.sign(missing * speed) if speed else 2.0
    return np.array([np.clip(torque, -2.0, 2.0)])


class Helper(Teleoperator):
    """A person who takes over where the pendulum hangs after some steps, in the first episodes.

    Args:
        episodes: in which it helps.
        watches: steps at the beginning of each in which it only looks on.
    """

    def __init__(self, episodes: int = 6, watches: int = 40) -> None:
        self._episodes, self._watches = episodes, watches
        self._episode = self._step = 0
        self._acts = False

    def start_episode(self) -> None:
        """Let go."""
        self._episode += 1
        self._step, self._acts = 0, False

    def guide(self, observation: Observation) -> Guidance:
        """See the class."""
        self._step += 1
        flat = observation.values["flat"]
        if self._step == self._watches and self._episode <= self._episodes:
            self._acts = float(flat[0]) < 0.9
        return Guidance(swing_up(flat) if self._acts else None)


def demonstrations(path: Path, number: int = 2) -> None:
    """Write episodes of :func:`swing_up`."""
    env = make_env(PENDULUM)
    with DatasetWriter(path, PENDULUM, control_freq=RATE_HZ, overwrite=True) as writer:
        for seed in range(number):
            obs, _ = env.reset(seed=10_000 + seed)
            writer.start_episode()
            for step in range(HORIZON):
                action = swing_up(obs["flat"])
                following, reward, _, _, _ = env.step(action)
                last = step == HORIZON - 1
                writer.append(obs=obs, action=action, reward=reward, terminal=False, timeout=last)
                obs = following
            writer.finish_episode(success=True)
    env.close()


def robot(real_time: bool, helped: bool) -> dict[str, Any]:
    """The pendulum as a robot."""
    meta = at_rate(named_env("robot:sim:Pendulum-v1"), RATE_HZ)
    kwargs: dict[str, Any] = {**meta["env_kwargs"], "safety": SAFETY}
    kwargs["options"] = {**kwargs["options"], "in_step": not real_time}
    if helped:
        kwargs["take_over"] = f"{HERE}:Helper"
    return {**meta, "env_kwargs": kwargs}


def settings(args: argparse.Namespace, demos: Path) -> dict[str, Any]:
    """The configuration: small networks, an update of the critics a step."""
    return {
        "algo_name": "rlpd",
        "experiment": {
            "name": "robot_learning",
            "epoch_every_n_steps": args.steps,
            "rollout": {"horizon": HORIZON},
            "save": {"on_best_rollout_success_rate": False},
        },
        "train": {
            "data": str(demos),
            "output_dir": str(args.out / "runs"),
            "num_epochs": 1,
            "batch_size": 128,
            "num_threads": 1,
            "seed": args.seed,
            "online": {
                "env": robot(args.real_time, not args.alone),
                "warmup_steps": 200,
                "update_ratio": 1.0,
                "horizon": HORIZON,
            },
        },
        "algo": {
            "discount": 0.97,
            "actor": {"layer_dims": [64, 64], "update_freq": 1},
            "critic": {"layer_dims": [64, 64], "ensemble": {"n": 2}},
            "optim_params": {
                name: {"learning_rate": {"initial": 0.001}}
                for name in ("actor", "critic", "temperature")
            },
        },
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Learn, count, evaluate."""
    args.out.mkdir(parents=True, exist_ok=True)
    demos = args.out / "demos.hdf5"
    demonstrations(demos)
    trust(HERE)
    began = time.perf_counter()
    result = train(load_config(settings(args, demos)), quiet=not args.verbose)
    took = time.perf_counter() - began
    memory = torch.load(result.run_dir / f"checkpoints/memory_{args.steps}.pt", weights_only=True)
    rows = memory["rows"]
    played = evaluate(result.checkpoint, PENDULUM, episodes=EPISODES, horizon=HORIZON, seed=500)
    returns = [episode.episode_return for episode in played.episodes]
    return {
        "real_time": args.real_time,
        "helped": not args.alone,
        "seed": args.seed,
        "steps": int(rows["live"].sum()),
        "interventions": int(rows["intervened"].sum()),
        "minutes": round(took / 60, 1),
        "return_mean": round(float(np.mean(returns)), 1),
        "return_median": round(float(np.median(returns)), 1),
        "episodes": EPISODES,
    }


def main() -> None:
    """Run once, and print the result as JSON."""
    words = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("--steps", type=int, default=4000, help="control steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real-time", action="store_true", help="20 control steps a second")
    parser.add_argument("--alone", action="store_true", help="nobody takes over")
    parser.add_argument("--out", type=Path, default=Path("runs/robot_learning"))
    parser.add_argument("--verbose", action="store_true")
    print(json.dumps(run(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
