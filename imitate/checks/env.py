"""Check of an environment before it is used for online RL or evaluation: limits, observations, seeds, ends, success."""

import contextlib
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from types import NoneType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env as gymnasium_check

from imitate.checks.contracts import CheckFinding, ContractError, Trials
from imitate.envs.env import Env, Lanes, Outcome, has_team, lanes_of, success_in
from imitate.errors import EnvError
from imitate.system.statistics import rate_of
from imitate.system.text import counted
from imitate.system.user_code import error_words

GYMNASIUM = 2
TRIED_STEPS = 20
_GENERATOR = "Expects the random number generator"
"""Beginning of the error that gymnasium's checker raises for an environment without ``np_random``."""
_NO_BOUNDS = re.compile(r"observation space (minimum|maximum) value is -?infinity")
"""Warning of gymnasium's checker about unbounded observations, ignored since the package needs no bounds to normalize.
"""
_COLOURS = re.compile("\\x1b\\[[0-9;]*m")  # Codes of terminal colours in gymnasium's messages.
_OF_GYMNASIUM = r"\x1b\[\d+mWARN: "
"""Beginning of gymnasium's warnings, with a terminal colour."""

__all__ = ["CheckFinding", "check_env"]


def check_env(
    make: Callable[[], Env], meta: Mapping[str, Any], *, steps: int = 1000
) -> list[CheckFinding]:
    """Check an environment.

    Args:
        make: function that makes an instance of the environment; it is called twice.
        meta: env_args of the environment; with ``type`` 2 gymnasium's own checker runs too.
        steps: number of random steps within which an episode should end.

    Returns:
        a finding for each check.
    """
    findings: list[CheckFinding] = []
    try:
        env, other = make(), make()
    except EnvError as error:
        return [CheckFinding("made", "error", str(error))]
    findings.append(CheckFinding("made", "ok", f"{env.name}, {_actions(env)}"))
    tries = (_limits, _observations, _seeding, _episode_end, _success, _states)
    try:
        if has_team(env):
            return [*findings, *check_team(env, other, steps)]
        if meta.get("type") == GYMNASIUM:
            findings += _gymnasium(meta)
        with warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", _OF_GYMNASIUM, DeprecationWarning)
            tried = [_tried(trial, env, other, steps) for trial in tries]
        findings = _with_own_seeding([*findings, *_reported(caught), *_once(tried)])
    finally:
        for made in (env, other):
            with contextlib.suppress(Exception):  # A broken environment may also fail to close.
                made.close()
    return findings


def _actions(env: Env) -> str:
    """Return words for the actions, such as "actions of 2 numbers and one of 3 choices"."""
    choices = int(getattr(env, "num_choices", 0))
    numbers = env.action_dim - choices
    parts = [f"{numbers} numbers"] if numbers else []
    parts += [f"one of {choices} choices"] if choices else []
    return f"actions {'of' if numbers else 'are'} {' and '.join(parts)}"


Trial = Callable[[Env, Env, int], CheckFinding]


def _tried(trial: Trial, env: Env, other: Env, steps: int) -> CheckFinding:
    try:
        return trial(env, other, steps)
    except Exception as error:  # An environment may raise any error.
        name = trial.__name__.strip("_").replace("_", " ")
        return CheckFinding(name, "error", f"raised {error_words(error)}")


def _once(tried: list[CheckFinding]) -> list[CheckFinding]:
    """Report an error that several checks met only once; later checks become "untried" and name the first one."""
    first: dict[str, str] = {}
    for found in tried:
        if found.verdict == "error":
            first.setdefault(found.words, found.name)
    return [
        CheckFinding(
            found.name, "untried", f"failed with the same error as in '{first[found.words]}'"
        )
        if first.get(found.words, found.name) != found.name
        else found
        for found in tried
    ]


def _reported(caught: list[warnings.WarningMessage]) -> list[CheckFinding]:
    """Turn gymnasium's warnings about its old API into findings, and show all other warnings as usual."""
    words = []
    for warning in caught:
        is_deprecation = issubclass(warning.category, DeprecationWarning)
        if is_deprecation and re.match(_OF_GYMNASIUM, str(warning.message)):
            words.append(_plain(warning))
        else:
            warnings.showwarning(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return [CheckFinding("API", "warning", word) for word in dict.fromkeys(words)]


def _plain(warning: warnings.WarningMessage) -> str:
    return _COLOURS.sub("", str(warning.message)).splitlines()[0].removeprefix("WARN: ").strip()


def _gymnasium(meta: Mapping[str, Any]) -> list[CheckFinding]:
    """Return the findings of gymnasium's own checker."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kwargs = {k: v for k, v in (meta.get("env_kwargs") or {}).items() if k != "render_mode"}
        env = gymnasium.make(str(meta["env_name"]), **kwargs)
        try:
            gymnasium_check(env.unwrapped, skip_render_check=True)
        except Exception as error:  # Gymnasium's checker reports problems as errors of many types.
            first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            return [CheckFinding("gymnasium's checker", "error", first)]
        finally:
            env.close()
    words = [word for word in map(_plain, caught) if not _NO_BOUNDS.search(word)]
    if words:
        return [
            CheckFinding("gymnasium's checker", "warning", word) for word in dict.fromkeys(words)
        ]
    return [CheckFinding("gymnasium's checker", "ok", "no complaint")]


def _with_own_seeding(findings: list[CheckFinding]) -> list[CheckFinding]:
    """Turn gymnasium's error about a missing ``np_random`` into a warning if the check of seeds succeeded."""
    if not any(found.name == "seeding" and found.verdict == "ok" for found in findings):
        return findings
    return [
        replace(found, verdict="warning", words=f"{found.words}; seeds work anyway")
        if found.verdict == "error" and found.words.startswith(_GENERATOR)
        else found
        for found in findings
    ]


def _limits(env: Env, other: Env, steps: int) -> CheckFinding:
    low, high = np.asarray(env.action_low), np.asarray(env.action_high)
    if low.shape != (env.action_dim,) or high.shape != low.shape:
        return CheckFinding(
            "limits",
            "error",
            f"action_low has shape {low.shape}, action_high {high.shape}; expected {(env.action_dim,)}",
        )
    if not (low < high).all():
        return CheckFinding("limits", "error", "action_low is not below action_high everywhere")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return CheckFinding(
            "limits",
            "warning",
            "actions have no finite limits, so they are not scaled: bound them in a wrapper",
        )
    choices = int(getattr(env, "num_choices", 0))
    if choices == env.action_dim:
        return CheckFinding("limits", "ok", f"one of {choices} choices, given as one-hot vectors")
    low, high = low[choices:], high[choices:]
    return CheckFinding("limits", "ok", f"actions from {low.min():g} to {high.max():g}")


def _observations(env: Env, other: Env, steps: int) -> CheckFinding:
    """Check in a few random steps that keys and shapes stay the same, and that values and rewards are finite."""
    obs, _ = env.reset(seed=0)
    shapes = {key: np.shape(value) for key, value in obs.items()}
    for seen, reward, _, _, _ in _random_steps(env, TRIED_STEPS):
        if {key: np.shape(value) for key, value in seen.items()} != shapes:
            return CheckFinding(
                "observations",
                "error",
                f"keys or shapes change after the reset, which gave {shapes}",
            )
        bad = [key for key, value in seen.items() if not np.isfinite(np.asarray(value)).all()]
        if bad or not math.isfinite(reward):
            return CheckFinding(
                "observations", "error", f"{bad or 'the reward'} contains NaN or inf"
            )
    words = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
    return CheckFinding("observations", "ok", words)


def _seeding(env: Env, other: Env, steps: int) -> CheckFinding:
    """Check that a seed gives the same episode in two instances and twice in one, and another seed a different one."""
    first, second, third = _trace(env, 7), _trace(other, 7), _trace(env, 8)
    if not _same(first, second):
        return CheckFinding(
            "seeding",
            "error",
            "the same seed and actions gave two different episodes: draw all random numbers from self.np_random",
        )
    if not _same(first, _trace(env, 7)):
        return CheckFinding(
            "seeding",
            "error",
            "an episode depends on the previous episode: reset() must reset everything",
        )
    if _same(first, third):
        return CheckFinding(
            "seeding",
            "warning",
            "two seeds gave the same episode: does reset() ignore the seed, or always give the same state?",
        )
    return CheckFinding("seeding", "ok", "a seed gives one episode, another seed another")


def _episode_end(env: Env, other: Env, steps: int) -> CheckFinding:
    env.reset(seed=1)
    for number, (_, _, terminated, truncated, _) in enumerate(_random_steps(env, steps), 1):
        if terminated or truncated:
            how = "a terminal" if terminated else "its time limit"
            if number == 1:
                return CheckFinding(
                    "episode end", "error", f"the first step already ends the episode by {how}"
                )
            return CheckFinding("episode end", "ok", f"ended after {number} random steps by {how}")
    return CheckFinding(
        "episode end",
        "warning",
        f"no end in {steps} random steps: train.online.horizon and experiment.rollout.horizon cut episodes",
    )


def _success(env: Env, other: Env, steps: int) -> CheckFinding:
    env.reset(seed=2)
    infos = [outcome[-1] for outcome in _random_steps(env, steps)]
    reported = env.is_success()
    if not isinstance(reported.get("task", ""), (bool, np.bool_, NoneType)):
        wanted = "{'task': True, False or None if it is unknown}"
        return CheckFinding("success", "error", f"is_success() gave {reported}; expected {wanted}")
    rate = rate_of(map(success_in, infos))
    if rate is None:
        words = "unknown: info has neither 'success' nor 'is_success', so policies are compared by their returns"
        return CheckFinding("success", "ok", words)
    return CheckFinding(
        "success", "ok", f"reported; true in {rate.successes} of {counted(rate.n, 'random step')}"
    )


def _states(env: Env, other: Env, steps: int) -> CheckFinding:
    """Check that the simulator's state can be read and restored."""
    env.reset(seed=3)
    try:
        state = env.get_state()
    except EnvError:
        words = "can be neither read nor set: actions are played back, not states"
        return CheckFinding("states", "absent", words)
    list(_random_steps(env, TRIED_STEPS))
    env.reset_to(state)
    again = env.get_state()
    gap = np.abs(np.asarray(again["states"]) - np.asarray(state["states"])).max()
    if gap > 1e-6:
        return CheckFinding(
            "states",
            "error",
            f"after reset_to(state), get_state() differs from the state by up to {gap:g}",
        )
    return CheckFinding("states", "ok", "can be read and set")


def _random_steps(env: Env, number: int) -> Iterator[Outcome]:
    """Yield the outcomes of at most ``number`` random steps, until the episode ends."""
    rng = np.random.default_rng(0)
    low = np.where(np.isfinite(env.action_low), env.action_low, -1.0)
    high = np.where(np.isfinite(env.action_high), env.action_high, 1.0)
    for _ in range(number):
        outcome = env.step(rng.uniform(low, high))
        yield outcome
        if outcome[2] or outcome[3]:
            return


def _trace(env: Env, seed: int) -> list[Mapping[str, Any]]:
    obs, _ = env.reset(seed=seed)
    return [obs, *(outcome[0] for outcome in _random_steps(env, TRIED_STEPS))]


def check_team(env: Any, other: Any, steps: int) -> list[CheckFinding]:
    """Check an environment with several agents.

    Args:
        env: an environment with several agents (:func:`imitate.envs.env.has_team`).
        other: another instance of the same environment.
        steps: number of random steps within which all agents should leave.

    Returns:
        a finding for each check.
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
        """Check the action limits, and return words for the agents and the size of their actions."""
        low, high = np.asarray(self._env.action_low), np.asarray(self._env.action_high)
        if not (low < high).all():
            raise ContractError("action_low is not below action_high everywhere")
        return f"{', '.join(self._lanes.agents)}; actions of {len(low)} numbers"

    def pettingzoo(self) -> str:
        """Run PettingZoo's own test of the parallel API, and return its warnings."""
        from pettingzoo.test import parallel_api_test

        with (
            warnings.catch_warnings(record=True) as caught,
            redirect_stdout(sys.stderr),
        ):  # PettingZoo's test prints to stdout.
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
        """Check in a few random steps that keys and shapes stay the same, and that values and rewards are finite."""
        first = self._lanes.reset(seed=0)[0]
        shapes = {key: np.shape(value) for key, value in first[0].items()}
        for outcome in self._random(self._lanes, TRIED_STEPS):
            obs, reward = outcome[:2]
            if {key: np.shape(value) for key, value in obs.items()} != shapes:
                raise ContractError(f"keys or shapes change after the reset, which gave {shapes}")
            bad = [key for key, value in obs.items() if not np.isfinite(np.asarray(value)).all()]
            if bad or not np.isfinite(reward):
                raise ContractError(f"{bad or 'the reward'} contains NaN or inf")
        return ", ".join(f"{key} {shape}" for key, shape in shapes.items())

    def seeding(self) -> str:
        """Check that a seed gives the same episode in two instances of the environment, and twice in one instance."""
        if not _same(self._trace(self._lanes), self._trace(self._other)):
            raise ContractError(
                "the same seed and actions gave two different episodes: draw all random numbers from a generator that "
                "reset() seeds"
            )
        if not _same(self._trace(self._lanes), self._trace(self._lanes)):
            raise ContractError(
                "an episode depends on the previous episode: reset() must reset everything"
            )
        return "a seed gives one episode"

    def episode_end(self) -> str:
        """Check that an agent leaves when its episode ends, and does not return before the next reset."""
        self._lanes.reset(seed=1)
        rng, away = np.random.default_rng(0), np.zeros(len(self._lanes.agents), dtype=np.bool_)
        for number in range(1, self._steps + 1):
            outcomes = self._lanes.step(self._actions(rng))
            for n, outcome in enumerate(outcomes):
                if away[n] != (outcome is None):
                    raise ContractError(
                        f"after {number} steps agent '{self._lanes.agents[n]}' "
                        + ("acts after its end" if away[n] else "is gone, but was not terminated")
                    )
                away[n] |= outcome is not None and (outcome[2] or outcome[3])
            if away.all():
                return f"all agents left within {number} random steps"
        return f"no end within {self._steps} random steps: train.online.horizon cuts episodes"

    def _trace(self, lanes: Lanes) -> list[Mapping[str, Any]]:
        first = lanes.reset(seed=7)[0]
        return [*first, *(outcome[0] for outcome in self._random(lanes, TRIED_STEPS))]

    def _random(self, lanes: Lanes, number: int) -> list[Outcome]:
        """Return all agents' outcomes of at most ``number`` random steps, until the episode of all agents ends."""
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
