"""Episodes that the studies record by rules of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode


def played(
    env: gymnasium.Env[Any, Any], seed: int, act: Callable[[Any], NDArray[np.float32]]
) -> Episode:
    """Play an episode to its end; a vector of observations is ``flat``."""
    obs, _ = env.reset(seed=seed)
    steps, done = [], False
    while not done:
        action = act(obs)
        after, reward, terminal, timeout, _ = env.step(action)
        steps.append((obs, action, reward, terminal, timeout, after))
        obs, done = after, terminal or timeout
    seen, actions, rewards, terminals, timeouts, afters = zip(*steps, strict=True)
    return Episode(
        obs=_by_key(seen),
        actions=np.array(actions),
        rewards=np.array(rewards, np.float32),
        terminals=np.array(terminals),
        timeouts=np.array(timeouts),
        next_obs=_by_key(afters),
    )


def _by_key(seen: Sequence[Any]) -> dict[str, NDArray[Any]]:
    seen = [one if isinstance(one, dict) else {"flat": one} for one in seen]
    return {key: np.array([one[key] for one in seen]) for key in seen[0]}
