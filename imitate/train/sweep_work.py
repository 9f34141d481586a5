"""Run the trainings of a sweep on a crew of workers, each with its own GPUs; retry lost trainings."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from imitate.config import Config
from imitate.crew import CancelledError, Crew, Limits, Lost
from imitate.crew.places import open_backend
from imitate.envs.trust import trust_given
from imitate.errors import TrainingError
from imitate.system.processes import LOCAL
from imitate.train.gpus import GpuShares, visible_gpus
from imitate.train.interrupts import ending_signals
from imitate.train.run_copy import Changes, content_to_resume, received
from imitate.train.sweep_order import Order
from imitate.train.sweep_state import SweepRun, newest_run, read_run
from imitate.train.training_process import (
    OUTPUT,
    POLL_S,
    PROGRAM,
    TRAINER_ENDS_S,
    Training,
    prepare,
)

HANG_S = 3600.0
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Resources:
    """Where the trainings run, and with how many resources.

    Attributes:
        on: back end of the crew: ``local``, ``ray`` or ``ray:HOST:PORT``.
        workers: number of runs at a time, or None for as many as fit.
        cpus: cores per run; None means one on a cluster, and all of them on this machine.
        gpus: GPUs per run, not shared with other runs; 0 lets runs share the available ones.
        hang_s: seconds without a sign of life (a line of output, a file that changes) after which a training is ended
            and resumed, or None for no limit.
    """

    on: str = LOCAL
    workers: int | None = 1
    cpus: int | None = None
    gpus: int = 0
    hang_s: float | None = HANG_S


class SweepWork:
    """Executes the runs of a sweep.

    Args:
        folder: folder of the sweep.
        configs: configurations of the runs, by name.
        values: values of the runs by name, see :class:`SweepRun`.
        order: decides which run trains next.
        tell: called with each run when it starts or ends.
        stop: when set, trainings save and end.
    """

    def __init__(
        self,
        folder: Path,
        configs: Mapping[str, Config],
        values: Mapping[str, dict[str, Any]],
        order: Order,
        tell: Callable[[SweepRun], None],
        stop: threading.Event,
    ) -> None:
        self._folder, self._configs, self._values = folder, configs, values
        self._order, self._tell, self._stop = order, tell, stop
        self._failures: dict[str, str] = {}
        self._busy: set[str] = set()

    def run(self, resources: Resources) -> dict[str, str]:
        """Train the runs; return the reason for each run that failed.

        Raises:
            ConfigError: there are too few GPUs for one run.
            TrainingError: files from a worker on another machine cannot be written here.
        """
        is_local = resources.on == LOCAL
        self._resources, self._is_away = resources, not is_local
        self._gpus = GpuShares(visible_gpus(), resources.gpus) if is_local else GpuShares([])
        most = self._gpus.places or len(self._configs)
        limits = Limits(quiet_s=resources.hang_s)
        with (
            self._ended_by_signals(),
            open_backend(
                resources.on, cpus=resources.cpus or 1, gpus=resources.gpus, name="imitate-sweep"
            ) as backend,
        ):
            workers = min(resources.workers or backend.places, most)
            try:
                with Crew[Training, int](prepare, workers, limits=limits, backend=backend) as crew:
                    for done in crew.as_completed(
                        self,
                        on_note=self._note,
                        on_loss=self._loss,
                        stopped=self._stop.is_set,
                    ):
                        self._end(done.item, done.result)
            except CancelledError:
                self._leave()
        return self._failures

    # ---- what the crew asks --------------------------------------------------------------------

    def __iter__(self) -> Iterator[Training]:
        """Return itself: the next item may depend on earlier results."""
        return self

    def __next__(self) -> Training:
        """Return the next training."""
        leg = self._order.next()
        if leg is None:
            raise StopIteration
        name, until_epoch = leg
        self._busy.add(name)
        self._tell(SweepRun(name, self._values[name], "running", {}))
        config = self._configs[name].with_overrides(
            {"experiment.name": name, "train.output_dir": str(self._folder.resolve())}
        )
        cpus = self._resources.cpus
        threads = {} if cpus is None else dict.fromkeys(THREADS, str(cpus))
        return Training(
            name,
            config.to_json(),
            str(self._folder.resolve()),
            until_epoch,
            variables={**threads, **trust_given(), **self._gpus.take(config.train.device)},
            away=self._is_away,
            files=self._saved(name),
            program=PROGRAM,
        )

    def _saved(self, name: str) -> dict[str, bytes]:
        """Return the files that a worker on another machine needs to resume a run."""
        if not self._is_away:
            return {}
        if folder := newest_run(self._folder / name):
            folder.clear_leftovers()
        return content_to_resume(self._folder / name)

    def _note(self, item: Training, changes: Changes) -> None:
        """Copy files that a worker on another machine has written.

        Raises:
            TrainingError: they cannot be written here; earlier files are complete.
        """
        try:
            received(changes, self._folder / item.name)
        except OSError as error:
            raise TrainingError(
                f"{self._folder / item.name}: cannot be written ({error.strerror}); make "
                "room, then resume with the same command"
            ) from error

    def _loss(self, item: Training, loss: Lost) -> bool:
        """Prepare a run whose worker was lost to be resumed from its latest files."""
        item.files = self._saved(item.name)
        return not self._stop.is_set()

    def _end(self, item: Training, result: int | Lost) -> None:
        """Record the end of a training."""
        self._gpus.give_back(item.variables)
        self._busy.discard(item.name)
        run, output = self._read(item.name), self._folder / item.name / OUTPUT
        if isinstance(result, Lost):
            run = replace(run, status=f"failed: {result.reason}; see {output}", results={})
        elif result and not run.results:
            run = replace(run, status=f"failed: see {output}")
        if run.status.startswith("failed"):
            self._failures[run.name] = run.status
        self._order.ended(run)
        self._tell(run)

    def _read(self, name: str) -> SweepRun:
        return read_run(self._folder / name, self._values[name])

    # ---- signals ---------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Wait until the trainings, whose workers have already ended, have saved and ended."""
        deadline = time.monotonic() + TRAINER_ENDS_S + 10.0
        for name in sorted(self._busy):
            folder = newest_run(self._folder / name)
            while not self._is_away and folder and folder.is_locked():
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_S)
            self._tell(self._read(name))

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        """Let the signals that end a training end the sweep; a second one raises KeyboardInterrupt.

        Shells let background commands ignore SIGINT, and Python keeps that. Outside the main thread, Python allows no
        handlers, so nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: Any) -> None:
            if self._stop.is_set() and number in (signal.SIGINT, signal.SIGTERM):
                raise KeyboardInterrupt  # a closed terminal sends SIGHUP more than once
            self._stop.set()

        before = {number: signal.signal(number, handle) for number in ending_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
