"""Trainings as the work of a crew's members: each a command of its own, which ends with the member that started it.

A member on this machine trains in the run's own folder. One on another machine trains in a folder of its own, from
which it sends what changes, checkpoints too: the folder of the sweep has the whole run, so that a member on any machine
can resume it.
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
"""Files are sent no more often than that this share of the time goes to it."""
TRAINER_ENDS_S = 30.0
"""Seconds in which a training saves and ends after its sweep was killed."""
SCRATCH = "IMITATE_SCRATCH"
"""Environment variable: a folder from which nothing is fetched any more once the member is gone."""
# Not `-m imitate`: it is to end with the member, which holds the other end of its stdin.
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
    """Item of a member: a run to begin or to resume.

    Attributes:
        name: of the run, and of the folder that holds its run folders.
        config: of a new run, as JSON; its ``train.output_dir`` is the folder of the sweep on the driver's machine.
        output_dir: the folder of the sweep.
        until_epoch: epoch after which the run pauses; None: it trains to the end.
        variables: environment variables, such as the GPUs that it sees.
        away: the member may be on another machine: it has a folder of its own, and sends what changes.
        files: where ``away``, content of the run so far, by path below ``output_dir/name``.
        program: Python program, which is given the arguments of the command line.
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
    """Make a member's function: from a training to the exit code of its process."""

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
    """Run the training to its end, and report while it shows signs of life."""
    sender = Sender(place) if item.away else None
    arguments = _arguments(item, place, lambda: reports(""))
    with appended(place / OUTPUT) as output:
        # A session of its own: Ctrl-C reaches it through the sweep, once.
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
                process.stdin.close()  # ends it, where this process is to end before it, and removes a scratch folder
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
    """Wait for the training of a member that was lost: it saves and ends as soon as it notices."""
    deadline = time.monotonic() + TRAINER_ENDS_S + 10.0
    while folder.is_locked() and time.monotonic() < deadline:
        beat()
        time.sleep(POLL_S)


class _Life:
    """Signs of life of a training: files that it writes, such as lines in ``metrics.jsonl`` and ``output.txt``."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._seen: dict[str, tuple[int, int]] = {}

    def shows(self) -> bool:
        """Return true if a file has changed since the last call."""
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
