"""Episodes of Pendulum and InvertedPendulum by controllers of known quality. Nothing is trained.

Pendulum-v1: an energy-based swing-up with a proportional-derivative controller near the top (mean return -145), and
with a probability that is drawn for each episode, 0.1 to 1, a random torque for 1 to 7 steps.

InvertedPendulum-v5: a linear-quadratic regulator whose gain is multiplied by a number that is drawn for each episode:
1 with probability 0.1, which balances for good, else -1 to 0.1, which falls after 6 to 80 steps (from 0.4 on it would
hold); and random force on top. The recording stops after 30 steps, so a return does not tell how long it would have
gone on: what is worth most is cut by the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from imitate.data import DatasetWriter, Episode

Observation = NDArray[np.float64]
Controller = Callable[[Observation], float]
TORQUE, FORCE = 2.0, 3.0
REGULATOR = np.array([0.722, 6.830, 0.923, 1.084])
"""Gains for position, angle and their speeds: discrete-time LQR of the model linearized at rest by central differences,
costs diag(1, 10, 0.1, 0.1) of the state and 1 of the action."""


def swing_up(observation: Observation) -> float:
    """Torque of Pendulum's expert: pump energy until the top is in reach, then hold it there."""
    cosine, sine, speed = map(float, observation)
    angle = math.atan2(sine, cosine)  # 0 is upright
    if abs(angle) < 0.5 and abs(speed) < 4.0:
        return -10.0 * angle - 2.0 * speed
    energy = speed**2 / 6.0 + 5.0 * cosine  # of a rod of 1 m and 1 kg, g = 10; 5 is what it takes
    return 2.0 * (5.2 - energy) * math.copysign(1.0, speed)


def balance(observation: Observation) -> float:
    """Force of InvertedPendulum's expert."""
    return float(REGULATOR @ observation)


def _disturbed_swing_up(random: np.random.Generator) -> tuple[float, Controller]:
    """A probability of random torques, held for some steps, and the controller."""
    chance = float(random.uniform(0.1, 1.0))
    held, left = 0.0, 0

    def act(observation: Observation) -> float:
        nonlocal held, left
        if left == 0:
            is_random = random.random() < chance
            held = float(random.uniform(-TORQUE, TORQUE)) if is_random else math.nan
            left = int(random.integers(1, 8))
        left -= 1
        return swing_up(observation) if math.isnan(held) else held

    return chance, act


def _scaled_balance(random: np.random.Generator) -> tuple[float, Controller]:
    """A factor on the gains, and the controller."""
    gain = 1.0 if random.random() < 0.1 else float(random.uniform(-1.0, 0.1))
    return gain, lambda observation: gain * balance(observation) + float(random.normal(0.0, 0.3))


@dataclass(frozen=True)
class Task:
    """An environment and who acts in it.

    Attributes:
        env_id: gymnasium's name.
        steps: after which the clock ends an episode of the data.
        play_steps: the same of the evaluation.
        limit: largest action.
        episodes: of the data.
        draw: draws the number that says how good an episode is, and its controller.
        quality: name of this number, an attribute of each demo.
    """

    env_id: str
    steps: int
    play_steps: int
    limit: float
    episodes: int
    draw: Callable[[np.random.Generator], tuple[float, Controller]]
    quality: str

    @property
    def env_meta(self) -> dict[str, Any]:
        """Description for ``make_env``."""
        return {"type": 2, "env_name": self.env_id, "env_kwargs": {}}


TASKS = {
    "pendulum": Task("Pendulum-v1", 200, 200, TORQUE, 100, _disturbed_swing_up, "random_share"),
    "inverted_pendulum": Task("InvertedPendulum-v5", 30, 1000, FORCE, 400, _scaled_balance, "gain"),
}


def write_data(path: Path, task: Task, episodes: int | None = None, seed: int = 0) -> list[float]:
    """Episodes whose quality is drawn; their returns."""
    random = np.random.default_rng(seed)
    env = gymnasium.make(task.env_id)
    returns = []
    with DatasetWriter(path, task.env_meta, overwrite=True) as writer:
        for number in range(episodes or task.episodes):
            quality, controller = task.draw(random)
            observation, _ = env.reset(seed=seed + number)
            seen, actions, rewards, fell = [observation], [], [], False
            while len(actions) < task.steps and not fell:
                wanted = controller(observation)
                action = np.clip([wanted], -task.limit, task.limit).astype(np.float32)
                observation, reward, fell, _, _ = env.step(action)
                seen.append(observation)
                actions.append(action)
                rewards.append(float(reward))
            flat = np.asarray(seen, dtype=np.float32)
            last = np.arange(len(actions)) == len(actions) - 1
            writer.append_episode(
                Episode(
                    obs={"flat": flat[:-1]},
                    next_obs={"flat": flat[1:]},
                    actions=np.asarray(actions),
                    rewards=np.asarray(rewards, dtype=np.float32),
                    terminals=last & fell,
                    timeouts=last & (not fell),
                    attrs={task.quality: quality},
                )
            )
            returns.append(sum(rewards))
    return returns
