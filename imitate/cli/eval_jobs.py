"""Evaluations of ``imitate eval``: their progress, the table from which they resume, and checkpoints of programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import typer

from imitate.cli.progress import Progress
from imitate.crew.backend import Backend
from imitate.errors import UserError
from imitate.evaluate.evaluate import EvalJob, evaluate_all
from imitate.evaluate.result import EpisodeResult, EvalResult, ResultsFile
from imitate.system.statistics import rate_of
from imitate.system.text import counted


def evaluated(
    jobs: Sequence[EvalJob],
    workers: int,
    table_file: Path | None,
    *,
    backend: Backend[Any] | None,
    resume: bool,
    quiet: bool,
) -> tuple[list[EvalResult], list[str]]:
    """Run all evaluations whose result is not in the table; return the results in order, and the failures.

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
            episodes = f", and {counted(played, 'episode')} of the others" if played else ""
            typer.echo(
                f"{table_file}: {len(results)} of {len(jobs)} are finished already{episodes}",
                err=True,
            )
        total = sum(jobs[number].settings.episodes for number in left) - played
        with Progress(total, "episode", "eval", quiet=quiet) as progress:
            count = _Count(progress)
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
    words = [f"{jobs[number].subject.file}: {error}" for number, error in sorted(failures.items())]
    return [results[number] for number in sorted(results)], words


class _Count:
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
    """Write the checkpoint of a policy that is a program; return its path.

    Args:
        name: ``scripted``, ``module:function``, which is trusted because the user typed it, or ``random``, whose
            actions the evaluation replaces by random ones.
        env: the environment, as for ``--env``.
        path: the file.

    Raises:
        UserError: there is no such environment, expert or function.
    """
    from imitate.algo.slots.scripted import RANDOM, SCRIPTED, scripted_algo
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
