"""A trained policy in the place of a scripted expert: its own episodes, successful or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imitate.envs import Env
from imitate.envs.env import Array, Obs
from imitate.envs.experts import Style
from imitate.evaluate.episodes import check_fit, goal_of
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy


class PolicyKind:
    """Kind of expert whose action is that of a checkpoint's policy, without noise.

    Args:
        agent: file of the checkpoint.
        env_name: name of the environment.
        horizon: steps after which an episode has failed.
    """

    motion_axes = 0
    instruction: str | None = None
    env_kwargs: Mapping[str, Any] = {}
    dense_kwargs: Mapping[str, Any] | None = None
    acts_as_person = False

    def __init__(self, agent: str, env_name: str, horizon: int) -> None:
        self.env_name, self.horizon = env_name, horizon
        self._policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=agent)

    def __call__(self, style: Style) -> ActingPolicy:
        """Return the policy at the beginning of an episode."""
        return ActingPolicy(self._policy)


class ActingPolicy:
    """A policy in one episode."""

    def __init__(self, policy: RolloutPolicy) -> None:
        self._policy = policy
        self._env: Env | None = None
        self._goal: Any = None

    def attach(self, env: Env) -> None:
        """Set the environment of the episode."""
        self._env = env

    def act(self, obs: Obs) -> Array:
        """Return the action (A,)."""
        if self._env is not None:
            check_fit(self._policy, self._env, obs)
            self._goal = goal_of(self._policy, self._env)
            self._policy.start_episode()
            self._env = None
        return self._policy(obs, self._goal)
