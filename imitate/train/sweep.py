"""Many runs from one configuration with alternatives: in parallel processes, resumable, with a table at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imitate.config import Config, load_config
from imitate.config.axes import Axes, combinations, expand
from imitate.config.loading import Source
from imitate.errors import ConfigError
from imitate.functional.over_seeds import FEWEST_SEEDS, Statistic
from imitate.run_folder import RunFolder, newest_run_folder, to_json, write_text
from imitate.train.curves import read_curves
from imitate.train.gpus import GpuShares, visible_gpus
from imitate.train.interrupts import ending_signals
from imitate.train.over_seeds import SEED, Setting, settings_of
from imitate.train.plot import draw_settings
from imitate.train.results_table import save_table
from imitate.train.setup import resolve

POLL_S = 0.2
TRAINER_ENDS_S = 30.0
"""Seconds in which a training saves and ends after its sweep was killed."""
# Not `-m imitate`: it is to end with the sweep, which holds the other end of its stdin.
_TRAINER = (
    "from imitate.processes import end_with_stdin; "
    f"end_with_stdin({TRAINER_ENDS_S}); "
    "from imitate.cli.main import main; main()"
)


@dataclass(frozen=True)
class SweepRun:
    """Run with one combination of values.

    Attributes:
        name: its values, also the name of its folder in the sweep's.
        values: by dotted key.
        status: 'finished', 'stopped early: ...', 'failed: ...', 'interrupted'; 'waiting' before it ran.
        results: content of the run's results.json; empty where there is none.
    """

    name: str
    values: dict[str, Any]
    status: str
    results: dict[str, Any]

    @property
    def is_over(self) -> bool:
        """True where nothing is left to do."""
        return self.status == "finished" or self.status.startswith("stopped early")


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep.

    Attributes:
        folder: holds the runs, ``sweep.json``, ``results.json`` and ``settings.{json,csv,md,tex}``.
        runs: in the order of the combinations.
        picture: curves of all settings (``curves.pdf`` lies beside it); None where no run is over.
        interrupted: a signal ended it; the same call resumes it.
        settings: runs that are over, those that differ only in their seed together.
    """

    folder: Path
    runs: tuple[SweepRun, ...]
    picture: Path | None
    interrupted: bool
    settings: tuple[Setting, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 all done, 1 a run failed, 130 interrupted."""
        if self.interrupted:
            return 130
        return 0 if all(run.is_over for run in self.runs) else 1


class Sweep:
    """Runs of one sweep in their folder, ``<output_dir>/<name>``.

    The same call with the same alternatives resumes the sweep: runs that are over are left alone,
    others are resumed from their last checkpoint.

    Args:
        source: configuration with lists of values to try, see :func:`imitate.config.axes.expand`.
        grid: further alternatives, ``"train.seed=[1, 2, 3]"``.
        overrides: ``"a.b=value"`` for all runs.
        dataset: demonstration file, in place of ``train.data``.
        output_dir: in place of ``train.output_dir``.
        name: of the sweep; by default the experiment's.

    Raises:
        ConfigError: a combination cannot work, or the folder holds another sweep.
    """

    def __init__(
        self,
        source: Source,
        grid: Iterable[str] = (),
        *,
        overrides: Iterable[str] = (),
        dataset: str | Path | None = None,
        output_dir: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        tree, self.axes = expand(source, grid)
        if not self.axes:
            raise ConfigError(
                'no list of values to try: write "seed": [1, 2, 3] in the configuration, or --grid train.seed=[1,2,3]'
            )
        self._configs = {
            combination: resolve(load_config(config, overrides), dataset, output_dir)
            for combination, config in combinations(tree, self.axes)
        }
        first = next(iter(self._configs.values()))
        self.folder = Path(first.train.output_dir).expanduser() / (name or first.experiment.name)
        self._claim()
        self._stop = threading.Event()
        self._gpus = GpuShares(visible_gpus())

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the names of the runs."""
        return tuple(self._configs)

    def run(
        self,
        workers: int = 1,
        on_change: Callable[[SweepRun], None] | None = None,
        statistic: Statistic = "mean",
    ) -> SweepResult:
        """Run the unfinished runs, ``workers`` at a time; ``on_change`` gets each that starts or ends.

        Raises:
            ConfigError: ``statistic`` needs more seeds than there are.
        """
        self.require_seeds(statistic)
        tell = on_change or (lambda run: None)
        previous = _raise_on_signals()
        try:
            with ThreadPoolExecutor(max_workers=workers) as pool:
                try:
                    futures = [pool.submit(self._one, name, tell) for name in self._configs]
                    for future in futures:
                        while not future.done():
                            time.sleep(POLL_S)
                        future.result()
                except KeyboardInterrupt:
                    self._stop.set()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        runs = tuple(self.state(name) for name in self._configs)
        return self._finished(runs, statistic)

    def require_seeds(self, statistic: Statistic) -> None:
        """Refuse a statistic that needs more seeds than the sweep has.

        Raises:
            ConfigError: the message names the number that it needs.
        """
        seeds = len(self.axes.get(SEED, ())) or 1
        if seeds < FEWEST_SEEDS[statistic]:
            raise ConfigError(
                f"--statistic {statistic} needs at least {FEWEST_SEEDS[statistic]} seeds, the sweep has {seeds}: "
                "add values to train.seed, or choose mean or median"
            )

    def settings(self, runs: Iterable[SweepRun]) -> list[Setting]:
        """Group the runs that are over into settings that differ in more than the seed."""
        over = [folder.path for run in runs if run.is_over and (folder := self._newest(run.name))]
        return settings_of(read_curves(over), self.axes) if over else []

    def state(self, name: str) -> SweepRun:
        """Return the state of a run, read from its folder."""
        folder = self._newest(name)
        values = {path: _at(self._configs[name], path) for path in self.axes}
        if folder is None:
            return SweepRun(name, values, "waiting", {})
        if not folder.results.is_file():
            return SweepRun(name, values, "interrupted", {})
        results = json.loads(folder.results.read_text(encoding="utf-8"))
        return SweepRun(name, values, str(results["status"]), results)

    def _one(self, name: str, tell: Callable[[SweepRun], None]) -> None:
        run = self.state(name)
        if run.is_over or self._stop.is_set():
            tell(run)
            return
        tell(SweepRun(name, run.values, "running", {}))
        where = self.folder / name
        where.mkdir(parents=True, exist_ok=True)
        folder = self._newest(name)
        if folder is None:
            config = where / "config_of_run.json"
            write_text(config, self._config(name).to_json() + "\n")
            arguments = ["--config", str(config)]
        else:
            # A failed run is tried again from its last checkpoint.
            folder.results.unlink(missing_ok=True)
            arguments = ["--resume", str(folder.path)]
            self._await_trainer(folder)
        command = [sys.executable, "-c", _TRAINER, "train", *arguments]
        with (
            (where / "output.txt").open("a", encoding="utf-8") as output,
            self._gpus.taken(self._configs[name].train.device) as variables,
        ):
            # A session of its own: Ctrl-C reaches it through us, once.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **variables},
                start_new_session=True,
            )
            while process.poll() is None:
                if self._stop.wait(POLL_S):
                    process.terminate()
                    process.wait()
        done = self.state(name)
        if process.returncode and not done.results:
            status = "interrupted" if self._stop.is_set() else f"failed: see {where / 'output.txt'}"
            done = SweepRun(name, done.values, status, {})
        tell(done)

    def _await_trainer(self, folder: RunFolder) -> None:
        """Wait for the trainer of a sweep that was killed: it saves and ends as soon as it notices."""
        deadline = time.monotonic() + TRAINER_ENDS_S + 10.0
        while folder.is_locked() and time.monotonic() < deadline and not self._stop.wait(POLL_S):
            pass

    def _config(self, name: str) -> Config:
        return self._configs[name].with_overrides(
            {"experiment.name": name, "train.output_dir": str(self.folder.resolve())}
        )

    def _newest(self, name: str) -> RunFolder | None:
        if not any((self.folder / name).glob("*/config.json")):
            return None
        return newest_run_folder(self.folder, name)

    def _claim(self) -> None:
        """Write the sweep's description, or check that it is the same."""
        path = self.folder / "sweep.json"
        content = {"axes": self.axes, "runs": list(self._configs)}
        if path.is_file():
            if json.loads(path.read_text(encoding="utf-8")) != json.loads(to_json(content)):
                raise ConfigError(
                    f"{self.folder}: holds a sweep over other values; choose another --name"
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(path, to_json(content) + "\n")

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


def table_rows(axes: Axes, runs: Iterable[SweepRun]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: values, success of the last and the best evaluation, losses, CPU seconds, status.

    A column that no run has a number for is left out.
    """
    runs = list(runs)
    shown: dict[str, list[str]] = {
        "last": [_success(run.results.get("final")) for run in runs],
        "best": [_success(run.results.get("best")) for run in runs],
        "train loss": [_number(run.results.get("train_loss"), ".4g") for run in runs],
        "valid loss": [_number(run.results.get("valid_loss"), ".4g") for run in runs],
        "CPU s": [_number(run.results.get("times", {}).get("train_cpu_s"), ".0f") for run in runs],
        "status": [run.status for run in runs],
    }
    shown = {name: column for name, column in shown.items() if set(column) != {"-"}}
    rows = [
        [*(json.dumps(value) for value in run.values.values()), *cells]
        for run, *cells in zip(runs, *shown.values(), strict=True)
    ]
    return [*axes, *shown], rows


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _success(entry: dict[str, Any] | None) -> str:
    if not entry:
        return "-"
    rate = f"{100 * entry['success_rate']:.0f} %"
    if "success_rate_95" not in entry:
        return rate
    low, high = entry["success_rate_95"]
    return f"{rate} ({100 * low:.0f} - {100 * high:.0f})"


def _at(config: Config, path: str) -> Any:
    node: Any = config.to_dict()
    for key in path.split("."):
        node = node[int(key)] if isinstance(node, list) else node[key]
    return node


def _raise_on_signals() -> dict[int, Any]:
    """Let the signals that end a training end the sweep, in the main thread; return the previous handlers.

    Shells let background commands ignore SIGINT, and Python leaves it so.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}

    def handle(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    return {number: signal.signal(number, handle) for number in ending_signals()}


def default_workers() -> int:
    """Return half of the cores: each run evaluates beside its training."""
    return max(1, (os.cpu_count() or 1) // 2)
