"""Evaluations of ``imitate eval``: their progress, the table from which they resume, and their results as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from imitate.cli.mistakes import PROGRAMS, with_programs
from imitate.cli.progress import Progress
from imitate.cli.reports import layout
from imitate.crew.backend import Backend
from imitate.errors import UserError
from imitate.evaluate.evaluate import EvalJob, evaluate_all
from imitate.evaluate.result import EpisodeResult, EvalResult, ResultsFile
from imitate.system.statistics import (
    Estimate,
    PairedComparison,
    Rate,
    compare_paired,
    estimate,
    rate_of,
    wilson_interval,
)
from imitate.system.text import counted, interval_text, mean_text, rate_text

if TYPE_CHECKING:
    from imitate.evaluate.result import EvalResult


def evaluated(
    jobs: Sequence[EvalJob],
    workers: int,
    table_file: Path | None,
    *,
    backend: Backend[Any] | None,
    resume: bool,
    quiet: bool,
) -> tuple[list[EvalResult], list[str]]:
    """Run all evaluations whose result is not in the table file.

    Returns:
        The results in the order of ``jobs``, without failed evaluations, and a message for each failed one.

    Raises:
        UserError: nothing could be evaluated because of a mistake in the input.
    """
    file = None if table_file is None else ResultsFile(table_file, resume=resume)
    results: dict[int, EvalResult] = {}
    failures: dict[int, Exception] = {}
    try:
        if file is not None:
            found = {number: file.find(job.identity) for number, job in enumerate(jobs)}
            results = {number: result for number, result in found.items() if result is not None}
            for job in jobs:
                job.resume(file.earlier(job.identity), file.keeper(job.identity))
        left = [number for number in range(len(jobs)) if number not in results]
        played = sum(len(jobs[number].earlier) for number in left)
        if (results or played) and not quiet:
            episodes = f", and {counted(played, 'episode')} of unfinished ones" if played else ""
            typer.echo(
                f"{table_file}: {len(results)} of {counted(len(jobs), 'evaluation')} finished already{episodes}",
                err=True,
            )
        total = sum(jobs[number].settings.episodes for number in left) - played
        with Progress(total, "episode", "eval", quiet=quiet) as progress:
            count = Count(progress)
            outcomes = evaluate_all(
                [jobs[number] for number in left],
                workers=workers,
                on_episode=count.add,
                backend=backend,
            )
            for index, outcome in outcomes:
                number = left[index]
                if isinstance(outcome, EvalResult):
                    results[number] = outcome
                    if file is not None:
                        file.add(jobs[number].identity, outcome)
                else:
                    failures[number] = outcome
    finally:
        if file is not None:
            file.close(is_over=len(results) == len(jobs))
    errors = [error for _, error in sorted(failures.items())]
    if not results and isinstance(errors[0], UserError):
        raise errors[0]
    words = [
        with_programs(f"{jobs[number].subject.file}: {error}")
        for number, error in sorted(failures.items())
    ]
    return [results[number] for number in sorted(results)], words


class Count:
    """Counts episodes, and their successes if known, for the progress of an evaluation."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._episodes: list[EpisodeResult] = []

    def add(self, episode: EpisodeResult) -> None:
        """Count an episode that has ended."""
        self._episodes.append(episode)
        rate = rate_of(ended.success for ended in self._episodes)
        mean = fmean(ended.episode_return for ended in self._episodes)
        self._progress.advance(
            words=f"return {mean:.3g}" if rate is None else f"{rate.successes} succeed"
        )


def write_scripted(name: str, env: str, path: Path) -> Path:
    """Write a checkpoint whose policy is a program instead of a network; return the path.

    Args:
        name: ``scripted``, ``module:function``, which is trusted because the user typed it, or ``random``, whose
            actions the evaluation replaces by random ones.
        env: name of the environment, as for ``--env``.
        path: checkpoint file to write.

    Raises:
        UserError: there is no such environment, expert or function.
    """
    from imitate.algo.slots.scripted import scripted_algo
    from imitate.config.algorithms import RANDOM, SCRIPTED
    from imitate.envs import make_env
    from imitate.envs.env import first_observation
    from imitate.envs.experts import find_expert
    from imitate.evaluate.environments import laid_over, named_env
    from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
    from imitate.system.trust import trust

    meta, horizon = named_env(env), None
    if name == SCRIPTED:
        expert = find_expert(str(meta["env_name"]))
        meta, horizon = laid_over(meta, {"env_kwargs": dict(expert.env_kwargs)}), expert.horizon
    made = make_env(meta)
    try:
        shapes = {key: value.shape for key, value in first_observation(made).items()}
        low, high, size = made.action_low, made.action_high, made.action_dim
    finally:
        made.close()
    if name not in (SCRIPTED, RANDOM):
        trust(name)
    algo = scripted_algo(name, str(meta["env_name"]), shapes, size, horizon)
    limits = {"action_low": low.tolist(), "action_high": high.tolist()}
    save_checkpoint(checkpoint_dict(algo, env_metadata=meta, shape_metadata=limits), path)
    return path


# ---- results as text -----------------------------------------------------------------------------

UNKNOWN = "-"


def table(results: Sequence[EvalResult]) -> list[str]:
    """Return the lines of the table of results, one row per checkpoint and environment.

    A column is left out if its value is unknown in all rows.
    """
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
    """Return a line per checkpoint with several environments: its mean success rate over them, or its mean return."""
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
    """Comparison of two checkpoints over all episodes with the same seeds in the same environments.

    Attributes:
        success: comparison of the success rates, or None if success is unknown.
        returns: estimate of the difference of the returns, first minus second; None if the returns only repeat the
            success.
    """

    success: PairedComparison | None
    returns: Estimate | None

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values for JSON."""
        rates = None if self.success is None else self.success._asdict()
        returns = None if self.returns is None else self.returns._asdict()
        return {**(rates or {}), "return_difference": returns}


def comparison_lines(comparison: PairedResults | None) -> list[str]:
    """Return the lines that show a comparison of two checkpoints; [] for None."""
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
    """Compare two checkpoints that were evaluated in the same environments; return None for any other results."""
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
    """Return a warning if the compared episodes were played on several CPU models, otherwise None."""
    models = sorted({model for result in results for model in result.cpu_models})
    if len(models) < 2:
        return None
    return (
        f"the compared episodes were played on {len(models)} CPU models "
        f"({'; '.join(models)}), whose last digits differ: single episodes may differ for "
        "this reason alone; compare on one model"
    )


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
