"""State of a sweep's runs, read from their folders, its table, and the order in which the runs are trained.

Runs are trained one after the other to the end, or by asynchronous successive halving, which is ASHA (Li et al., A
System for Massively Parallel Hyperparameter Tuning, MLSys 2020, arXiv:1810.05934, algorithm 2): runs train up to rungs,
whose epochs grow by a constant factor; the best 1/reduction of the runs at a rung continue to the next. A free worker
never waits for a rung to fill: it promotes a run that is good enough now, or begins another.

Departure: the runs are given, not sampled endlessly. If all have begun and none may be promoted, the best run of the
highest rung continues, until one run has trained all its epochs.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from imitate.config import Config
from imitate.errors import ConfigError
from imitate.system.plain_files import read_json
from imitate.system.run_folder import RunFolder, runs_in
from imitate.system.text import mean_text
from imitate.train.metrics import MetricsFile
from imitate.train.outcomes import SUCCESS, outcome_words
from imitate.train.state import PAUSED
from imitate.train.sweep.curves import Setting, words

PRUNED = "pruned"


@dataclass(frozen=True)
class SweepRun:
    """Run with one combination of values.

    Attributes:
        name: its values as text; also the name of its folder in the sweep's folder.
        values: its values by dotted key.
        status: 'finished', 'stopped early: ...' by its own ``experiment.early_stopping``, 'pruned at epoch ...' by the
            sweep in favour of better runs, 'failed: ...', 'interrupted'; 'waiting' before it ran.
        results: content of the run's results.json; empty before the file exists.
    """

    name: str
    values: dict[str, Any]
    status: str
    results: dict[str, Any]

    @property
    def is_over(self) -> bool:
        """True if the run has finished or was stopped by its own early stopping."""
        return self.status == "finished" or self.status.startswith("stopped early")

    @property
    def is_pruned(self) -> bool:
        """True if the sweep stopped the run in favour of better ones; a sweep without early stopping resumes it."""
        return self.status.startswith(PRUNED)

    @property
    def is_paused(self) -> bool:
        """True if the run has paused at a rung, until the sweep decides whether to train it further."""
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
    """Return the newest run in ``place``, the folder of all runs of one name; None if no run has begun."""
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
    """Format the mean return; return "-" if the outcome already shows it, or if it equals the success rate."""
    rate, mean = entry.get("success_rate"), entry.get("mean_return")
    if rate is None or mean is None or rate == mean:
        return "-"
    return mean_text(entry["mean_return"], entry.get("return_std"), entry.get("mean_return_95"))


# ---- order of training ---------------------------------------------------------------------------

METRICS = {
    "success_rate": ("rollout", SUCCESS, 1.0),
    "return": ("rollout", "Rollout/Return", 1.0),
    "valid_loss": ("epoch", "Valid/Loss", -1.0),
    "train_loss": ("epoch", "Train/Loss", -1.0),
}
"""By metric: kind and key of its lines in ``metrics.jsonl``, and 1, or -1 if smaller values are better."""


@dataclass(frozen=True)
class Halving:
    """Settings of successive halving.

    Attributes:
        metric: one of :data:`METRICS`.
        reduction: one of this many runs continues to the next rung, which has this many times the epochs.
        first_epochs: epochs of the first rung, which every run trains.
    """

    metric: str = "success_rate"
    reduction: int = 3
    first_epochs: int = 1

    def rungs(self, num_epochs: int) -> tuple[int, ...]:
        """Return the epochs at which runs are compared, and ``num_epochs``."""
        rungs, epochs = [], self.first_epochs
        while epochs < num_epochs:
            rungs.append(epochs)
            epochs *= self.reduction
        return (*rungs, num_epochs)

    def value(self, records: Sequence[Mapping[str, Any]], epoch: int) -> float | None:
        """Return the latest value up to an epoch, negated if lower is better; None before the first value.

        Args:
            records: lines of ``metrics.jsonl``.
            epoch: epoch of the rung.
        """
        kind, key, sign = METRICS[self.metric]
        found = None
        for record in records:
            if record.get("kind") == kind and key in record and record["epoch"] <= epoch:
                value = record[key]
                found = -math.inf if value is None else sign * float(value)
        return found

    def shown(self, value: float) -> str:
        """Format a value with the metric's name and sign."""
        sign = METRICS[self.metric][2]
        return f"{self.metric} {sign * value:.4g}"


@dataclass
class Ladder:
    """State of the halving: the rungs that runs have reached, and the choice of the next run.

    Attributes:
        num_rungs: number of rungs; a run at the last one has trained all its epochs.
        reduction: see :class:`Halving`.
        reached: values of each run at the rungs that it has reached, from the first; larger is better.
        climbing: runs that are training now.
    """

    num_rungs: int
    reduction: int
    reached: dict[str, list[float]] = field(default_factory=dict)
    climbing: set[str] = field(default_factory=set)

    def ranked(self, rung: int) -> list[str]:
        """Return the runs that have reached a rung, best first; ties keep the order of arrival."""
        there = [name for name, values in self.reached.items() if len(values) > rung]
        return sorted(there, key=lambda name: -self.reached[name][rung])

    def next(self, waiting: Sequence[str]) -> tuple[str, int] | None:
        """Return the next run and the index of the rung up to which it trains, or None if no run can start now.

        Args:
            waiting: runs that have not begun, in their order.
        """
        for rung in reversed(range(self.num_rungs - 1)):
            ranked = self.ranked(rung)
            for name in ranked[: len(ranked) // self.reduction]:
                if self._rests_at(name, rung):
                    return name, rung + 1
        if waiting:
            return waiting[0], 0
        if not self.climbing and not self.ranked(self.num_rungs - 1):
            for rung in reversed(range(self.num_rungs - 1)):
                if ranked := self.ranked(rung):
                    return ranked[0], rung + 1
        return None

    def place(self, name: str) -> tuple[int, int, int]:
        """Return the last rung that a run has reached, its rank there (from 1), and the number of runs there."""
        rung = len(self.reached[name]) - 1
        ranked = self.ranked(rung)
        return rung, ranked.index(name) + 1, len(ranked)

    def _rests_at(self, name: str, rung: int) -> bool:
        return len(self.reached[name]) == rung + 1 and name not in self.climbing


Leg = tuple[str, int | None]
"""A run's name and the epoch up to which it trains now, or None to train it to the end."""


class Order(Protocol):
    """Decides which run trains next."""

    def next(self) -> Leg | None:
        """Return the next training, or None if no training may begin now, or all have ended."""

    def ended(self, run: SweepRun) -> None:
        """Record the state of a run whose training has ended, successfully or not."""

    def final(self, run: SweepRun) -> SweepRun:
        """Return a run with the status that the sweep reports at its end, such as "pruned"."""


class InTurn:
    """Trains each run to its end, one after the other."""

    def __init__(self, runs: Iterable[SweepRun]) -> None:
        self._left = deque(run.name for run in runs if not run.is_over)

    def next(self) -> Leg | None:
        """Return the next waiting run, to be trained to its end, or None if none is left."""
        return (self._left.popleft(), None) if self._left else None

    def ended(self, run: SweepRun) -> None:
        """Do nothing: the order does not depend on results."""

    def final(self, run: SweepRun) -> SweepRun:
        """Return the run unchanged."""
        return run


class ByHalving:
    """Asynchronous halving; its state after an interruption is read from the runs' folders.

    Args:
        halving: settings of the halving.
        runs: current state of the runs.
        num_epochs: number of epochs of each run.
        folder: folder of the sweep.
    """

    def __init__(
        self, halving: Halving, runs: Sequence[SweepRun], num_epochs: int, folder: Path
    ) -> None:
        self._halving, self._folder = halving, folder
        self._rungs = halving.rungs(num_epochs)
        self.ladder = Ladder(len(self._rungs), halving.reduction)
        self._waiting = deque(run.name for run in runs if run.status == "waiting")
        # Runs whose training to a rung was interrupted with the sweep; they continue first.
        self._cut: deque[str] = deque()
        for run in runs:
            self._record(run)
            is_done_here = run.is_paused and run.name in self.ladder.reached
            if not (run.is_over or is_done_here or run.status == "waiting"):
                self._cut.append(run.name)

    def next(self) -> Leg | None:
        """Return the next training up to a rung, see :meth:`Ladder.next`."""
        if self._cut:
            name = self._cut.popleft()
            return self._leg(name, len(self.ladder.reached.get(name, ())))
        found = self.ladder.next(self._waiting)
        if found is None:
            return None
        name, rung = found
        if self._waiting and name == self._waiting[0]:
            self._waiting.popleft()
        return self._leg(name, rung)

    def ended(self, run: SweepRun) -> None:
        """Record a run's value at its rung, or stop comparing a failed run."""
        self.ladder.climbing.discard(run.name)
        if run.is_over or run.is_paused:
            self._record(run)
        else:  # the run failed, so it is no longer compared with others
            self.ladder.reached.pop(run.name, None)

    def final(self, run: SweepRun) -> SweepRun:
        """Return a run, with the status "pruned" if it was not promoted."""
        if not run.is_paused or run.name not in self.ladder.reached:
            return run
        rung, rank, there = self.ladder.place(run.name)
        value = self._halving.shown(self.ladder.reached[run.name][rung])
        went = sum(len(values) > rung + 1 for values in self.ladder.reached.values())
        words = f"{value} is rank {rank} of {there} there, of which {went} continued"
        return replace(run, status=f"{PRUNED} at epoch {self._rungs[rung]}: {words}")

    def _leg(self, name: str, rung: int) -> Leg:
        self.ladder.climbing.add(name)
        is_last = rung >= len(self._rungs) - 1
        return name, None if is_last else self._rungs[rung]

    def _record(self, run: SweepRun) -> None:
        """Read a run's values at the rungs that it has reached."""
        folder = newest_run(self._folder / run.name)
        records = [] if folder is None else MetricsFile(folder.metrics).read()
        rollouts = [record for record in records if record.get("kind") == "rollout"]
        if self._halving.metric == "success_rate" and rollouts and SUCCESS not in rollouts[-1]:
            # The environment reports no success, so runs are compared by their return.
            self._halving = replace(self._halving, metric="return")
        epoch = max((int(record["epoch"]) for record in records), default=0)
        if not (run.is_over or run.is_paused):
            epoch -= 1  # an interrupted run may lack the evaluation of its last epoch
        values = []
        for rung in self._rungs:
            value = self._halving.value(records, rung)
            if run.is_over and value is None:  # its first evaluation came after this rung
                value = self._halving.value(records[::-1], epoch)
            if value is None or not (run.is_over or rung <= epoch):
                break
            values.append(value)
        if values:
            self.ladder.reached[run.name] = values


def halving_of(
    halving: Halving, configs: Mapping[str, Config], runs: Sequence[SweepRun], folder: Path
) -> ByHalving:
    """Return the order of a sweep with early stopping.

    Raises:
        ConfigError: the runs cannot be compared.
    """
    epochs = {config.train.num_epochs for config in configs.values()}
    if len(epochs) != 1 or None in epochs:
        raise ConfigError(
            "--stop-early: compares runs at the same epochs, so all need the same "
            f"train.num_epochs, but got {sorted(map(str, epochs))}; give --epochs"
        )
    if METRICS[halving.metric][0] == "rollout":
        _require(halving, configs, "experiment.rollout.enabled", lambda c: c.rollout.enabled)
    if halving.metric == "valid_loss":
        _require(halving, configs, "experiment.validate", lambda c: c.validate)
    _require(halving, configs, "experiment.save.enabled", lambda c: c.save.enabled)
    return ByHalving(halving, runs, int(epochs.pop() or 1), folder)


def _require(
    halving: Halving, configs: Mapping[str, Config], key: str, holds: Callable[..., bool]
) -> None:
    for name, config in configs.items():
        if not holds(config.experiment):
            raise ConfigError(
                f"--stop-early --metric {halving.metric}: needs {key}, which is false in "
                f"{name}; set it to true, or choose another metric ({', '.join(METRICS)})"
            )
