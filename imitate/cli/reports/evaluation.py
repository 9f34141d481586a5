"""Text output of ``imitate eval``: table of results, means, comparison of two checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from imitate.cli.reports import layout
from imitate.system.statistics import (
    Estimate,
    PairedComparison,
    Rate,
    compare_paired,
    estimate,
    wilson_interval,
)
from imitate.system.text import interval_text, mean_text, rate_text

if TYPE_CHECKING:
    from imitate.evaluate.result import EvalResult


UNKNOWN = "-"


def table(results: Sequence[EvalResult]) -> list[str]:
    """Return the table's lines, a row per checkpoint; a column is left out if it is unknown in all rows."""
    columns: dict[str, list[str]] = {
        "checkpoint": [short_name(result.checkpoint) for result in results],
        "env": [result.env_name for result in results],
        "success": [_success(result.rate) for result in results],
        "95 % interval": [
            UNKNOWN if result.rate is None else _percents(*result.rate.interval)
            for result in results
        ],
        "return": [
            mean_text(result.over_episodes.value, result.over_episodes.std) for result in results
        ],
        "95 % interval ": [
            interval_text(result.over_episodes[1:3]) or UNKNOWN for result in results
        ],
        "D4RL score": [
            UNKNOWN if result.d4rl_score is None else f"{result.d4rl_score:.1f}"
            for result in results
        ],
        "steps": [f"{result.mean_length:.1f}" for result in results],
        "seconds": [f"{result.wall_s:.1f}" for result in results],
    }
    shown = {name: cells for name, cells in columns.items() if set(cells) != {UNKNOWN}}
    lines = list(layout.table(list(shown), list(zip(*shown.values(), strict=True))))
    seeds = results[0].seeds
    lines.append(f"seeds {seeds[0]} - {seeds[-1]}, horizon {results[0].horizon}")
    lines += [
        f"{short_name(result.checkpoint)} in {result.env_name}: the environment itself ended failed episodes after at "
        f"most {result.ended_by_env} steps, before the horizon"
        for result in results
        if result.ended_by_env is not None
    ]
    lines += [
        f"{short_name(result.checkpoint)} in {result.env_name}: {each.words}"
        for result in results
        for each in result.rewards
    ]
    lines += [f"video: {result.video}" for result in results if result.video]
    return lines


def _success(rate: Rate | None) -> str:
    return (
        UNKNOWN
        if rate is None
        else f"{rate.successes}/{rate.n} = {rate_text(rate.value, digits=1)}"
    )


def _percents(low: float, high: float) -> str:
    return f"{100 * low:.1f} - {100 * high:.1f} %"


def mean_lines(results: Sequence[EvalResult]) -> list[str]:
    """Return each checkpoint's mean success over its environments, or mean return, if there are several."""
    groups: dict[str | None, list[EvalResult]] = {}
    for result in results:
        groups.setdefault(result.checkpoint, []).append(result)
    return [
        f"{short_name(checkpoint)}: mean of {len(found)} environments {_mean(found)}"
        for checkpoint, found in groups.items()
        if len(found) > 1
    ]


def _mean(results: Sequence[EvalResult]) -> str:
    rates = [result.rate for result in results if result.rate is not None]
    if len(rates) < len(results):
        return f"return {mean_text(fmean(result.mean_return for result in results))}"
    n = sum(rate.n for rate in rates)
    value = fmean(rate.value for rate in rates)
    return rate_text(value, wilson_interval(value * n, n), digits=1)


class PairedResults(NamedTuple):
    """PairedResults of two checkpoints on the same seeds of the same environments, over all episodes.

    Attributes:
        success: comparison of the success rates, or None if success is unknown.
        returns: estimate of the difference of the returns, first minus second; None if they repeat the success.
    """

    success: PairedComparison | None
    returns: Estimate | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rates = None if self.success is None else self.success._asdict()
        returns = None if self.returns is None else self.returns._asdict()
        return {**(rates or {}), "return_difference": returns}


def comparison_lines(comparison: PairedResults | None) -> list[str]:
    """Return the lines of a comparison of two checkpoints on the same seeds."""
    if comparison is None:
        return []
    c, returns = comparison
    lines = (
        []
        if c is None
        else [
            f"paired on {c.n} seeds: first - second = {100 * c.difference:+.1f} % "
            f"(95 % interval {100 * c.low:+.1f} to {100 * c.high:+.1f} %); "
            f"only the first succeeds {c.only_first} times, only the second {c.only_second}; "
            f"p = {c.p_value:.3g} (exact McNemar test)"
        ]
    )
    if returns is not None and returns.low is not None:
        lines.append(
            f"return on {returns.n} seeds: first - second = {returns.value:+.4g} "
            f"(95 % interval {returns.low:+.4g} to {returns.high:+.4g}, Student's t of the paired differences)"
        )
    return lines


def compare(paths: Sequence[Path], results: Sequence[EvalResult]) -> PairedResults | None:
    """Compare two checkpoints, if two were evaluated in the same environments and some episodes were played by both."""
    half = len(results) // 2
    first, second = results[:half], results[half:]
    if len(paths) != 2 or [r.env_name for r in first] != [r.env_name for r in second]:
        return None
    pairs = [
        pair
        for one, other in zip(first, second, strict=True)
        for pair in zip(one.episodes, other.episodes, strict=True)
    ]
    gaps = [
        one.episode_return - other.episode_return
        for one, other in pairs
        if one.error is None and other.error is None
    ]
    finite = gaps and all(map(math.isfinite, gaps))
    rates = None
    if all(result.rate is not None for result in results):
        rates = compare_paired(
            [bool(one.success) for one, _ in pairs], [bool(other.success) for _, other in pairs]
        )
    is_other = not all(result.repeats_success for result in results)
    return PairedResults(rates, estimate(gaps) if finite and is_other else None)


def cpu_warning(results: Sequence[EvalResult]) -> str | None:
    """Return a warning where compared episodes were played on several models of processors."""
    models = sorted({model for result in results for model in result.cpu_models})
    if len(models) < 2:
        return None
    return (
        f"the compared episodes were played on {len(models)} CPU models "
        f"({'; '.join(models)}), whose last digits differ: single episodes may differ for "
        "this reason alone; compare on one model"
    )


PROGRAMS = "imitate-program-"
"""Beginning of the name of a temporary folder with checkpoints of programs, which `imitate eval --agent` names."""


def short_name(checkpoint: str | None) -> str:
    """Return a checkpoint's name in a table: experiment, run and file, such as ``lift_bc/20261123131539/last.pth``.

    The temporary checkpoint of a program has the program's name, such as ``scripted``.
    """
    if checkpoint is None:
        return "-"
    parts = Path(checkpoint).parts
    if parts[-2:-1] and parts[-2].startswith(PROGRAMS):
        return Path(checkpoint).stem
    return "/".join([*(part for part in parts[:-1] if part != "checkpoints"), parts[-1]][-3:])
