"""Run the evaluations of ``imitate eval``: show progress, and write the table from which they resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from imitate.cli.progress import Progress
from imitate.crew.backend import Backend
from imitate.errors import UserError
from imitate.evaluate.episodes import EpisodeResult
from imitate.evaluate.eval_result import EvalResult
from imitate.evaluate.evaluate import EvalTask, evaluate_all
from imitate.evaluate.prepared import EvalSettings, EvaluatedPolicy, resolved
from imitate.evaluate.results_file import ResultsFile
from imitate.system.text import counted


def evaluated(
    places: Sequence[tuple[EvaluatedPolicy, dict[str, Any], EvalSettings]],
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
    keys: list[tuple[Path, dict[str, Any], EvalSettings]] = []
    file = None if table_file is None else ResultsFile(table_file, resume=resume)
    results: dict[int, EvalResult] = {}
    failures: dict[int, Exception] = {}
    try:
        wanted = [EvalTask(*place) for place in places]
        if file is not None:
            # The table contains the actual mode, so that "auto" finds results of "processes".
            keys = [
                (subject.file, meta, resolved(subject, meta, settings))
                for subject, meta, settings in places
            ]
            found = {number: file.find(*key) for number, key in enumerate(keys)}
            results = {number: result for number, result in found.items() if result is not None}
            wanted = [
                replace(entry, earlier=file.earlier(*key), on_episode=file.note(*key))
                for entry, key in zip(wanted, keys, strict=True)
            ]
        left = [number for number in range(len(places)) if number not in results]
        played = sum(len(wanted[number].earlier) for number in left)
        if (results or played) and not quiet:
            episodes = f", and {counted(played, 'episode')} of the others" if played else ""
            typer.echo(
                f"{table_file}: {len(results)} of {len(places)} are finished already{episodes}",
                err=True,
            )
        total = sum(places[number][2].episodes for number in left) - played
        with Progress(total, "episode", "eval", quiet=quiet) as progress:
            count = _Successes(progress)
            outcomes = evaluate_all(
                [wanted[number] for number in left],
                workers=workers,
                on_episode=count.add,
                backend=backend,
            )
            for index, outcome in outcomes:
                number = left[index]
                if isinstance(outcome, EvalResult):
                    results[number] = outcome
                    if file is not None:
                        file.add(*keys[number], outcome)
                else:
                    failures[number] = outcome
    finally:
        if file is not None:
            file.close(is_over=len(results) == len(places))
    errors = [error for _, error in sorted(failures.items())]
    if not results and isinstance(errors[0], UserError):
        raise errors[0]
    words = [f"{places[number][0].file}: {error}" for number, error in sorted(failures.items())]
    return [results[number] for number in sorted(results)], words


class _Successes:
    """Counts episodes and successes for the progress of an evaluation."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._successes = progress, 0

    def add(self, episode: EpisodeResult) -> None:
        """Count an episode that has ended."""
        self._successes += episode.success
        self._progress.advance(words=f"{self._successes} succeed")
