"""State of a sweep's runs, read from their folders, and its table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imitate.errors import ConfigError
from imitate.system.plain_files import read_json
from imitate.system.run_folder import RunFolder, runs_in
from imitate.system.text import mean_text
from imitate.train.outcomes import outcome_words
from imitate.train.state import PAUSED
from imitate.train.sweep.curves import Setting
from imitate.train.sweep.labels import words

PRUNED = "pruned"


@dataclass(frozen=True)
class SweepRun:
    """Run with one combination of values.

    Attributes:
        name: its values as text; also the name of its folder in the sweep's folder.
        values: its values by dotted key.
        status: 'finished', 'stopped early: ...' by its own ``experiment.early_stopping``, 'pruned at epoch ...' by the
            sweep in favour of better runs, 'failed: ...', 'interrupted'; 'waiting' before it ran.
        results: content of the run's results.json; empty if there is none.
    """

    name: str
    values: dict[str, Any]
    status: str
    results: dict[str, Any]

    @property
    def is_over(self) -> bool:
        """True if nothing is left to train."""
        return self.status == "finished" or self.status.startswith("stopped early")

    @property
    def is_pruned(self) -> bool:
        """True if the sweep stopped it in favour of better runs; a sweep without early stopping resumes it."""
        return self.status.startswith(PRUNED)

    @property
    def is_paused(self) -> bool:
        """True if it waits for the decision whether to train it further."""
        return self.status.startswith(PAUSED)


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep.

    Attributes:
        folder: folder with the runs, ``sweep.json``, ``results.json`` and ``settings.{json,csv,md,tex}``.
        runs: runs in the order of the combinations.
        picture: curves of all settings (``curves.pdf`` is beside it); None if no run is finished.
        interrupted: true if a signal ended it; the same call resumes it.
        settings: finished runs, grouped if they differ only in their seed.
    """

    folder: Path
    runs: tuple[SweepRun, ...]
    picture: Path | None
    interrupted: bool
    settings: tuple[Setting, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if all runs are done, 1 if a run failed, 130 if interrupted."""
        if self.interrupted:
            return 130
        return 0 if all(run.is_over or run.is_pruned for run in self.runs) else 1


def newest_run(place: Path) -> RunFolder | None:
    """Return the newest run below the folder of a name; None if there is none."""
    runs = runs_in(place)
    return RunFolder(runs[-1]) if runs else None


def read_run(place: Path, values: dict[str, Any]) -> SweepRun:
    """Return the state of the run whose folders are in `place`."""
    folder = newest_run(place)
    if folder is None:
        return SweepRun(place.name, values, "waiting", {})
    if not folder.results.is_file():
        return SweepRun(place.name, values, "interrupted", {})
    results = read_json(folder.results)
    if not isinstance(results, dict) or not isinstance(results.get("status"), str):
        raise ConfigError(
            f"{folder.results}: contains no status of a run: remove it to resume the run"
        )
    return SweepRun(place.name, values, results["status"], results)


def table_rows(runs: Iterable[SweepRun]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: values, last and best evaluation, losses, CPU seconds, status.

    A column is left out if no run has a number for it.
    """
    runs = list(runs)
    shown: dict[str, list[str]] = {
        "last": [_outcome(_evaluation(run.results, "final")) for run in runs],
        "best": [_outcome(_evaluation(run.results, "best")) for run in runs],
        "return, last": [_return(_evaluation(run.results, "final")) for run in runs],
        "train loss": [_number(run.results.get("train_loss"), ".4g") for run in runs],
        "valid loss": [_number(run.results.get("valid_loss"), ".4g") for run in runs],
        "CPU s": [_number(_part(run.results, "times").get("train_cpu_s"), ".0f") for run in runs],
        "status": [run.status for run in runs],
    }
    shown = {name: column for name, column in shown.items() if set(column) != {"-"}}
    keys = list({key: None for run in runs for key in run.values})
    rows = [
        [*(words(run.values[key]) if key in run.values else "" for key in keys), *cells]
        for run, *cells in zip(runs, *shown.values(), strict=True)
    ]
    return [*keys, *shown], rows


def _part(results: dict[str, Any], key: str) -> dict[str, Any]:
    part = results.get(key)
    return part if isinstance(part, dict) else {}


def _number(value: Any, form: str) -> str:
    return format(value, form) if _is_number(value) else "-"


def _evaluation(results: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the numbers and intervals of an evaluation, without values of other types."""
    entry = _part(results, key)
    return {
        name: value for name, value in entry.items() if _is_number(value) or _is_interval(value)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _outcome(entry: dict[str, Any]) -> str:
    return outcome_words(entry) if {"success_rate", "mean_return"} & set(entry) else "-"


def _return(entry: dict[str, Any]) -> str:
    """Return the return, unless it is the outcome or repeats it."""
    rate, mean = entry.get("success_rate"), entry.get("mean_return")
    if rate is None or mean is None or rate == mean:
        return "-"
    return mean_text(entry["mean_return"], entry.get("return_std"), entry.get("mean_return_95"))
