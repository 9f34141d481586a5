"""The true model of a tree search: an environment whose states can be saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from imitate.envs.env import Array, Env, Obs
from imitate.functional.search import Leaf, Numbers, Rule, TreeResult, search


class EnvTree:
    """The environment as :func:`~imitate.functional.search.search` calls it, for one tree and a few actions.

    The nodes are states of the simulator, from ``get_state``; a new one is reached by ``reset_to`` and one step. Steps
    of a search are not steps of the episode, but ``reset_to`` begins a new episode, so the environment's own time
    limit begins anew.

    Args:
        env: the environment, in the state from which the search starts.
        actions: (C, action_dim) the choices, in the environment's units.
        discount: factor per step.
        value: estimate of the return from an observation on; by default 0.
    """

    def __init__(
        self,
        env: Env,
        actions: Array,
        discount: float = 0.99,
        value: Callable[[Obs], float] = lambda obs: 0.0,
    ) -> None:
        self.env, self.actions, self.discount, self.value = env, actions, discount, value
        self.states: list[dict[str, Any]] = []

    def search(self, simulations: int, rule: Rule = Rule()) -> TreeResult:  # noqa: B008
        """Search from the environment's present state, and restore that state.

        Args:
            simulations: number of simulations, each of which is one step of the environment.
            rule: constants of the search.

        Raises:
            EnvError: the environment's states cannot be saved.
        """
        self.states = [self.env.get_state()]
        root = self._leaf(self.env.reset_to(self.states[0]), 0.0, self.discount)
        try:
            return search(root, self, simulations, rule)
        finally:
            self.env.reset_to(self.states[0])

    def __call__(self, number: int, parents: Numbers, choices: Numbers) -> Leaf:
        """Expand an edge of the tree."""
        self.env.reset_to(self.states[parents[0]])
        obs, reward, terminal, _, _ = self.env.step(self.actions[choices[0]])
        self.states.append(self.env.get_state())
        return self._leaf(obs, reward, 0.0 if terminal else self.discount)

    def _leaf(self, obs: Obs, reward: float, discount: float) -> Leaf:
        priors = np.full((1, len(self.actions)), 1.0 / len(self.actions), np.float32)
        value, rewards, discounts = (
            np.array([x], np.float32) for x in (self.value(obs), reward, discount)
        )
        return Leaf(value, priors, rewards, discounts)
