"""Trainings as jobs of a crew's workers: each is a subprocess that ends with the worker that started it.

A worker on this machine trains in the run's own folder. A worker on another machine trains in its own folder and sends
all changes, including checkpoints: the sweep's folder then has the whole run, so that a worker on any machine can
resume it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from imitate.crew import Reports
from imitate.system.plain_files import appended
from imitate.system.run_folder import RunFolder, runs_in, write_text
from imitate.train.run_copy import Sender, lay_out

POLL_S = 0.2
LOOK_S = 1.0
"""Seconds between two looks for signs of life of a training."""
SENDING_SHARE = 0.05
"""Largest share of the time that is spent on sending files."""
TRAINER_ENDS_S = 30.0
"""Seconds that a training has to save and end after its sweep was killed."""
SCRATCH = "IMITATE_SCRATCH"
"""Environment variable: a folder from which nothing is fetched after the worker has ended."""
# Not `-m imitate`: the process must end with the worker, which holds the other end of its stdin.
PROGRAM = f"""
import os
from imitate.system.processes import end_with_stdin
scratch = os.environ.get("{SCRATCH}")
end_with_stdin(0.0 if scratch else {TRAINER_ENDS_S}, scratch)
from imitate.cli.main import main
main()
"""
CONFIG = "config_of_run.json"
OUTPUT = "output.txt"


@dataclass
class Training:
    """Work item: a run to begin or to resume.

    Attributes:
        name: name of the run, and of the folder with its run folders.
        config: configuration of a new run, as JSON; its ``train.output_dir`` is the folder of the sweep on the driver's
            machine.
        output_dir: the folder of the sweep.
        until_epoch: epoch after which the run pauses, or None to train to the end.
        variables: environment variables, such as the GPUs that it sees.
        away: true if the worker may be on another machine, has its own folder and sends changes.
        files: if ``away``, the run's files so far, by path below ``output_dir/name``.
        program: Python program that receives the command-line arguments.
    """

    name: str
    config: str
    output_dir: str
    until_epoch: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    away: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    program: str = PROGRAM


def prepare(reports: Reports) -> Callable[[Training], int]:
    """Make a worker's function, which runs a training and returns the exit code of its process."""

    def work(item: Training) -> int:
        with _place(item) as place:
            return _trained(item, place, reports)

    return work


@contextmanager
def _place(item: Training) -> Iterator[Path]:
    """Yield the folder ``output_dir/name`` in which this machine trains."""
    if not item.away:
        place = Path(item.output_dir, item.name)
        place.mkdir(parents=True, exist_ok=True)
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="imitate-run-") as scratch:
        place = Path(scratch, item.name)
        lay_out(place, item.files)
        yield place


def _trained(item: Training, place: Path, reports: Reports) -> int:
    """Run the training to its end, and report each sign of life."""
    sender = Sender(place) if item.away else None
    arguments = _arguments(item, place, lambda: reports(""))
    with appended(place / OUTPUT) as output:
        # Start a new session: Ctrl-C then reaches the training only through the sweep, once.
        process = subprocess.Popen(
            [sys.executable, "-c", item.program, "train", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **item.variables, **_away(item, place)},
            start_new_session=True,
        )
        try:
            life, due = _Life(place), time.monotonic() + LOOK_S
            while process.poll() is None:
                time.sleep(POLL_S)
                if time.monotonic() < due:
                    continue
                began = time.monotonic()
                if life.shows():
                    reports("")
                    _send(sender, reports)
                due = time.monotonic() + max(LOOK_S, (time.monotonic() - began) / SENDING_SHARE)
            _send(sender, reports)
        finally:
            if process.stdin is not None:
                process.stdin.close()  # ends the training if it still runs, and removes a scratch folder
    return process.returncode


def _away(item: Training, place: Path) -> dict[str, str]:
    """Return the environment variables of a training on another machine."""
    if not item.away:
        return {}
    return {SCRATCH: str(place.parent), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _arguments(item: Training, place: Path, beat: Callable[[], None]) -> list[str]:
    """Return the arguments of ``imitate train``: a run that was begun is resumed from its last checkpoint."""
    pause = [] if item.until_epoch is None else ["--until-epoch", str(item.until_epoch)]
    begun = runs_in(place)
    if begun:
        folder = RunFolder(begun[-1])
        _await_end(folder, beat)
        folder.results.unlink(missing_ok=True)
        return [str(folder.path), "--resume", *pause]
    write_text(place / CONFIG, item.config + "\n")
    return ["--config", str(place / CONFIG), "--output-dir", str(place.parent), *pause]


def _await_end(folder: RunFolder, beat: Callable[[], None]) -> None:
    """Wait for the training of a lost worker: it saves and ends as soon as it notices."""
    deadline = time.monotonic() + TRAINER_ENDS_S + 10.0
    while folder.is_locked() and time.monotonic() < deadline:
        beat()
        time.sleep(POLL_S)


class _Life:
    """Detects signs of life of a training: changes to its files, such as ``metrics.jsonl`` and ``output.txt``."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._seen: dict[str, tuple[int, int]] = {}

    def shows(self) -> bool:
        """Return true if any file has changed since the last call."""
        seen = {}
        for path in self._place.rglob("*"):
            try:
                state = path.stat()
            except OSError:  # removed meanwhile
                continue
            seen[str(path)] = (state.st_size, state.st_mtime_ns)
        changed, self._seen = seen != self._seen, seen
        return changed


def _send(sender: Sender | None, reports: Reports) -> None:
    if sender is not None:
        changes = sender.changes()
        if changes.parts:
            reports.note(changes)
