"""A test task of two agents as a parallel environment, named ``pettingzoo:imitate.envs.worlds.team_tasks``."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

TOP, SLIP, STEPS, PATIENCE = 8, 0.35, 80, 0.02
Obs = dict[str, NDArray[np.float32]]


class Carry(ParallelEnv[str, Obs, int]):  # type: ignore[misc]
    """Two agents lift the ends of a table to the eighth floor; it falls if one end is two floors above the other.

    Each agent waits (0) or lifts its end by a floor (1), which fails in 35 % of the tries. Its observations are the
    heights of its own end (``own``) and of the other end (``other``), as fractions of eight floors. An agent leaves
    with success when its end is up. Both agents get 1/16 for each floor, -0.02 for each step, and -1 if the table
    falls, which ends the episode. An agent that ignores the other end does not know when to wait.
    """

    metadata = {"name": "carry", "render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self._heights: dict[str, int] = {}
        self._rng = np.random.default_rng()
        height = spaces.Box(0.0, 1.0, (1,), np.float32)
        self._obs_space = spaces.Dict({"own": height, "other": height})
        self._action_space = spaces.Discrete(2)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of the heights of both ends."""
        return self._obs_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of the choices: wait or lift."""
        return self._action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Obs], dict[str, dict[str, Any]]]:
        """Begin on the ground; without a seed the random sequence continues."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._heights = dict.fromkeys(self.possible_agents, 0)
        self._step = 0
        return {agent: self._observe(agent) for agent in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Wait or lift, for all remaining agents at once."""
        present, before = list(self.agents), sum(self._heights.values())
        slips = dict(zip(self.possible_agents, self._rng.random(2) < SLIP, strict=True))
        for agent in present:
            self._heights[agent] += int(actions[agent] == 1 and not slips[agent])
        self._step += 1
        left, right = self._heights.values()
        fell, late = abs(left - right) > 1, self._step >= STEPS
        reward = -1.0 if fell else (left + right - before) / (2 * TOP) - PATIENCE
        up = {agent: not fell and self._heights[agent] == TOP for agent in present}
        ended = {agent: fell or up[agent] for agent in present}
        cut = {agent: late and not ended[agent] for agent in present}
        self.agents = [agent for agent in present if not (ended[agent] or cut[agent])]
        return (
            {agent: self._observe(agent) for agent in present},
            dict.fromkeys(present, reward),
            ended,
            cut,
            {agent: {"success": up[agent]} for agent in present},
        )

    def _observe(self, agent: str) -> Obs:
        (other,) = set(self.possible_agents) - {agent}
        return {
            "own": np.array([self._heights[agent] / TOP], dtype=np.float32),
            "other": np.array([self._heights[other] / TOP], dtype=np.float32),
        }


parallel_env = Carry
