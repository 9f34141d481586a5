"""Episodes that an interrupted collection has recorded, for another one of the same plan to continue."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from imitate.data import DatasetFile
from imitate.data.file.journal import is_being_written, partial_of, roll_back
from imitate.envs.migration import installed_robosuite
from imitate.errors import DatasetError
from imitate.simulation.demonstrate import Plan

PLAN = "collected"
"""Attribute of ``data``: the plan of the demonstrations, as JSON."""


@dataclass(frozen=True)
class Recorded:
    """An episode in the file of an interrupted collection.

    Attributes:
        name: of its demo.
        episode: its number in the plan.
        quality: level of its demonstrator.
        success: it solves the task.
        attempts: tries of the demonstrator until this one.
        steps: its length.
    """

    name: str
    episode: int
    quality: str
    success: bool
    attempts: int
    steps: int


def settings_of(plan: Plan, **more: int) -> str:
    """Return all that episodes depend on, as JSON.

    Args:
        plan: of the episodes.
        **more: what else the files depend on.
    """
    return json.dumps({**asdict(plan), "robosuite": installed_robosuite() or "none", **more})


def recorded_so_far(path: Path, settings: str) -> list[Recorded]:
    """Return the episodes that lie in the partial file of ``path``; none where there is no such file.

    Raises:
        DatasetError: it belongs to another plan or is being written.
    """
    partial = partial_of(path)
    if not partial.is_file():
        return []
    if is_being_written(partial):
        raise DatasetError(
            f"{path}: another process is writing it: wait for it or choose another name"
        )
    roll_back(partial)
    if not partial.stat().st_size:  # killed as it began
        partial.unlink()
        return []
    return _read(partial, path, settings)


def recorded_in(path: Path, settings: str) -> list[Recorded]:
    """Return the episodes of a finished file.

    Raises:
        DatasetError: it belongs to another plan.
    """
    return _read(path, path, settings)


def _read(place: Path, path: Path, settings: str) -> list[Recorded]:
    with DatasetFile(place) as file:
        _check_same(place, path, file.file_attrs.get(PLAN), settings)
        return [_recorded(file, demo) for demo in file.demos()]


def _recorded(file: DatasetFile, demo: str) -> Recorded:
    attrs = file.attrs(demo)
    return Recorded(
        demo,
        int(attrs["episode"]),
        str(attrs["quality"]),
        bool(attrs["success"]),
        int(attrs["attempts"]),
        file.length(demo),
    )


def _check_same(place: Path, path: Path, found: str | None, wanted: str) -> None:
    if found is None:
        raise DatasetError(
            f"{place}: does not name its plan, so that it cannot be resumed: make a file of it with "
            f"`imitate dataset finish {path}`, or start again with --overwrite"
        )
    was, now = json.loads(found), json.loads(wanted)
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key):
            raise DatasetError(
                f"{place}: was started with {key} = {was.get(key)!r}, now it is {now.get(key)!r}: "
                "resume with the same options, or start again with --overwrite"
            )
