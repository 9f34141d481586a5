"""Folder of one run: `<output_dir>/<name>/<timestamp>/`. Files of a run are never deleted."""

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from imitate.errors import CheckpointError, ConfigError
from imitate.system.missing import no_such
from imitate.system.plain_files import check_not_linked, locked
from imitate.system.plain_files import write_text as write_text
from imitate.system.recognition import LEROBOT_WEIGHTS, diagnosis, lerobot_policy, recognise

RUNS = Path("runs")
"""Default folder of all runs."""
# Order in which the best checkpoint of a run folder is chosen. Validation loss is a poor measure, so it is last.
BEST_FIRST = ("best.pth", "best_return.pth", "last.pth", "best_valid.pth")


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run."""

    path: Path

    @property
    def config(self) -> Path:
        """File of the resolved configuration."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """File with a JSON line per epoch and per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def results(self) -> Path:
        """File of the run's outcome, written at its end."""
        return self.path / "results.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def last(self) -> Path:
        """Checkpoint to resume from."""
        return self.checkpoints / "last.pth"

    @property
    def videos(self) -> Path:
        """Folder of evaluation videos."""
        return self.path / "videos"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard events."""
        return self.path / "tb"

    @property
    def log(self) -> Path:
        """Log of the lines on the terminal."""
        return self.path / "log.txt"

    @property
    def curve(self) -> Path:
        """Picture of the learning curve."""
        return self.path / "learning_curve.png"

    def make_parts(self) -> None:
        """Create missing subfolders, because empty folders may get lost when a run is copied."""
        self.checkpoints.mkdir(exist_ok=True)
        self.videos.mkdir(exist_ok=True)

    def clear_leftovers(self) -> None:
        """Remove incomplete files of a killed process."""
        for pattern in (".*.partial", ".metrics.jsonl.*", ".config.json.*"):
            for path in (*self.path.glob(pattern), *self.checkpoints.glob(pattern)):
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run folder for one training process; the system releases the lock when the process ends."""
        try:
            parts = (self.checkpoints, self.videos, self.tensorboard, self.metrics)
            for part in (*parts, self.path / "wandb"):
                check_not_linked(part)
            handle = self._lock(make=True)
        except BlockingIOError:
            raise ConfigError(
                f"{self.path}: another process is training in this run folder; wait for it or stop it first"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{error.filename}: this run folder cannot be locked for training ({error.strerror})"
            ) from error
        with handle:
            yield

    def is_locked(self) -> bool:
        """Return true if another process trains in this folder."""
        try:
            with self._lock(make=False):
                return False
        except (BlockingIOError, PermissionError):
            return True
        except OSError:  # it is missing, or is not a regular file
            return False

    def _lock(self, *, make: bool) -> IO[bytes]:
        # by_process: forked data workers must not hold the lock after the trainer was killed
        path = self.path / ".lock"
        return locked(path, wait=False, make=make, by_process=True, needed=False)


def create_run_folder(output_dir: str | Path, name: str) -> RunFolder:
    """Make a new run folder; two runs that start in the same second get two folders.

    Raises:
        ConfigError: the folder cannot be made there.
    """
    parent = Path(output_dir).expanduser() / name
    stamp = datetime.now().strftime("%Y%m%d%H%M%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1000):
            folder = RunFolder(parent / (stamp if attempt == 0 else f"{stamp}_{attempt}"))
            with contextlib.suppress(FileExistsError):
                folder.path.mkdir()
                folder.make_parts()
                return folder
    except OSError as error:
        raise ConfigError(
            f"train.output_dir: {parent} cannot be created ({error.strerror}); choose another with --output-dir"
        ) from error
    raise ConfigError(
        f"train.output_dir: {parent} already has 1000 runs that started in this second; wait a second"
    )


def open_run_folder(path: str | Path) -> RunFolder:
    """Open an existing run, given by its folder, a checkpoint in it, or a folder of runs (then the newest run).

    Raises:
        CheckpointError: there is no such run, or the runs have several names.
    """
    place = existing(path, "run")
    if place.is_file() and (place.parent.parent / "config.json").is_file():
        place = place.parent.parent
    folder = RunFolder(place)
    if not folder.config.is_file():
        runs = runs_in(place) or runs_in(only_name(place))
        if runs:
            return RunFolder(runs[-1])
        raise CheckpointError(
            diagnosis(path)
            or f"{path}: not a run folder (no config.json in it), and none is below it; give "
            "<output_dir>/<name>/<timestamp>"
        )
    found = recognise(path)
    if found is not None and found.kind != "run":
        raise CheckpointError(f"{path}: is {found.what}: {found.advice}")
    return folder


def newest_run_folder(output_dir: str | Path, name: str) -> RunFolder:
    """Return the run of this name that started last.

    Raises:
        CheckpointError: there is no such run.
    """
    parent = Path(output_dir).expanduser() / name
    runs = runs_in(parent)
    if not runs:
        raise CheckpointError(f"{parent}: no run to resume there; start one without --resume")
    return RunFolder(runs[-1])


def runs_in(parent: Path) -> list[Path]:
    """Return the folders of the runs below the folder of a name, ordered by start time."""
    runs = [path for path in parent.glob("*") if (path / "config.json").is_file()]
    return sorted(runs, key=_start_order)


def existing(path: str | Path, what: str) -> Path:
    """Return the path if it exists; else ``runs/<path>`` if that exists, so that a run can be given by its name."""
    place = Path(path).expanduser()
    for found in (place, RUNS / place):
        if found.exists():
            return found
    raise CheckpointError(no_such(path, what))


def only_name(path: Path) -> Path:
    """Return the folder ``<output_dir>/<name>`` if only one name in an output folder has runs; the path if none has.

    Raises:
        CheckpointError: several names have runs.
    """
    named = sorted(child for child in path.glob("*") if runs_in(child))
    if len(named) > 1:
        raise CheckpointError(
            f"{path}: has runs of several names; give one of them: {', '.join(map(str, named))}"
        )
    return named[0] if named else path


def _start_order(path: Path) -> tuple[str, int]:
    stamp, _, attempt = path.name.partition("_")
    return stamp, int(attempt) if attempt.isdecimal() else 0


def find_checkpoint(agent: str | Path) -> Path:
    """Return the checkpoint of a path: the file itself, or the best (else the last) one of a run folder.

    For a folder of runs (``<output_dir>/<name>``) the newest run with a checkpoint is used, also for an
    ``<output_dir>`` with runs of only one name; for a policy folder of LeRobot, the path of its weights is returned.

    Raises:
        CheckpointError: there is no checkpoint, or the runs have several names.
    """
    path = existing(agent, "checkpoint")
    if not path.is_dir():
        return path
    newest_first = runs_in(path)[::-1]
    for folder in (path / "checkpoints", path, *(run / "checkpoints" for run in newest_first)):
        for name in BEST_FIRST:
            if (folder / name).is_file():
                return folder / name
    theirs = lerobot_policy(path)
    if theirs is not None and (theirs / LEROBOT_WEIGHTS).is_file():
        return theirs / LEROBOT_WEIGHTS
    found = recognise(path)
    if found is not None and found.kind != "run":
        raise CheckpointError(f"{path}: is {found.what}: {found.advice}")
    named = only_name(path)
    if named != path:
        return find_checkpoint(named)
    of_a_run = f"the run {newest_first[0]}" if newest_first else "it"
    raise CheckpointError(
        f"{path}: {of_a_run} has no checkpoint (looked for {', '.join(BEST_FIRST)}); give a .pth file or a run folder"
    )


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that every reader accepts: a number that is not finite becomes null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
