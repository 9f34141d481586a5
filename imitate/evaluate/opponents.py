"""Opponents: agents that do not learn, with the policy of a checkpoint or random actions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.pettingzoo_env import Opponent
from imitate.envs.spaces import ActionSpace
from imitate.envs.trust import RANDOM
from imitate.errors import EnvError
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy


def opponent_of(policy: str, space: ActionSpace) -> Opponent:
    """Make an opponent for one agent.

    Args:
        policy: path of a checkpoint, or "random" for random actions.
        space: action space of the agent.

    Raises:
        EnvError: there is no such checkpoint, or its actions have another size.
    """
    if policy == RANDOM:
        return RandomOpponent(space)
    if not Path(policy).exists():
        raise EnvError(
            f"env_kwargs['opponents']: there is no checkpoint '{policy}': correct the path, or write '{RANDOM}'"
        )
    loaded, _ = policy_from_checkpoint(ckpt_path=policy, device="cpu")
    size = loaded.algo.preprocess.actions.sent_dim
    if size != space.dim:
        raise EnvError(
            f"env_kwargs['opponents']: the policy of {policy} gives actions of {size} numbers, its agents take "
            f"{space.dim}"
        )
    return PolicyOpponent(loaded)


class PolicyOpponent:
    """Opponent with a fixed policy and its own policy state."""

    def __init__(self, policy: RolloutPolicy) -> None:
        self._policy = policy

    def start_episode(self) -> None:
        """Reset the state of the policy."""
        self._policy.start_episode()

    def __call__(self, obs: Obs) -> Array:
        """Return the policy's action."""
        return self._policy(obs)


class RandomOpponent:
    """Opponent with uniform random actions within the limits; the sequence is the same in each episode."""

    def __init__(self, space: ActionSpace) -> None:
        self._low = np.where(np.isfinite(space.low), space.low, -1.0)
        self._high = np.where(np.isfinite(space.high), space.high, 1.0)
        self._choices = space.num_choices
        self.start_episode()

    def start_episode(self) -> None:
        """Restart the sequence of random numbers."""
        self._rng = np.random.default_rng(0)

    def __call__(self, obs: Obs) -> Array:
        """Return a random action; of discrete choices one that the mask allows."""
        action = self._rng.uniform(self._low, self._high)
        if self._choices and "action_mask" in obs:
            action[: self._choices] -= 2.0 * (np.asarray(obs["action_mask"]) < 0.5)
        return np.asarray(action)
