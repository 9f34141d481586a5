"""Monte Carlo tree search from B states at once, in arrays, with a learned or a true model.

Each simulation follows the edges (s, a) with the greatest score from the root to an edge without a child, lets the
model expand that edge, and adds the return of the path to the means Q of its edges. With the prior p of the policy,
n(s, a) visits of an edge and N = 1 + sum_a n(s, a) of a state:

    score   Q'(s, a) + p(a) (c_1 + log((N + 1 + c_2) / c_2)) sqrt(N) / (1 + n(s, a))          -> search
    Q'      Q, or v(s) before the first visit, scaled to [0, 1] by the range of Q in the tree -> search
    backup  G_k = r_k + g_k G_{k+1}, from G = v(leaf); Q <- Q + (G - Q) / n                   -> search
    policy  l p(a) / (b - Q'(s, a)), l = (c_1 + log(...)) sqrt(N) / (A + N), b so that it sums to 1
                                                                                              -> regularized_policy

Schrittwieser et al., "Mastering Atari, Go, Chess and Shogi by Planning with a Learned Model", Nature 2020
(arXiv:1911.08265); policy: Grill et al., "Monte-Carlo Tree Search as Regularized Policy Optimization", ICML 2020
(arXiv:2007.12509). The discount g of a step is 0 if the step ends the episode. It is negative in a game of two players
who move in turn, where values are those of the player to move. Departure: the value of an edge without a visit is the
value of its state, not 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

NEWTON_STEPS = 30
"""Largest number of Newton steps, which converge quadratically."""


class Leaf(NamedTuple):
    """Predictions of a model for B states that were just reached.

    Attributes:
        values: (B,) predicted returns from the states on; ignored where the episode ended.
        priors: (B, A) probabilities of the choices; 0 for choices that are not allowed.
        rewards: (B,) rewards of the steps that led to the states.
        discounts: (B,) factors of the returns that follow; 0 where the step ended the episode.
    """

    values: Floats
    priors: Floats
    rewards: Floats
    discounts: Floats


Expand = Callable[[int, Numbers, Numbers], Leaf]
"""Model of a search: a function of the number of the new nodes and, for each of B trees, of the parent node's number
and the choice. It returns the leaves. Nodes are numbered from 1 in the order of the calls; 0 is the root. The model
stores the states of all nodes.
"""


@dataclass(frozen=True)
class Rule:
    """Constants of the search's score.

    Attributes:
        c_1: weight of the prior.
        c_2: number of visits above which the weight of the prior grows.
    """

    c_1: float = 1.25
    c_2: float = 19652.0

    def weight(self, visits: Floats) -> Floats:
        """Return ``c_1 + log((N + 1 + c_2) / c_2)`` of states with N visits."""
        grown: Floats = np.log1p((visits + 1.0) / self.c_2) + self.c_1
        return grown


class TreeResult(NamedTuple):
    """Result of a search.

    Attributes:
        visits: (B, A) visits of the choices at the root.
        q: (B, A) mean returns of the choices; for choices without a visit, the model's value of the root.
        scaled: (B, A) ``q``, scaled to [0, 1] by the range of all Q of the tree.
        values: (B,) mean returns of all simulations and the model's value of the root.
    """

    visits: Floats
    q: Floats
    scaled: Floats
    values: Floats


def search(root: Leaf, expand: Expand, simulations: int, rule: Rule = Rule()) -> TreeResult:  # noqa: B008
    """Search in B trees at once, one for each root.

    Args:
        root: values and priors of the roots, with noise if the search explores.
        expand: the model.
        simulations: number of simulations, at least 1.
        rule: constants of the score; see :class:`Rule`.
    """
    size, choices = root.priors.shape
    nodes = simulations + 1
    # index of an extra edge outside of all trees, with which shorter paths are padded
    none = size * nodes * choices
    first = np.arange(size) * nodes
    visits, q, rewards = (np.zeros(none + 1, np.float32) for _ in range(3))
    discounts, children = np.ones(none + 1, np.float32), np.full(none + 1, -1)
    by_node = [x[:none].reshape(-1, choices) for x in (visits, q)]
    priors = np.empty((size * nodes, choices), np.float32)
    counts = np.ones(size * nodes + 1, np.int64)
    steps = np.arange(nodes + 1, dtype=np.float32)
    weights = (rule.weight(steps) * np.sqrt(steps))[:, None]
    by_node[1][first], priors[first] = root.values[:, None], root.priors
    low, high = root.values.copy(), root.values.copy()

    for number in range(1, nodes):
        spread = high - low
        spread[spread <= 0] = 1.0
        scale = (1.0 / spread)[:, None]
        rows, path = first, []
        done: NDArray[np.bool_] | None = None
        while True:
            prior = priors[rows]
            score = prior * weights[counts[rows]]
            score /= by_node[0][rows] + 1.0
            # the smallest Q is not subtracted, because that would shift the scores of all choices alike
            score += by_node[1][rows] * scale
            score[prior <= 0] = -np.inf
            edges = rows * choices + score.argmax(1)
            if done is None:
                last = edges
            else:
                last = np.where(done, last, edges)
                edges = np.where(done, none, edges)
            path.append(edges)
            child = children[edges]
            done = child < 0
            if done.all():
                break
            rows = np.where(done, rows, first + child)
        leaf = expand(number, last // choices - first, last % choices)
        rewards[last], discounts[last] = leaf.rewards, leaf.discounts
        ended = leaf.discounts == 0
        children[last] = np.where(ended, -1, number)
        priors[first + number] = leaf.priors
        values = np.where(ended, np.float32(0), leaf.values)
        by_node[1][first + number] = values[:, None]

        returns = values
        behind = []
        for edges in reversed(path):
            returns = rewards[edges] + discounts[edges] * returns
            behind.append(returns)
        edges, gained = np.array(path), np.array(behind[::-1])
        seen, old = visits[edges] + 1.0, q[edges]
        new = old + (gained - old) / seen
        visits[edges], q[edges] = seen, new
        counts[edges // choices] += 1
        visits[none] = 0.0
        low = np.minimum(np.minimum(low, new.min(0)), values)
        high = np.maximum(np.maximum(high, new.max(0)), values)

    seen, means = (x[first] for x in by_node)
    spread = np.where(high > low, high - low, 1.0)[:, None]
    total = (seen * means).sum(1) + root.values
    return TreeResult(seen, means, (means - low[:, None]) / spread, total / (seen.sum(1) + 1.0))


def regularized_policy(found: TreeResult, priors: Floats, rule: Rule = Rule()) -> Floats:  # noqa: B008
    """Return the policy (B, A) that maximizes ``sum_a y(a) Q'(a) - l KL(p, y)`` with the priors p (B, A)."""
    count = found.visits.sum(1, keepdims=True) + 1.0
    weight = rule.weight(count) * np.sqrt(count) / (count + priors.shape[1])
    share = np.where(priors > 0, weight * priors, 0.0).astype(np.float64)
    q = np.where(priors > 0, found.scaled, -np.inf).astype(np.float64)
    # As a function of the bound, the sum is falling and convex, and at least 1 here, so Newton's steps approach the
    # root from one side.
    bound = (q + share).max(1, keepdims=True)
    for _ in range(NEWTON_STEPS):
        parts = share / (bound - q)
        excess = parts.sum(1, keepdims=True) - 1.0
        if (excess < 1e-9).all():
            break
        bound += excess / (parts / (bound - q)).sum(1, keepdims=True)
    chances = share / (bound - q)
    result: Floats = (chances / chances.sum(1, keepdims=True)).astype(np.float32)
    return result


Obs = dict[str, NDArray[Any]]


class Stateful(Protocol):
    """Methods of ``imitate.envs.env.Env`` that a search calls."""

    def get_state(self) -> dict[str, Any]:
        """Return the simulator's state."""

    def reset_to(self, state: dict[str, Any]) -> Obs:
        """Set the simulator to a state from :meth:`get_state`."""

    def step(self, action: NDArray[Any]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action (A,): observation, reward, terminated, truncated, info."""


class EnvTree:
    """Environment as the model of :func:`search`, for one tree and a given list of actions.

    The nodes are states of the simulator, from ``get_state``; a new node is reached by ``reset_to`` and one step. Steps
    of a search are not steps of the episode, but ``reset_to`` begins a new episode, so the environment's own time
    limit begins anew.

    Args:
        env: the environment, in the state from which the search starts.
        actions: (C, action_dim) the choices, in the environment's units.
        discount: factor per step.
        value: function that estimates the return from an observation on; by default 0.
    """

    def __init__(
        self,
        env: Stateful,
        actions: NDArray[Any],
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
            EnvError: the environment cannot save and restore states.
        """
        self.states = [self.env.get_state()]
        root = self._leaf(self.env.reset_to(self.states[0]), 0.0, self.discount)
        try:
            return search(root, self, simulations, rule)
        finally:
            self.env.reset_to(self.states[0])

    def __call__(self, number: int, parents: Numbers, choices: Numbers) -> Leaf:
        """Expand one edge: step the environment from the parent's state, and return the leaf."""
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
