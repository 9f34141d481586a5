"""Several copies of an environment, stepped one after another; those that fail are replaced.

Each agent of a copy is a lane; most environments have one. An agent that leaves before the others has no steps until
all begin the next episode: its lane is marked ``lost`` until then.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.envs.env import (
    Env,
    Outcome,
    lanes_of,
    named_reward,
    one_reward,
    stage_setter,
    success_in,
)
from imitate.errors import EnvError, RewardError, RobotError, nearest
from imitate.system.text import ACTION_MASK, INFO
from imitate.system.user_code import error_words
from imitate.train.online.steps import Array, EpisodeRecord, Obs, Step

MEAN = "@step"
"""End of keys of ``info`` whose mean over the steps is logged in place of the sum."""
GREATEST = "@max"
"""End of keys of ``info`` whose greatest value is logged in place of the sum."""
_NUMBERS = (bool, int, float, np.bool_, np.number)
MAX_FAILURES = 10
"""Number of failures without a finished episode between them that ends the training."""


class EnvGroup:
    """N lanes of environments and their running episodes.

    Episode k of a copy whose first lane is n begins with a seed that depends on ``seed``, n and k alone.

    Args:
        make: makes one environment with K agents.
        lanes: (N,) lane numbers among all lanes of a training; K consecutive ones are the agents of one copy.
        seed: seed of the training.
        horizon: steps after which an episode ends by timeout.
        discount: discount of the episodes' discounted returns.
        end_at_success: true if success of all agents ends an episode as a terminal.
        signals: sources of the named rewards that steps have: "reward", or "info:KEY".

    Attributes:
        obs: (N, ...) current observations by key.
        begun: (N,) number of episodes begun in each lane.
        lengths: (N,) steps so far of the running episodes.
        finished: the episodes that ended since the list was last emptied.
        messages: descriptions of failures.
    """

    def __init__(
        self,
        make: Callable[[], Env],
        lanes: NDArray[np.int64],
        *,
        seed: int,
        horizon: int,
        discount: float = 1.0,
        end_at_success: bool = False,
        signals: tuple[str, ...] = (),
    ) -> None:
        self._signals = signals
        self.lanes, self.obs = lanes, Obs()
        self.finished: list[EpisodeRecord] = []
        self.messages: list[str] = []
        self.begun = np.zeros(len(lanes), dtype=np.int64)
        self._make, self._seed, self._horizon = make, seed, horizon
        self._discount, self._end_at_success = discount, end_at_success
        first = make()
        self._agents = lanes_of(first).agents
        self._team = len(self._agents)
        if len(lanes) % self._team:
            raise EnvError(
                f"{len(lanes)} lanes cannot be divided among copies of {self._team} agents: "
                "give a multiple"
            )
        self._envs = [first, *(make() for _ in range(len(lanes) // self._team - 1))]
        self._copies = [lanes_of(env) for env in self._envs]
        self._away = np.zeros(len(lanes), dtype=np.bool_)
        self._waiting: list[dict[int, EpisodeRecord]] = [{} for _ in self._envs]
        self._failures = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.lengths = np.zeros(len(lanes), dtype=np.int64)
        self._return = np.zeros(len(lanes))
        self._discounted = np.zeros(len(lanes))
        self._weight = np.zeros(len(lanes))
        self._weighted = np.zeros(len(lanes))
        self._success = np.zeros(len(lanes), dtype=np.bool_)
        self._knows_success = np.zeros(len(lanes), dtype=np.bool_)
        self._totals: list[dict[str, float]] = [{} for _ in lanes]

    @property
    def envs(self) -> list[Env]:
        """The environments."""
        return self._envs

    def __len__(self) -> int:
        return len(self.lanes)

    def reset(self) -> Obs:
        """Begin an episode in each environment; return :attr:`obs`."""
        self.obs = self._stacked([obs for n in range(len(self._envs)) for obs in self._begin(n)])
        return self.obs

    def step(self, actions: Array) -> Step:
        """Step all environments; where an episode ends, :attr:`obs` then has the first observation of the next one."""
        before, count = self.obs, len(self)
        rewards = np.zeros(count, dtype=np.float32)
        terminals, timeouts, lost = np.zeros((3, count), dtype=np.bool_)
        seen: list[Mapping[str, Any]] = []
        infos: list[Mapping[str, Any]] = []
        outcomes, broken = self._outcomes(actions)
        for n, outcome in enumerate(outcomes):
            if outcome is None:
                outcome = {key: x[n] for key, x in before.items()}, 0.0, False, False, {}
            obs, rewards[n], terminals[n], timeouts[n], info = outcome
            seen.append(obs)
            infos.append(info)
        next_obs = self._stacked(seen)
        for n, key in self._not_finite(next_obs):
            self._say(n // self._team, ValueError(f"observation '{key}' holds NaN or inf"))
            broken.add(n // self._team)
        for number in broken:
            rows = self._rows(number)
            lost[rows], rewards[rows], terminals[rows], timeouts[rows] = True, 0.0, False, False
            infos[rows] = [{}] * self._team
            for name, value in next_obs.items():
                value[rows] = before[name][rows]
        lost |= self._away
        self._count(rewards, infos)
        if self._end_at_success:
            solved = np.repeat(self._success.reshape(-1, self._team).all(1), self._team)
            terminals |= solved & ~lost
        timeouts = (timeouts | (self.lengths >= self._horizon)) & ~terminals & ~lost
        step = Step(
            before,
            _executed(actions, infos),
            rewards,
            terminals,
            timeouts,
            next_obs,
            lost if lost.any() else None,
            intervened=_intervened(infos),
            signals=self._named_rewards(rewards, infos, lost) if self._signals else None,
        )
        self.obs = self._next_obs(step, next_obs, infos, broken)
        return step

    def _named_rewards(
        self, rewards: Array, infos: list[Mapping[str, Any]], lost: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Return (N, S) named rewards, 0 where a step is lost.

        Raises:
            RewardError: an environment does not report one of them, or reports NaN or infinity.
        """
        signals = np.zeros((len(infos), len(self._signals)), np.float32)
        for column, source in enumerate(self._signals):
            for n in np.flatnonzero(~lost):
                value = named_reward(source, rewards[n], infos[n])
                if value is None:
                    key = source.removeprefix(INFO)
                    known = sorted(k for k, x in infos[n].items() if isinstance(x, _NUMBERS))
                    raise RewardError(
                        f"algo.rewards: the environment's info has no '{key}' in a step; {nearest(key, known)}"
                    )
                signals[n, column] = value
        if not np.isfinite(signals).all():
            raise RewardError(
                f"algo.rewards: one of {', '.join(self._signals)} is NaN or inf in a step: correct the environment, "
                "or leave this reward out"
            )
        return signals

    def _outcomes(self, actions: Array) -> tuple[list[Outcome | None], set[int]]:
        """Step all copies; return each lane's outcome (None if its agent has left) and the failed copies."""
        outcomes: list[Outcome | None] = []
        broken: set[int] = set()
        for number, copy in enumerate(self._copies):
            try:
                outcomes_of_copy = copy.step(actions[self._rows(number)])
                for outcome in outcomes_of_copy:
                    if outcome is not None:
                        self._check(outcome[0], outcome[1])
            # A person must check a robot before it moves again, and a new copy would give the same wrong rewards.
            except (RobotError, RewardError):
                raise
            except Exception as error:  # a simulator may raise any exception
                self._say(number, error)
                broken.add(number)
                outcomes_of_copy = [None] * self._team
            outcomes += outcomes_of_copy
        return outcomes, broken

    def close(self) -> None:
        """Free the simulators."""
        for env in self._envs:
            env.close()

    # ---- episodes --------------------------------------------------------------------------------

    def _rows(self, number: int) -> slice:
        """Return the slice of a copy's lanes in the (N, ...) arrays."""
        return slice(number * self._team, (number + 1) * self._team)

    def _next_obs(
        self, step: Step, next_obs: Obs, infos: list[Mapping[str, Any]], broken: set[int]
    ) -> Obs:
        """Return the next observations; where all agents of a copy have ended, the first ones of the next episode."""
        ended = np.flatnonzero(step.terminals | step.timeouts)
        if not len(ended) and not broken:
            return next_obs
        obs = {key: value.copy() for key, value in next_obs.items()}
        for n in ended:
            self._away[n] = True
            self._waiting[n // self._team][n] = self._record(n, infos[n])
            # No action depends on these values, but a mask without any choice would be an error.
            for key, value in obs.items():
                value[n] = key == ACTION_MASK
        over = self._away.reshape(-1, self._team).all(1)
        for number in sorted({*broken, *np.flatnonzero(over).tolist()}):
            if number in broken:
                self._replace(number)
            else:
                self._failures = 0
                self.finished += self._of_team(self._waiting[number])
            for n, first in enumerate(self._begin(number), number * self._team):
                for key, value in first.items():
                    if key in obs:
                        obs[key][n] = value
        return obs

    def _begin(self, number: int) -> list[Mapping[str, Any]]:
        """Reset one copy and return its agents' observations; after a failure make a new copy and retry."""
        rows = self._rows(number)
        while True:
            entropy = [self._seed, int(self.lanes[rows][0]), int(self.begun[rows][0])]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
            self.begun[rows] += 1
            self.lengths[rows], self._return[rows], self._discounted[rows] = 0, 0.0, 0.0
            self._weight[rows] = self._weighted[rows] = 0.0
            self._success[rows] = self._knows_success[rows] = self._away[rows] = False
            self._totals[rows] = [{} for _ in range(self._team)]
            self._waiting[number] = {}
            try:
                seen, _ = self._copies[number].reset(seed=seed)
                for obs in seen:
                    self._check(obs, 0.0)
                for _, key in self._not_finite(self._stacked(seen)):
                    raise ValueError(f"observation '{key}' holds NaN or inf")
            except RobotError:
                raise
            except Exception as error:  # a simulator may raise any exception
                self._say(number, error)
                self._replace(number)
            else:
                return seen

    def begin_stage(self, make: Callable[[], Env], kwargs: Mapping[str, Any]) -> bool:
        """Set the stage of a curriculum in all copies; return false if one of them has no ``set_stage``.

        Args:
            make: makes one environment of the stage, if a copy has to be replaced.
            kwargs: ``env_kwargs`` of the environment in this stage.
        """
        setters = [stage_setter(env) for env in self._envs]
        if None in setters:
            return False
        self._make = make
        for number, setter in enumerate(filter(None, setters)):
            self._set_stage(number, partial(setter, kwargs))
        return True

    def _set_stage(self, number: int, setter: Callable[[], None]) -> None:
        """Set the stage in one copy; after a failure make a new copy."""
        try:
            setter()
        except RobotError:
            raise
        except Exception as error:  # the code of the user may raise any exception
            self._say(number, error)
            self._replace(number)

    def _replace(self, n: int) -> None:
        try:
            self._envs[n].close()
        except Exception as error:  # the copy is broken anyway, and is replaced
            self.messages.append(f"{self._name(n)}: closing it failed too ({error})")
        self._envs[n] = self._make()
        self._copies[n] = lanes_of(self._envs[n])

    def _of_team(self, records: dict[int, EpisodeRecord]) -> list[EpisodeRecord]:
        """Return the agents' episodes; with several agents, their info contains the returns of all."""
        if self._team == 1:
            return list(records.values())
        each = {f"return_{self._agents[n % self._team]}": r.env_return for n, r in records.items()}
        team = {"team_return": sum(each.values()), **each}
        return [
            replace(record, info=record.info | team, totals=record.totals | team)
            for record in records.values()
        ]

    def _record(self, n: int, info: Mapping[str, Any]) -> EpisodeRecord:
        numbers = {key: float(x) for key, x in info.items() if isinstance(x, _NUMBERS)}
        length = int(self.lengths[n])
        totals = {
            key: x / length if key.endswith(MEAN) else x for key, x in self._totals[n].items()
        }
        return EpisodeRecord(
            float(self._return[n]),
            float(self._discounted[n]),
            length,
            bool(self._success[n]) if self._knows_success[n] else None,
            numbers,
            float(self._weighted[n] / length),
            totals,
        )

    def _count(self, rewards: Array, infos: list[Mapping[str, Any]]) -> None:
        self._return += rewards
        self._discounted += rewards * self._discount**self.lengths
        # Reward l is part of the returns from steps 1 to l, with weights discount^0 to discount^(l - 1).
        self._weight = 1.0 + self._discount * self._weight
        self._weighted += rewards * self._weight
        self.lengths += ~self._away
        success = [success_in(info) for info in infos]
        self._success |= np.array(success).astype(bool)
        self._knows_success |= np.array([now is not None for now in success])
        for totals, info in zip(self._totals, infos, strict=True):
            for key, x in info.items():
                if isinstance(x, _NUMBERS):
                    joined = max if key.endswith(GREATEST) else add
                    totals[key] = joined(totals[key], float(x)) if key in totals else float(x)

    # ---- faults ----------------------------------------------------------------------------------

    def _check(self, obs: Mapping[str, Any], reward: Any) -> None:
        """Raise ValueError if an observation changes its shape or the reward is not a finite number."""
        if not math.isfinite(one_reward(reward, "environment")):
            raise ValueError(f"the reward is {reward}, wanted a finite number")
        if not self._shapes:
            self._shapes = {key: np.shape(value) for key, value in obs.items()}
        for key, shape in self._shapes.items():
            found = np.shape(obs[key])
            if found != shape:
                raise ValueError(f"observation '{key}' has shape {found}, but {shape} before")

    def _not_finite(self, obs: Obs) -> list[tuple[int, str]]:
        """Return the environments with NaN or inf in their observations (N, ...), each with one such key."""
        return list(
            {
                int(n): key
                for key, value in obs.items()
                if value.dtype == np.float32 and not np.isfinite(value).all()
                for n in np.flatnonzero(~np.isfinite(value.reshape(len(value), -1)).all(1))
            }.items()
        )

    def _say(self, n: int, error: Exception) -> None:
        self._failures += 1
        words = f"{self._name(n)} failed ({error_words(error)})"
        if self._failures >= MAX_FAILURES:
            raise EnvError(
                f"{words}; {MAX_FAILURES} failures without a complete episode between them: run imitate check-env"
            ) from error
        self.messages.append(f"{words}; its episode is discarded, and a new copy replaces it")

    def _name(self, number: int) -> str:
        """Return the name of a copy for messages, with the numbers of its lanes."""
        lanes = self.lanes[self._rows(number)].tolist()
        return f"environment {lanes[0]}" if len(lanes) == 1 else f"environment of lanes {lanes}"

    def _stacked(self, seen: list[Mapping[str, Any]]) -> Obs:
        """Stack observations to (N, ...) arrays: images uint8, all else float32."""
        stacked = {}
        for key, shape in self._shapes.items():
            first = np.asarray(seen[0][key])
            kind = np.uint8 if first.dtype == np.uint8 else np.float32
            rows = np.empty((len(seen), *shape), dtype=kind)
            for n, obs in enumerate(seen):
                rows[n] = obs[key]
            stacked[key] = rows
        return stacked


def _executed(actions: Array, infos: list[Mapping[str, Any]]) -> Array:
    """Return the executed actions (N, A), from ``info["executed_action"]`` if environments report it."""
    reporting = [n for n, info in enumerate(infos) if "executed_action" in info]
    if not reporting:
        return actions
    executed = np.array(actions)
    for n in reporting:
        executed[n] = infos[n]["executed_action"]
    return executed


def _intervened(infos: list[Mapping[str, Any]]) -> NDArray[np.bool_] | None:
    """Return (N,) true where a person acted, or None if no environment reports it."""
    by_person = np.array([bool(info.get("intervened", False)) for info in infos])
    return by_person if by_person.any() else None
