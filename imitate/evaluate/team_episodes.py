"""Evaluation episodes of several agents in one simulator, all controlled by one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from imitate.config.observation import ACTION_MASK
from imitate.envs.env import Lanes
from imitate.errors import EnvError
from imitate.policy.rollout_policy import RolloutPolicy


@dataclass
class AgentPlay:
    """One agent's part of an episode.

    Attributes:
        success: true if it succeeded at any of its steps.
        at_end: true if it succeeded at its last step.
        present: true while it has not left the episode.
    """

    total: float = 0.0
    success: bool = False
    at_end: bool = False
    present: bool = True


@dataclass(frozen=True)
class TeamPlay:
    """An episode of several agents.

    Attributes:
        agents: the agents' plays by name.
        length: steps until the last agent left.
        over: true if all left, or all succeeded, before the horizon.
        last: observation of each agent at its end.
    """

    agents: dict[str, AgentPlay]
    length: int
    over: bool
    last: Sequence[Mapping[str, Any]]

    @property
    def success(self) -> bool:
        """True if every agent succeeded."""
        return all(agent.success for agent in self.agents.values())

    @property
    def at_end(self) -> bool:
        """True if every agent's last step was a success."""
        return all(agent.at_end for agent in self.agents.values())

    @property
    def total(self) -> float:
        """Sum of the rewards of all agents."""
        return sum(agent.total for agent in self.agents.values())

    def results(self) -> dict[str, dict[str, float | bool]]:
        """Return and success of each agent, for files."""
        return {
            name: {"return": agent.total, "success": agent.success}
            for name, agent in self.agents.items()
        }


def play_team(
    policy: RolloutPolicy,
    env: Lanes,
    first: Sequence[Mapping[str, Any]],
    *,
    horizon: int,
    terminate_on_success: bool,
    show: Callable[[int], None],
) -> TeamPlay:
    """Play an episode from the agents' ``first`` observations on; ``show`` is called with the steps so far.

    Raises:
        EnvError: the policy has goals, which multi-agent environments do not provide.
    """
    if policy.goal_keys:
        raise EnvError(
            f"the policy takes goals ({', '.join(policy.goal_keys)}), which multi-agent "
            "environments do not provide: train a policy without goals"
        )
    agents = {name: AgentPlay() for name in env.agents}
    seen, length, over = list(first), 0, False
    while length < horizon and not over:
        actions = policy(
            _batch(seen, [agent.present for agent in agents.values()]), batched_ob=True
        )
        show(length)
        outcomes = env.step(actions)
        length += 1
        for number, (agent, outcome) in enumerate(zip(agents.values(), outcomes, strict=True)):
            if outcome is None:
                continue
            seen[number], reward, terminated, truncated, info = outcome
            agent.total += float(reward)
            agent.at_end = bool(info.get("success", False))
            agent.success = agent.success or agent.at_end
            agent.present = not (terminated or truncated)
        policy.observe(np.array([0.0 if o is None else float(o[1]) for o in outcomes]))
        solved = terminate_on_success and all(agent.success for agent in agents.values())
        over = solved or not any(agent.present for agent in agents.values())
    return TeamPlay(agents, length, over, seen)


def _batch(
    seen: Sequence[Mapping[str, Any]], present: Sequence[bool]
) -> dict[str, np.ndarray[Any, Any]]:
    """Stack the observations of all agents; actions of agents that have left are ignored."""
    rows = {key: np.stack([np.asarray(obs[key]) for obs in seen]) for key in seen[0]}
    if ACTION_MASK in rows:
        rows[ACTION_MASK][~np.array(present)] = 1
    return rows
