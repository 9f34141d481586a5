"""Training order of a sweep's runs: one after the other to the end, or by asynchronous halving."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from imitate.config import Config
from imitate.errors import ConfigError
from imitate.train.halving import METRICS, Halving, Ladder
from imitate.train.metrics import MetricsFile
from imitate.train.sweep_state import PRUNED, SweepRun, newest_run

Leg = tuple[str, int | None]
"""A run's name and the epoch up to which it trains now, or None to train it to the end."""


class Order(Protocol):
    """Decides which run trains next."""

    def next(self) -> Leg | None:
        """Return the next training, or None if there is none now or none at all."""

    def ended(self, run: SweepRun) -> None:
        """Record the state of a run whose training has ended, successfully or not."""

    def final(self, run: SweepRun) -> SweepRun:
        """Return a run with its final status in the sweep."""


class InTurn:
    """Trains each run to its end, one after the other."""

    def __init__(self, runs: Iterable[SweepRun]) -> None:
        self._left = deque(run.name for run in runs if not run.is_over)

    def next(self) -> Leg | None:
        """Return the next waiting run, to be trained to its end."""
        return (self._left.popleft(), None) if self._left else None

    def ended(self, run: SweepRun) -> None:
        """Record the state of a run."""

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
        self._cut: deque[str] = (
            deque()
        )  # runs that were training towards a rung when the sweep was interrupted
        for run in runs:
            self._record(run)
            rests = run.is_paused and run.name in self.ladder.reached
            if not (run.is_over or rests or run.status == "waiting"):
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
        else:  # a failed run is no longer compared
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
        epoch = max((int(record["epoch"]) for record in records), default=0)
        if not (run.is_over or run.is_paused):
            epoch -= 1  # the last epoch may not have been evaluated
        values = []
        for rung in self._rungs:
            value = self._halving.value(records, rung)
            if run.is_over and value is None:  # the run was not evaluated that early
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
