"""Evaluations of a run: their numbers in the metrics, their entries in results.json, their text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from imitate.system.statistics import d4rl_score, mean_over_seeds, wilson_interval
from imitate.system.text import counted, mean_text, rate_text
from imitate.train.console import duration

if TYPE_CHECKING:
    from imitate.evaluate.result import EvalResult

SUCCESS = "Rollout/Success_Rate"
KEPT = "Rollout/Bounds_Kept"
"""Metric: 1 if the policy keeps all bounds of its named rewards, else 0; absent without bounds."""
INTERVAL = "95 % interval "
NAMED = (SUCCESS, f"{SUCCESS}_At_End", "Rollout/Return", "Rollout/Horizon")
"""Metrics that are also logged for each of several environments."""


def rollout_numbers(results: Sequence[EvalResult]) -> dict[str, float]:
    """Return the metrics of an evaluation; for several environments their mean, and each under its name.

    A metric that is unknown in an environment, such as the success rate, is left out.
    """
    each = [_numbers(result) for result in results]
    shared = [tag for tag in each[0] if all(tag in own for own in each)]
    numbers = {tag: fmean(own[tag] for own in each) for tag in shared}
    for tag in shared:
        if tag.endswith("_Std"):
            numbers[tag] = math.sqrt(fmean(own[tag] ** 2 for own in each))
    episodes = sum(len(result.episodes) for result in results)
    numbers["Rollout/Episodes"] = float(episodes)
    if SUCCESS in numbers:
        low, high = wilson_interval(numbers[SUCCESS] * episodes, episodes)
        numbers |= {f"{SUCCESS}_Low": low, f"{SUCCESS}_High": high}
    if len(results) > 1:
        for result, own in zip(results, each, strict=True):
            numbers |= {f"{tag}/{result.env_name}": own[tag] for tag in NAMED if tag in own}
        return numbers
    for agent, (mean, rate) in results[0].agents.items():
        numbers[f"Rollout/Return/{agent}"] = mean
        if rate is not None:
            numbers[f"{SUCCESS}/{agent}"] = rate
    return numbers


def _numbers(result: EvalResult) -> dict[str, float]:
    returns, score = result.over_episodes, result.d4rl_score
    score_std = None
    if score is not None and returns.std is not None:
        above = d4rl_score(result.env_name, returns.value + returns.std) or 0.0
        score_std = above - score
    numbers = {
        SUCCESS: result.success_rate,
        f"{SUCCESS}_At_End": result.success_rate_at_end,
        "Rollout/Return": returns.value,
        "Rollout/Return_Std": returns.std,
        "Rollout/Horizon": result.mean_length,
        "Rollout/D4RL_Score": score,
        "Rollout/D4RL_Score_Std": score_std,
    }
    numbers |= {f"Rollout/Rewards/{x.spec.name}": x.per_step.value for x in result.rewards}
    bounded = [x.meets for x in result.rewards if x.meets is not None]
    numbers[KEPT] = float(all(bounded)) if bounded else None
    return {tag: value for tag, value in numbers.items() if value is not None}


def rollout_entry(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation in the metrics as an entry of results.json; unknown values are null."""
    rate, mean, std = (record.get(tag) for tag in (SUCCESS, "Rollout/Return", "Rollout/Return_Std"))
    low, high = record.get(f"{SUCCESS}_Low"), record.get(f"{SUCCESS}_High")
    episodes = record.get("Rollout/Episodes")
    returns = None
    if mean is not None and std is not None and episodes is not None:
        returns = mean_over_seeds([mean], [std], [int(episodes)])
    return {
        "epoch": record["epoch"],
        "episodes": None if episodes is None else int(episodes),
        "success_rate": rate,
        "success_rate_95": None if low is None else [low, high],
        "mean_return": mean,
        "return_std": std,
        "mean_return_95": None if returns is None else list(returns[1:3]),
        "d4rl_score": record.get("Rollout/D4RL_Score"),
        "mean_length": record.get("Rollout/Horizon"),
    }


def outcome_words(entry: Mapping[str, Any]) -> str:
    """Return success rate and interval of an entry of results.json or, where success is unknown, the return."""
    if entry.get("success_rate") is not None:
        return rate_text(entry["success_rate"], entry.get("success_rate_95"))
    std, interval = entry.get("return_std"), entry.get("mean_return_95")
    return f"return {mean_text(entry.get('mean_return'), std, interval)}"


def describe(result: EvalResult) -> str:
    """Describe a result, such as Lift 48/50 succeed (96 %, 95 % interval 87 - 99 %), return 0.96 ± 0.2 (0.9 - 1)."""
    parts = []
    if result.rate is not None:
        successes, n = result.rate
        low, high = (100 * end for end in result.rate.interval)
        rate = f"{100 * result.rate.value:.0f} %, {INTERVAL}{low:.0f} - {high:.0f} %"
        parts.append(f"{successes}/{n} succeed ({rate})")
    returns = result.over_episodes
    parts.append(f"return {mean_text(returns.value, returns.std, returns[1:3], INTERVAL)}")
    if result.d4rl_score is not None:
        parts.append(f"D4RL score {result.d4rl_score:.1f}")
    parts += [each.words for each in result.rewards]
    parts += [f"{result.mean_length:.0f} steps", duration(result.wall_s)]
    gave_up = (
        f"; stopped after {counted(len(result.episodes), 'failure')}" if result.gave_up else ""
    )
    return f"{result.env_name} {', '.join(parts)}{gave_up}"
