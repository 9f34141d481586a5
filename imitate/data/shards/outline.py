"""Answers about a dataset, whether it is one file or a folder of shards, without reading its demos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imitate.data.dataset_file import DatasetFile
from imitate.data.language import TASK_ATTRS, instruction_of
from imitate.data.shards.folder import local_file, shards_at


@dataclass(frozen=True)
class Outline:
    """A dataset in outline.

    Attributes:
        env_meta: environment of the demos; {} if there is none.
        control_freq: actions per second; None where the data do not say it.
        filter_keys: names of the masks.
    """

    env_meta: dict[str, Any]
    control_freq: float | None
    filter_keys: frozenset[str]


def outline_of(path: str | Path) -> Outline:
    """Read the outline of a dataset.

    Raises:
        DatasetError: it cannot be read.
    """
    shards = shards_at(path)
    if shards is not None:
        index = shards.index
        return Outline(index.env_args, index.control_freq, frozenset(index.filter_keys))
    with DatasetFile(local_file(path)) as file:
        return Outline(file.env_meta, file.control_freq, frozenset(file.filter_keys()))


def instructions_at(path: str | Path, given: str | None = None) -> set[str | None]:
    """Return the instructions of all demos of a dataset, None among them where a demo has none.

    Args:
        path: of the dataset.
        given: the instruction of all demos, by the configuration.
    """
    if given is not None and given.strip():
        return {given.strip()}
    shards = shards_at(path)
    if shards is not None:
        return {said for shard in shards.index.shards for said in shard.language}
    with DatasetFile(local_file(path)) as file:
        return {instruction_of(file.attrs(demo, TASK_ATTRS)) for demo in file.demos()}


def fingerprint_of(path: str | Path) -> dict[str, Any]:
    """Return digests that tell a dataset's content from another's.

    Raises:
        DatasetError: it cannot be read.
    """
    shards = shards_at(path)
    if shards is not None:
        return shards.fingerprint()
    with DatasetFile(local_file(path)) as file:
        return file.fingerprint()
