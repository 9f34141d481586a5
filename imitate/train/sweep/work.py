"""The trainings of a sweep, run by workers on this or other machines; lost trainings are retried.

Each training is a subprocess that ends with the worker that started it. Trainings that run at the same time on this
machine have GPUs of their own.

A worker on this machine trains in the run's own folder. A worker on another machine trains in its own folder and sends
all changes, including checkpoints: the sweep's folder then has the whole run, so that a worker on any machine can
resume it. The order of the messages makes interruptions harmless. A checkpoint never arrives without the metrics up to
it: the sender reads checkpoints first, and the receiver writes them last. Files of a run are either appended to or
replaced as a whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from imitate.config import Config
from imitate.crew import CancelledError, Crew, Limits, Lost, Reports
from imitate.crew.places import open_backend
from imitate.errors import ConfigError, TrainingError, UserError
from imitate.system.plain_files import appended, edited, fresh, link, read_text, replaced
from imitate.system.processes import LOCAL, ended_by_signals
from imitate.system.run_folder import RunFolder, runs_in, write_text
from imitate.system.trust import trust_given
from imitate.train.sweep.state import Order, SweepRun, newest_run, read_run

VISIBLE = "CUDA_VISIBLE_DEVICES"


class GpuShares:
    """Assigns GPUs to processes.

    Args:
        names: GPU names as in ``CUDA_VISIBLE_DEVICES``.
        each: GPUs per process, used by it alone; 0 gives each process the GPU with the fewest users.
    """

    def __init__(self, names: Sequence[str], each: int = 0) -> None:
        self._users = dict.fromkeys(names, 0)
        self._each = each

    @property
    def places(self) -> int | None:
        """Return the number of processes for which there are GPUs, or None if there is no limit.

        Raises:
            ConfigError: there are too few GPUs for one process.
        """
        if not self._each:
            return None
        if len(self._users) < self._each:
            raise ConfigError(
                f"--gpus {self._each}: this machine has {len(self._users)} visible GPUs; ask "
                f"for fewer, or check {VISIBLE}"
            )
        return len(self._users) // self._each

    def take(self, device: str | None = None) -> dict[str, str]:
        """Assign GPUs to a process; return its additional environment variables.

        Args:
            device: ``train.device`` of the process; if it has a number or is ``cpu``, nothing is assigned.
        """
        if device not in (None, "cuda") or (len(self._users) < 2 and not self._each):
            return {}
        by_users = sorted(self._users, key=self._users.__getitem__)
        taken = by_users[: self._each or 1]
        for name in taken:
            self._users[name] += 1
        return {VISIBLE: ",".join(taken)}

    def give_back(self, variables: Mapping[str, str]) -> None:
        """Release the GPUs that :meth:`take` assigned."""
        for name in variables.get(VISIBLE, "").split(","):
            if name in self._users:
                self._users[name] -= 1


def visible_gpus(variables: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs that this process may use, named as in ``CUDA_VISIBLE_DEVICES``."""
    named = variables.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


POLL_S = 0.2
LOOK_S = 1.0
"""Seconds between two checks for signs of life of a training."""
SENDING_SHARE = 0.05
"""Largest share of the time that is spent on sending files."""
TRAINER_ENDS_S = 30.0
"""Seconds that a training has to save and end after its sweep was killed."""
SCRATCH = "IMITATE_SCRATCH"
"""Environment variable with the scratch folder of a training on another machine, which is removed at its end."""
# This program is used instead of `-m imitate`, because the process must end with the worker, which holds the other
# end of its stdin.
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
class TrainingItem:
    """Work item: a run to begin or to resume.

    Attributes:
        name: name of the run, and of the folder with its run folders.
        config: configuration of a new run, as JSON; its ``train.output_dir`` is the folder of the sweep on the driver's
            machine.
        output_dir: the folder of the sweep.
        until_epoch: epoch after which the run pauses, or None to train to the end.
        variables: environment variables, such as the GPUs that it sees.
        away: true if the worker may be on another machine; it then trains in its own folder and sends the changes.
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


def prepare(reports: Reports) -> Callable[[TrainingItem], int]:
    """Make a worker's function, which runs a training and returns the exit code of its process."""

    def work(item: TrainingItem) -> int:
        with _place(item) as place:
            return _trained(item, place, reports)

    return work


@contextmanager
def _place(item: TrainingItem) -> Iterator[Path]:
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


def _trained(item: TrainingItem, place: Path, reports: Reports) -> int:
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
                process.stdin.close()  # the training ends when it notices this, and removes its scratch folder
    return process.returncode


def _away(item: TrainingItem, place: Path) -> dict[str, str]:
    """Return the environment variables of a training on another machine."""
    if not item.away:
        return {}
    return {SCRATCH: str(place.parent), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _arguments(item: TrainingItem, place: Path, beat: Callable[[], None]) -> list[str]:
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


def _last_error(output: Path) -> str:
    """Return the last error that a training printed, followed by "; ", or '' if it printed none."""
    with suppress(OSError, UserError):
        lines = read_text(output).splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return f"{errors[-1]}; " if errors else ""
    return ""


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
            except OSError:  # the file was removed meanwhile
                continue
            seen[str(path)] = (state.st_size, state.st_mtime_ns)
        changed, self._seen = seen != self._seen, seen
        return changed


def _send(sender: Sender | None, reports: Reports) -> None:
    if sender is not None:
        changes = sender.changes()
        if changes.parts:
            reports.note(changes)


HANG_S = 3600.0
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Resources:
    """Where the trainings run, and with how many resources.

    Attributes:
        on: back end of the workers: ``local``, ``ray`` or ``ray:HOST:PORT``.
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
            # The first signal sets the stop flag; a second one raises KeyboardInterrupt.
            ended_by_signals(self._stop.is_set, lambda number: self._stop.set()),
            open_backend(
                resources.on, cpus=resources.cpus or 1, gpus=resources.gpus, name="imitate-sweep"
            ) as backend,
        ):
            workers = min(resources.workers or backend.places, most)
            try:
                with Crew[TrainingItem, int](
                    prepare, workers, limits=limits, backend=backend
                ) as crew:
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

    # ---- iterator and callbacks of the crew -----------------------------------------------------

    def __iter__(self) -> Iterator[TrainingItem]:
        """Return this object, an iterator: the next item may depend on earlier results."""
        return self

    def __next__(self) -> TrainingItem:
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
        return TrainingItem(
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

    def _note(self, item: TrainingItem, changes: FolderChanges) -> None:
        """Copy files that a worker on another machine has written.

        Raises:
            TrainingError: the files cannot be written here; earlier files are complete.
        """
        try:
            received(changes, self._folder / item.name)
        except OSError as error:
            raise TrainingError(
                f"{self._folder / item.name}: cannot be written ({error.strerror}); make "
                "room, then resume with the same command"
            ) from error

    def _loss(self, item: TrainingItem, loss: Lost) -> bool:
        """Prepare a run whose worker was lost to resume from its latest files; return false if the sweep is ending."""
        item.files = self._saved(item.name)
        return not self._stop.is_set()

    def _end(self, item: TrainingItem, result: int | Lost) -> None:
        """Record the end of a training."""
        self._gpus.give_back(item.variables)
        self._busy.discard(item.name)
        run, output = self._read(item.name), self._folder / item.name / OUTPUT
        if isinstance(result, Lost):
            run = replace(run, status=f"failed: {result.reason}; see {output}", results={})
        elif result and not run.results:
            run = replace(run, status=f"failed: {_last_error(output)}see {output}")
        if run.status.startswith("failed"):
            self._failures[run.name] = run.status
        self._order.ended(run)
        self._tell(run)

    def _read(self, name: str) -> SweepRun:
        return read_run(self._folder / name, self._values[name])

    # ---- the end ---------------------------------------------------------------------------------

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


@dataclass(frozen=True)
class Part:
    """Change of one file: new content, the content of another file, or deletion.

    Attributes:
        path: path relative to the folder, with slashes.
        offset: number of bytes of the file that stay.
        data: bytes to write after them.
        same_as: path of a file with the same content.
    """

    path: str
    offset: int = 0
    data: bytes | None = None
    same_as: str | None = None


@dataclass(frozen=True)
class FolderChanges:
    """Changes in the order in which they must be made.

    Attributes:
        root: the sender's folder; in ``.json`` files it is replaced by the receiver's folder.
        parts: the changes, in order.
    """

    root: str
    parts: tuple[Part, ...]


_State = tuple[int, int, int]
"""Inode, size and time of a file."""


class Sender:
    """Finds the changes in a folder to send; the receiver already has its initial content."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sent = {path: _state(os.stat(root / path)) for path in _files(root)}

    def changes(self) -> FolderChanges:
        """Return the changes since the last call."""
        present, parts = _files(self._root), []
        sources: dict[int, str] = {}  # by inode, path of a file whose content the receiver has
        for path in sorted(present, key=lambda path: (not _is_checkpoint(path), path)):
            with suppress(FileNotFoundError):  # the run may replace or remove files meanwhile
                part = self._part(path, sources)
                if part is not None:
                    parts.append(part)
        parts.sort(key=lambda part: (_is_checkpoint(part.path), part.same_as is not None))
        gone = [Part(path) for path in self._sent if path not in present]
        for part in gone:
            del self._sent[part.path]
        return FolderChanges(str(self._root), (*parts, *gone))

    def _part(self, path: str, sources: dict[int, str]) -> Part | None:
        with (self._root / path).open("rb") as file:
            state = _state(os.fstat(file.fileno()))
            inode, size, _ = state
            before = self._sent.get(path)
            self._sent[path] = state
            if before == state:
                sources.setdefault(inode, path)
                return None
            if inode in sources:
                return Part(path, same_as=sources[inode])
            sources[inode] = path
            offset = 0
            if before and _is_appended(path) and before[0] == inode and before[1] <= size:
                offset = before[1]
            file.seek(offset)
            return Part(path, offset, file.read(size - offset))


def received(changes: FolderChanges, folder: Path) -> None:
    """Make changes in a folder; files are replaced atomically.

    Raises:
        TrainingError: a path leads out of the folder, or a change does not fit the existing files.
    """
    for part in changes.parts:
        target = _inside(folder, part.path)
        if part.same_as is not None:
            _link(target, _inside(folder, part.same_as))
        elif part.data is None:
            target.unlink(missing_ok=True)
        elif part.offset == 0:
            _write(target, _with_root(part, changes.root, folder))
        elif not target.is_file() or target.stat().st_size < part.offset:
            raise TrainingError(
                f"{target}: received the bytes from {part.offset} on without the earlier ones"
            )
        else:
            with edited(target) as file:
                file.truncate(part.offset)
                file.seek(part.offset)
                file.write(part.data)


def content_to_resume(folder: Path) -> dict[str, bytes]:
    """Return by path the files that another machine needs to resume the newest run below a folder.

    Videos and TensorBoard events are left out. The output of earlier tries is included, so that new output is appended.
    """
    wanted = [*folder.glob("*")]
    for run in runs_in(folder)[-1:]:
        wanted += [*run.glob("*"), *(run / "checkpoints").glob("*.pth")]
    names = {path.relative_to(folder).as_posix() for path in wanted if path.is_file()}
    return {name: (folder / name).read_bytes() for name in sorted(names & set(_files(folder)))}


def lay_out(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        target = _inside(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with fresh(target) as file:
            file.write(data)


def _files(root: Path) -> list[str]:
    """Return the paths of all files except temporary files and the folder's lock."""
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if not path.name.startswith(".") and path.is_file()
    ]


def _state(stat: os.stat_result) -> _State:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_checkpoint(path: str) -> bool:
    return path.endswith(".pth")


def _is_appended(path: str) -> bool:
    """Return true for files that only grow, of which only the new part is sent; other files are sent whole."""
    return path.endswith((".jsonl", ".txt")) or "tfevents" in path


def _inside(folder: Path, path: str) -> Path:
    named = PurePosixPath(path)
    if named.is_absolute() or ".." in named.parts or not named.parts:
        raise TrainingError(f"'{path}' is not a path inside a run's folder")
    return folder / named


def _with_root(part: Part, root: str, folder: Path) -> bytes:
    data = part.data or b""
    if not part.path.endswith(".json"):
        return data
    there, here = Path(root), folder
    for old, new in ((there, here), (there.parent, here.parent)):
        data = data.replace(_as_json(old), _as_json(new))
    return data


def _as_json(path: Path) -> bytes:
    return json.dumps(str(path))[1:-1].encode()


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target) as new, fresh(new) as file:
        file.write(data)


def _link(target: Path, source: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    link(source, target)
