"""Definition of dataset formats (reading, writing, detection), the report of a conversion, and errors of damaged files.

Reading returns a :class:`OpenedDataset`, which yields its demos one at a time, so that a conversion keeps only one
episode in memory. Writing consumes the demos one by one.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from imitate.data.file.episode import Episode
from imitate.errors import DatasetError, UserError
from imitate.system.extras import missing
from imitate.system.memory import check_claim
from imitate.system.recognition import diagnosis, is_lfs_pointer
from imitate.system.text import counted


@dataclass
class ConversionReport:
    """Report of a conversion: the arrays and attributes that were kept, renamed, changed, synthesised or dropped.

    Attributes:
        source: path of the source.
        source_format: format of the source.
        target: path of the target.
        target_format: format of the target.
        demos: number of written demos.
        steps: number of steps in all demos.
        kept: unchanged arrays and attributes.
        renamed: new names by old names.
        changed: description of the change of the values, by name.
        synthesised: origin of values that the source does not have, by name.
        dropped: reason why an array or attribute was dropped, by name.
        doubts: reason why values may be wrong, by name; a training on the dataset reports them too.
        notes: further facts that the user should know.
    """

    source: str = ""
    source_format: str = ""
    target: str = ""
    target_format: str = ""
    demos: int = 0
    steps: int = 0
    kept: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    synthesised: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def keep(self, *names: str) -> None:
        """Add the name of an unchanged array or attribute; repetitions have no effect."""
        self.kept += [name for name in dict.fromkeys(names) if name not in self.kept]

    def note(self, text: str) -> None:
        """Add a note, unless the report already has it."""
        if text not in self.notes:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [
            f"{self.source} ({self.source_format}) -> {self.target} ({self.target_format}): "
            f"{counted(self.demos, 'demo')}, {counted(self.steps, 'step')}"
        ]
        if self.kept:
            lines.append(f"  kept: {', '.join(self.kept)}")
        lines += [f"  renamed: {old} -> {new}" for old, new in self.renamed.items()]
        for label in ("changed", "synthesised", "dropped"):
            lines += [f"  {label}: {name}: {why}" for name, why in getattr(self, label).items()]
        lines += [f"  warning: {name}: {why}" for name, why in self.doubts.items()]
        return lines + [f"  note: {text}" for text in self.notes]


UNKNOWN_ENV = "unknown"
GYMNASIUM, REAL_ROBOT = 2, 4


class NamedDemo(NamedTuple):
    """One demonstration, and its name in the new file."""

    name: str
    episode: Episode


@dataclass
class OpenedDataset:
    """An opened dataset.

    Attributes:
        env_meta: ``env_name``, ``type``, ``env_kwargs`` of the environment, as for :func:`imitate.envs.make_env`.
        demos: iterator over the demonstrations, each read when it is requested.
        count: number of demonstrations; None if not known in advance.
        masks: filter keys, lists of demos by name; complete after all demos were read.
        control_freq: control rate in Hz; None if unknown.
        attrs: further attributes of the whole dataset: strings and numbers.
        lossy_images: true if images are compressed with loss (videos, JPEGs).
        images: storage of images unless the user chooses one, see :attr:`Options.images`.
        optional: arrays that are missing in some demos.
    """

    env_meta: dict[str, Any]
    demos: Iterator[NamedDemo]
    count: int | None = None
    masks: dict[str, list[str]] = field(default_factory=dict)
    control_freq: float | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    lossy_images: bool = False
    images: str = "raw"
    optional: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Options:
    """Options of a conversion: facts that a file does not contain, and options of writing; None if not given.

    Attributes:
        env: registered id of the gymnasium environment of the data.
        horizon: number of steps after which the environment truncates an episode.
        fps: control rate in Hz.
        language: language instruction.
        action_shift: number of steps by which an observation is recorded after the action that belongs to it.
        flip_images: true if images are stored upside down.
        video: codec of the written camera videos.
        images: storage of images: one of :data:`imitate.data.file.image_codec.STORAGES`, or 'as-source': the compressed
            frames of a LeRobot dataset are kept, other sources with lossy compression become 'jpeg', the rest 'raw'.
            None means 'as-source' for LeRobot's datasets and 'raw' for others.
        workers: number of processes that replay states.
        action: name of the LeRobot feature that contains the actions.
        skip_incomplete: true to leave out episodes with missing files; false to keep them without the missing images;
            None to raise an error for them.
    """

    env: str | None = None
    horizon: int | None = None
    fps: float | None = None
    language: str | None = None
    action_shift: int | None = None
    flip_images: bool | None = None
    video: str | None = None
    images: str | None = None
    workers: int | None = None
    action: str | None = None
    skip_incomplete: bool | None = None

    def given(self) -> list[str]:
        """Return the names of the options that are set."""
        return [item.name for item in fields(self) if getattr(self, item.name) is not None]


Reader = Callable[[Path, Options, ConversionReport], AbstractContextManager[OpenedDataset]]
Writer = Callable[
    [Path, OpenedDataset, Options, ConversionReport],
    AbstractContextManager[Callable[[NamedDemo], None]],
]

Replay = Callable[[OpenedDataset, Options, ConversionReport], Iterator[NamedDemo]]
"""Function that replays the simulator states of a dataset and yields its demos with observations."""


@dataclass(frozen=True)
class Format:
    """One dataset format.

    Attributes:
        name: name for ``--from`` and ``--to``.
        summary: one line in the list of formats.
        recognises: function that returns true if a path looks like this format; it is fast and raises no errors.
        read: function that opens a path; None if the format can only be written.
        write: function that writes a new path; None if the format can only be read.
        options: names in :class:`Options` that the reader accepts.
        write_options: names in :class:`Options` that the writer accepts.
        endings: endings of file names, by which the format of a target is chosen.
        needs_replay: true if its files contain simulator states instead of observations.
    """

    name: str
    summary: str
    recognises: Callable[[Path], bool]
    read: Reader
    write: Writer | None = None
    options: frozenset[str] = frozenset()
    write_options: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()
    needs_replay: bool = False


def gymnasium_meta(env_id: str | None, report: ConversionReport) -> dict[str, Any]:
    """Return the description of a gymnasium environment for a file without one.

    Args:
        env_id: id of the environment, from ``--env`` or the file.
        report: receives a note if there is no id.
    """
    if env_id is None:
        report.synthesised["env_args"] = (
            f"env_name '{UNKNOWN_ENV}': the file names no environment; give --env to evaluate policies"
        )
    return {"env_name": env_id or UNKNOWN_ENV, "type": GYMNASIUM, "env_kwargs": {}}


def robot_meta(name: str) -> dict[str, Any]:
    """Return the description of a real robot, or of a simulator that is not available."""
    return {"env_name": name, "type": REAL_ROBOT, "env_kwargs": {}}


def clock_of(options: Options, env_id: str | None) -> int | None:
    """Return the number of steps after which an episode times out: the user's, or else gymnasium's for ``env_id``.

    The result is None if the number is unknown.
    """
    if options.horizon is not None or env_id is None:
        return options.horizon
    import gymnasium

    try:
        return gymnasium.spec(env_id.rpartition(":")[2]).max_episode_steps
    except gymnasium.error.Error:
        return None


def same_length(lengths: Mapping[str, int], where: str) -> int:
    """Return the number of rows, which must be the same for all arrays.

    Raises:
        DatasetError: the numbers differ.
    """
    first, *others = lengths.items()
    for key, length in others:
        if length != first[1]:
            raise DatasetError(
                f"{where}: '{key}' has {counted(length, 'row')}, but '{first[0]}' has {first[1]}: "
                "the file is cut short or in another format"
            )
    return first[1]


def extra(module: str, name: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: module to import.
        name: name of the extra of this package that installs the module.

    Raises:
        DatasetError: the module is not installed, or is incompatible with another package.
    """
    try:
        return import_module(module)
    except ImportError as error:
        error.name = error.name or module
        raise DatasetError(
            f"this format cannot be read or written: {missing(name, error)}"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of reading a foreign file to DatasetError; a context manager.

    All exceptions are converted, because a dozen libraries are used for reading, and none documents its errors for
    damaged files. The original error is kept as the cause.

    Raises:
        DatasetError: the file cannot be read; the message names it.
    """
    try:
        yield
    except DatasetError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:
        pointer = first_pointer(path)
        if pointer is not None:
            raise DatasetError(diagnosis(pointer)) from error
        if isinstance(error, UserError):
            raise
        raise DatasetError(
            f"{path}: cannot be read ({type(error).__name__}: {_first_line(error)}): "
            "it is cut short, damaged or in another format"
        ) from error


def stored_bytes(path: Path) -> int:
    """Return the total size of all files in bytes.

    Refuse special files, such as pipes, and sizes that exceed memory.
    """
    sizes = [0]
    for file in files_below(path) if path.is_dir() else [path]:
        if file.exists() and not file.is_file() and not file.is_dir():
            raise DatasetError(f"{file}: is not a regular file: copy the dataset again")
        sizes.append(file.stat().st_size if file.is_file() else 0)
    check_claim(f"{path}: a file of it", max(sizes), max(sizes))
    return sum(sizes)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files of a folder and its subfolders, following links to folders; each folder is visited once."""
    seen: set[tuple[int, int]] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from (Path(parent, name) for name in names)


def first_pointer(folder: Path) -> Path | None:
    """Return a file of a folder that is a pointer of Git LFS, preferably a data file; None if there is no pointer."""
    found = [file for file in files_below(folder) if is_lfs_pointer(file)]
    data = (".parquet", ".hdf5", ".h5", ".mp4", ".json")
    return min(found, key=lambda file: (file.suffix not in data, str(file)), default=None)


@contextmanager
def writing(final: Path, unfinished: Path) -> Iterator[None]:
    """Convert errors of writing a dataset to DatasetError; a context manager.

    Args:
        final: the final path, used in error messages.
        unfinished: the temporary path during writing.

    Raises:
        DatasetError: the dataset cannot be written, for example because the disk is full or a text is not UTF-8.
    """
    try:
        yield
    except DatasetError as error:
        if str(unfinished) not in str(error):
            raise
        raise DatasetError(str(error).replace(str(unfinished), str(final))) from error
    except UserError:
        raise
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"{final}: the source has a name or text that is not UTF-8 ({error.reason}): it is damaged; copy it again"
        ) from error
    except (OSError, RuntimeError) as error:  # for a full disk, HDF5 raises either of these errors
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else _first_line(error)
        raise DatasetError(
            f"{final}: cannot be written ({reason}): make room, or choose another folder"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
