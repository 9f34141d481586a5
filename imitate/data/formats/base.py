"""Format of a dataset: a function that reads, perhaps one that writes, and one that recognises.

Reading gives a :class:`Source`, whose demos come one at a time, so that a conversion holds one episode in memory
whatever the size of the file. Writing takes the demos as they come.
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
    """One demonstration under the name it will have in the new file."""

    name: str
    episode: Episode


@dataclass
class Source:
    """An opened dataset.

    Attributes:
        env_meta: ``env_name``, ``type``, ``env_kwargs`` of the environment, as :func:`imitate.envs.make_env` takes it.
        demos: the demonstrations, read as they are asked for.
        count: how many there are, if that is known beforehand.
        masks: filter keys: name -> demos; complete once all demos were read.
        control_freq: actions per second, if known.
        attrs: further attributes of the whole dataset: texts and numbers.
        lossy_images: true if its images are compressed with loss (videos, JPEGs).
        images: how they are stored where the user says nothing: see :attr:`Options.images`.
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
    """Facts that a file lacks, given by the user, and options of writing. None: not given.

    Attributes:
        env: registered id of the gymnasium environment the data come from.
        horizon: steps after which the environment ends an episode by the clock.
        fps: actions per second.
        language: the instruction.
        action_shift: steps by which an observation comes after its action.
        flip_images: true if images are stored upside down.
        video: codec of the camera videos to write.
        images: how to store images: one of :data:`imitate.data.file.image_codec.STORAGES`, or 'as-source': as they are
            compressed in a LeRobot dataset, else 'jpeg' where the source compresses with loss, else 'raw'. None is
            'as-source' for LeRobot's datasets and 'raw' for others.
        workers: processes that replay states.
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
"""From a source of states to its demos with observations."""


@dataclass(frozen=True)
class Format:
    """One dataset format.

    Attributes:
        name: as ``--from`` and ``--to`` take it.
        summary: one line for the list of formats.
        recognises: returns true for a path that looks like it; cheap, and never raises for unknown content.
        read: opens a path; None if it is only written.
        write: makes a path that does not exist; None if it is only read.
        options: names in :class:`Options` that its reader takes.
        write_options: those that its writer takes.
        endings: of the names of its files, for choosing the target format.
        needs_replay: its files hold simulator states instead of observations.
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
    """Return the description of a gymnasium environment for a file that names none.

    Args:
        env_id: from ``--env`` or the file.
        report: gets a note where neither names one.
    """
    if env_id is None:
        report.synthesised["env_args"] = (
            f"env_name '{UNKNOWN_ENV}': the file names no environment; give --env to evaluate policies"
        )
    return {"env_name": env_id or UNKNOWN_ENV, "type": GYMNASIUM, "env_kwargs": {}}


def robot_meta(name: str) -> dict[str, Any]:
    """Return the description of a real robot, or of a simulator that is not at hand."""
    return {"env_name": name, "type": REAL_ROBOT, "env_kwargs": {}}


def clock_of(options: Options, env_id: str | None) -> int | None:
    """Return the steps after which an episode times out: as given, else gymnasium's of ``env_id``; None: unknown."""
    if options.horizon is not None or env_id is None:
        return options.horizon
    import gymnasium

    try:
        return gymnasium.spec(env_id.rpartition(":")[2]).max_episode_steps
    except gymnasium.error.Error:
        return None


def same_length(lengths: Mapping[str, int], where: str) -> int:
    """Return the number of rows that all arrays have.

    Raises:
        DatasetError: they disagree.
    """
    first, *others = lengths.items()
    for key, length in others:
        if length != first[1]:
            raise DatasetError(
                f"{where}: '{key}' has {counted(length, 'row')}, but '{first[0]}' has {first[1]}: "
                "the file is cut short or not of this format"
            )
    return first[1]
