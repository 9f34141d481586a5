"""Lanes of a simulator: each agent has its own observation, reward and end, and is one lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy.typing as npt

from imitate.envs.env import Env

Array = npt.NDArray[Any]
Outcome = tuple[Mapping[str, Any], float, bool, bool, Mapping[str, Any]]
"""Observation, reward, terminated, truncated and info of one agent after a step."""


class Lanes(Protocol):
    """One simulator with K agents.

    Attributes:
        agents: names of the agents, in the order of their lanes; the same in each episode.
    """

    agents: tuple[str, ...]

    def reset(
        self, *, seed: int | None = None
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
        """Start an episode with all agents; return their observations, and info."""

    def step(self, actions: Array) -> list[Outcome | None]:
        """Apply one action of each agent, (K, A); return None for agents that had left before this step.

        The actions of agents that have left are ignored. An agent's last outcome has an end.
        """

    def close(self) -> None:
        """Free the simulator."""


class OneAgent:
    """Lanes of an environment with one agent."""

    agents: tuple[str, ...] = ("",)

    def __init__(self, env: Env) -> None:
        self._env = env

    def reset(
        self, *, seed: int | None = None
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
        """Start an episode."""
        obs, info = self._env.reset(seed=seed)
        return [obs], info

    def step(self, actions: Array) -> list[Outcome | None]:
        """Apply one action (1, A)."""
        return [self._env.step(actions[0])]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def lanes_of(env: Any) -> Lanes:
    """Return the lanes of an environment: itself if it has ``agents``, otherwise those of its single agent."""
    return cast(Lanes, env) if has_team(env) else OneAgent(env)


def has_team(env: Any) -> bool:
    """Return true for an environment with several agents, whose observations and actions are those of all."""
    return getattr(env, "agents", None) is not None


def num_agents(env: Any) -> int:
    """Return the number K of lanes of an environment."""
    return len(lanes_of(env).agents)
