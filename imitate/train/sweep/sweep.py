"""Sweeps: one run per combination of alternative values, in parallel, resumable, with a table at the end."""

import json
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from imitate.config.axes import CONFIG, expand_all
from imitate.config.loading import Source
from imitate.errors import ConfigError
from imitate.evaluate.environments import environments, trust_named
from imitate.system.plain_files import read_json
from imitate.system.processes import available_cores
from imitate.system.run_folder import RunFolder, runs_in, to_json, write_text
from imitate.system.statistics import FEWEST_SEEDS, Statistic
from imitate.train.setup import load_resolved
from imitate.train.sweep.curves import SEED, Setting, read_curves
from imitate.train.sweep.over_seeds import settings_of
from imitate.train.sweep.plot import draw_settings
from imitate.train.sweep.results_table import save_table
from imitate.train.sweep.state import (
    Halving,
    InTurn,
    Order,
    SweepResult,
    SweepRun,
    halving_of,
    newest_run,
    read_run,
    table_rows,
)
from imitate.train.sweep.work import Resources, SweepWork

__all__ = ["Resources", "Sweep", "SweepResult", "SweepRun", "default_workers", "table_rows"]


logger = logging.getLogger(__name__)


LONGEST_NAME = 60
"""Most letters of a folder name made of the names of all configurations; a longer one has only the first name."""


class Sweep:
    """Runs of one sweep in their folder, ``<output_dir>/<name>``.

    The same call with the same alternatives resumes the sweep: finished runs are kept, others are resumed from their
    last checkpoint.

    Args:
        sources: one or several configurations, with lists of values to try; see :func:`imitate.config.axes.expand`.
        grid: further alternatives for each, such as ``"train.seed=[1, 2, 3]"``.
        overrides: ``"a.b=value"`` overrides for all runs.
        dataset: demonstration file that replaces ``train.data``.
        output_dir: folder that replaces ``train.output_dir``.
        name: name of the sweep; by default the experiment's name, or the names of several configurations.

    Raises:
        ConfigError: a combination is invalid, or the folder holds another sweep.
    """

    def __init__(
        self,
        sources: Source | list[Source],
        grid: Iterable[str] = (),
        *,
        overrides: Iterable[str] = (),
        dataset: str | Path | None = None,
        output_dir: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        if not sources:
            raise ConfigError("name a configuration, such as imitate sweep my_sweep.json")
        several = sources if isinstance(sources, list) else [sources]
        overrides = list(overrides)
        combinations, self.axes = expand_all(several, grid, overrides)
        if not self.axes:
            raise ConfigError(
                'no list of values to try: write "seed": [1, 2, 3] in the configuration, or --grid train.seed=[1,2,3]'
            )
        said: dict[str, None] = {}
        algorithms = {one.config.algo_name for one in combinations}
        self._runs = {}
        for one in combinations:
            try:
                config = load_resolved(
                    one.config, overrides, dataset, output_dir, one.keys, said.setdefault
                )
            except ConfigError as error:
                if len(algorithms) == 1:
                    raise
                raise ConfigError(f"{one.name}: {error}") from None
            self._runs[one.name] = replace(one, config=config)
        for line in said:
            logger.warning(line)
        self._configs = {name: one.config for name, one in self._runs.items()}
        for config in self._configs.values():
            trust_named(config)
            environments(config)  # refuses untrusted modules before the first process starts
        first = next(iter(self._configs.values()))
        names = [str(name) for name in self.axes.get(CONFIG, [first.experiment.name])]
        named = "-".join(names)
        if len(named) > LONGEST_NAME:
            named = f"{names[0]}-and-{len(names) - 1}-more"
        self.folder = Path(first.train.output_dir).expanduser() / (name or named)
        self._check_free()
        self._stop = threading.Event()

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the names of the runs."""
        return tuple(self._configs)

    def run(
        self,
        workers: int | None = 1,
        on_change: Callable[[SweepRun], None] | None = None,
        statistic: Statistic = "mean",
        *,
        resources: Resources | None = None,
        halving: Halving | None = None,
    ) -> SweepResult:
        """Run the unfinished runs.

        Args:
            workers: number of runs at a time.
            on_change: called with each run when it starts or ends.
            statistic: statistic over the seeds.
            resources: machines, cores and GPUs of the trainings; replaces ``workers``.
            halving: settings to train only promising runs to the end, or None to train all.

        Raises:
            ConfigError: ``statistic`` needs more seeds than there are, the runs cannot be compared during training,
                another process runs this sweep, or the folder of a run is a link.
        """
        self.require_seeds(statistic)
        self.folder.mkdir(parents=True, exist_ok=True)
        with RunFolder(self.folder).locked():
            return self._run(
                resources or Resources(workers=workers),
                on_change or (lambda run: None),
                statistic,
                halving,
            )

    def _run(
        self,
        resources: Resources,
        tell: Callable[[SweepRun], None],
        statistic: Statistic,
        halving: Halving | None,
    ) -> SweepResult:
        write_text(self.folder / "sweep.json", to_json(self._description) + "\n")
        for place in map(self.folder.joinpath, self._configs):
            for folder in (place, *runs_in(place)):
                if folder.is_symlink():
                    raise ConfigError(
                        f"{folder}: is a link, and runs are not written through links: copy the folder"
                    )
        states = [self.state(name) for name in self._configs]
        order: Order = InTurn(states)
        if halving is not None:
            order = halving_of(halving, self._configs, states, self.folder)
        for run in states:
            if run.is_over:
                tell(run)
        values = {run.name: run.values for run in states}
        work = SweepWork(self.folder, self._configs, values, order, tell, self._stop)
        failures = work.run(resources)
        runs = tuple(self._state(name, failures) for name in self._configs)
        if not self._stop.is_set():
            runs = tuple(map(order.final, runs))
        return self._finished(runs, statistic)

    def require_seeds(self, statistic: Statistic) -> None:
        """Refuse a statistic that needs more seeds than the sweep has.

        Raises:
            ConfigError: the sweep has too few seeds; the message names the number needed.
        """
        seeds = len({run.values.get(SEED) for run in self._runs.values()})
        if seeds < FEWEST_SEEDS[statistic]:
            raise ConfigError(
                f"--statistic {statistic} needs at least {FEWEST_SEEDS[statistic]} seeds, the sweep has {seeds}: "
                "add values to train.seed, or choose mean or median"
            )

    def settings(self, runs: Iterable[SweepRun]) -> list[Setting]:
        """Group the finished runs into settings, which differ in more than the seed."""
        places = [self.folder / run.name for run in runs if run.is_over]
        over = [folder.path for place in places if (folder := newest_run(place))]
        values = {name: run.values for name, run in self._runs.items()}
        return settings_of(read_curves(over), values) if over else []

    def state(self, name: str) -> SweepRun:
        """Return the state of a run, read from its folder."""
        return read_run(self.folder / name, self._runs[name].values)

    def _state(self, name: str, failures: dict[str, str]) -> SweepRun:
        run = self.state(name)
        return replace(run, status=failures[name]) if name in failures and not run.results else run

    def _check_free(self) -> None:
        """Refuse a folder that holds another sweep.

        Raises:
            ConfigError: the folder holds another sweep.
        """
        path = self.folder / "sweep.json"
        if path.is_file() and read_json(path) != json.loads(to_json(self._description)):
            raise ConfigError(
                f"{self.folder}: holds a sweep over other values; choose another --name"
            )

    @property
    def _description(self) -> dict[str, Any]:
        """Content of ``sweep.json``."""
        return {"axes": self.axes, "runs": list(self._runs)}

    def _finished(self, runs: tuple[SweepRun, ...], statistic: Statistic) -> SweepResult:
        rows = [
            {"name": run.name, "values": run.values, "status": run.status, "results": run.results}
            for run in runs
        ]
        write_text(self.folder / "results.json", to_json(rows, indent=2) + "\n")
        picture, settings = None, self.settings(runs)
        if settings:
            for form in ("json", "csv", "md", "tex"):
                save_table(settings, statistic, self.folder / f"settings.{form}")
            pictures = [self.folder / "curves.png", self.folder / "curves.pdf"]
            picture = draw_settings(settings, pictures, statistic=statistic)[0]
        return SweepResult(self.folder, runs, picture, self._stop.is_set(), tuple(settings))


def default_workers(cpus: int | None = None) -> int:
    """Return the number of runs at a time here: half of the cores, because each run evaluates while it trains.

    Args:
        cpus: cores per run, including evaluations.
    """
    return max(1, available_cores() // (cpus or 2))
