"""Description of a dataset format: functions that recognize, read and write it.

Reading returns a :class:`Source`, which yields its demos one at a time, so that a conversion keeps only one episode in
memory. Writing consumes the demos one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from imitate.data.file.episode import Episode
from imitate.data.formats.report import Report
from imitate.errors import DatasetError
from imitate.system.wording import counted

UNKNOWN_ENV = "unknown"
GYMNASIUM, REAL_ROBOT = 2, 4


class Demo(NamedTuple):
    """One demonstration, and its name in the new file."""

    name: str
    episode: Episode


@dataclass
class Source:
    """An opened dataset.

    Attributes:
        env_meta: ``env_name``, ``type``, ``env_kwargs`` of the environment, as for :func:`imitate.envs.make_env`.
        demos: the demonstrations, read when they are requested.
        count: number of demonstrations, if known in advance.
        masks: filter keys, lists of demos by name; complete after all demos were read.
        control_freq: control rate in Hz, if known.
        attrs: further attributes of the whole dataset: strings and numbers.
        lossy_images: true if its images are compressed with loss (videos, JPEGs).
        images: storage of images unless the user chooses one: see :attr:`Options.images`.
    """

    env_meta: dict[str, Any]
    demos: Iterator[Demo]
    count: int | None = None
    masks: dict[str, list[str]] = field(default_factory=dict)
    control_freq: float | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    lossy_images: bool = False
    images: str = "raw"


@dataclass(frozen=True)
class Options:
    """Facts that a file does not contain, given by the user, and options of writing. None: not given.

    Attributes:
        env: registered id of the gymnasium environment of the data.
        horizon: number of steps after which the environment truncates an episode.
        fps: control rate in Hz.
        language: language instruction.
        action_shift: number of steps by which an observation comes after its action.
        flip_images: true if images are stored upside down.
        video: codec of the written camera videos.
        images: storage of images: one of :data:`imitate.data.file.image_codec.STORAGES`, or 'as-source': the compressed
            frames of a LeRobot dataset are kept, other sources with lossy compression become 'jpeg', the rest 'raw'.
            None means 'as-source' for LeRobot's datasets and 'raw' for others.
        workers: number of processes that replay states.
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

    def given(self) -> list[str]:
        """Return the names of the options that are set."""
        return [item.name for item in fields(self) if getattr(self, item.name) is not None]


Reader = Callable[[Path, Options, Report], AbstractContextManager[Source]]
Writer = Callable[[Path, Source, Options, Report], AbstractContextManager[Callable[[Demo], None]]]

Replay = Callable[[Source, Options, Report], Iterator[Demo]]
"""Function from a source of simulator states to its demos with observations."""


@dataclass(frozen=True)
class Format:
    """One dataset format.

    Attributes:
        name: name for ``--from`` and ``--to``.
        summary: one line in the list of formats.
        recognises: returns true if a path looks like this format; fast, and never raises for unknown content.
        read: opens a path; None if the format can only be written.
        write: writes a new path; None if the format can only be read.
        options: names in :class:`Options` that the reader accepts.
        write_options: names in :class:`Options` that the writer accepts.
        endings: endings of the names of its files, to choose the target format.
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


def gymnasium_meta(env_id: str | None, report: Report) -> dict[str, Any]:
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
    """Return the number of steps after which an episode times out: as given, else gymnasium's for ``env_id``.

    None: unknown.
    """
    if options.horizon is not None or env_id is None:
        return options.horizon
    import gymnasium

    try:
        return gymnasium.spec(env_id.rpartition(":")[2]).max_episode_steps
    except gymnasium.error.Error:
        return None


def same_length(lengths: Mapping[str, int], where: str) -> int:
    """Return the number of rows, which all arrays share.

    Raises:
        DatasetError: the numbers differ.
    """
    first, *others = lengths.items()
    for key, length in others:
        if length != first[1]:
            raise DatasetError(
                f"{where}: '{key}' has {counted(length, 'row')}, but '{first[0]}' has {first[1]}: "
                "the file is cut short or not of this format"
            )
    return first[1]
