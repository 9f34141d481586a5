"""Check of an environment with several agents."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import numpy as np

from imitate.checks.contracts import CheckFinding, ContractError, Trials
from imitate.envs.env import Lanes, Outcome, lanes_of

TRIED_STEPS = 20


def check_team(env: Any, other: Any, steps: int) -> list[CheckFinding]:
    """Check an environment with several agents.

    Args:
        env: see :class:`imitate.envs.env.Lanes`, with the attributes of an ``Env``.
        other: another copy of it.
        steps: number of random steps within which all agents should leave.
    """
    trials = Trials()
    check = _Team(env, lanes_of(env), lanes_of(other), steps)
    trials.add("agents", check.agents)
    trials.add("pettingzoo's checker", check.pettingzoo)
    trials.add("observations", check.observations)
    trials.add("seeding", check.seeding, after=("observations",))
    trials.add("episode end", check.episode_end, after=("observations",))
    return trials.findings


class _Team:
    def __init__(self, env: Any, lanes: Lanes, other: Lanes, steps: int) -> None:
        self._env, self._lanes, self._other, self._steps = env, lanes, other, steps

    def agents(self) -> str:
        """Return the agents and the limits of their actions."""
        low, high = np.asarray(self._env.action_low), np.asarray(self._env.action_high)
        if not (low < high).all():
            raise ContractError("action_low is not below action_high everywhere")
        return f"{', '.join(self._lanes.agents)}; actions of {len(low)} numbers"

    def pettingzoo(self) -> str:
        """Run PettingZoo's own test of the parallel API."""
        from pettingzoo.test import parallel_api_test

        with (
            warnings.catch_warnings(record=True) as caught,
            redirect_stdout(sys.stderr),
        ):  # the test prints
            warnings.simplefilter("always")
            try:
                parallel_api_test(self._env.parallel, num_cycles=100)
            except AssertionError as error:
                raise ContractError(
                    str(error) or "an assertion of PettingZoo's test failed"
                ) from error
        return (
            "; ".join({str(warning.message).splitlines()[0] for warning in caught})
            or "no complaint"
        )

    def observations(self) -> str:
        """Check that shapes stay the same and numbers are finite."""
        first = self._lanes.reset(seed=0)[0]
        shapes = {key: np.shape(value) for key, value in first[0].items()}
        for outcome in self._random(self._lanes, TRIED_STEPS):
            obs, reward = outcome[:2]
            if {key: np.shape(value) for key, value in obs.items()} != shapes:
                raise ContractError(f"keys or shapes change: {shapes} at first")
            bad = [key for key, value in obs.items() if not np.isfinite(np.asarray(value)).all()]
            if bad or not np.isfinite(reward):
                raise ContractError(f"{bad or 'the reward'} contains NaN or inf")
        return ", ".join(f"{key} {shape}" for key, shape in shapes.items())

    def seeding(self) -> str:
        """Check that the same seed gives the same episode in two copies, and twice in one copy."""
        if not _same(self._trace(self._lanes), self._trace(self._other)):
            raise ContractError("the same seed and actions gave two different episodes")
        if not _same(self._trace(self._lanes), self._trace(self._lanes)):
            raise ContractError("an episode depends on the one before it: reset everything")
        return "a seed gives one episode"

    def episode_end(self) -> str:
        """Check that agents leave and do not return."""
        self._lanes.reset(seed=1)
        rng, away = np.random.default_rng(0), np.zeros(len(self._lanes.agents), dtype=np.bool_)
        for number in range(1, self._steps + 1):
            outcomes = self._lanes.step(self._actions(rng))
            for n, outcome in enumerate(outcomes):
                if away[n] != (outcome is None):
                    raise ContractError(
                        f"after {number} steps agent '{self._lanes.agents[n]}' "
                        + ("acts after its end" if away[n] else "is gone without an end")
                    )
                away[n] |= outcome is not None and (outcome[2] or outcome[3])
            if away.all():
                return f"all agents left within {number} random steps"
        return f"not within {self._steps} random steps: train.online.horizon cuts episodes"

    def _trace(self, lanes: Lanes) -> list[Mapping[str, Any]]:
        first = lanes.reset(seed=7)[0]
        return [*first, *(outcome[0] for outcome in self._random(lanes, TRIED_STEPS))]

    def _random(self, lanes: Lanes, number: int) -> list[Outcome]:
        """Return the outcomes of random steps until the episode of all agents ends."""
        rng, found = np.random.default_rng(0), []
        for _ in range(number):
            outcomes = [o for o in lanes.step(self._actions(rng)) if o is not None]
            found += outcomes
            if not outcomes or all(o[2] or o[3] for o in outcomes):
                break
        return found

    def _actions(self, rng: np.random.Generator) -> Any:
        low, high = self._env.action_low, self._env.action_high
        low, high = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
        return rng.uniform(low, high, (len(self._lanes.agents), len(low)))


def _same(first: list[Mapping[str, Any]], second: list[Mapping[str, Any]]) -> bool:
    return len(first) == len(second) and all(
        np.allclose(a[key], b[key], atol=1e-6)
        for a, b in zip(first, second, strict=True)
        for key in a
    )
