"""File of the finished episodes of running evaluations: an interruption loses only unfinished episodes."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from imitate.errors import ConfigError
from imitate.evaluation.episodes import Episode
from imitate.system.plain_files import appended
from imitate.system.run_folder import to_json

ENDING = ".episodes"
"""Suffix added to the table's name."""


class EpisodeLog:
    """A file with a JSON line per episode, beside a table of evaluations; entries of the table replace it.

    An episode that could not be played is not recorded: another try may succeed. The open file is locked, so that no
    other process writes the same table.

    Args:
        table: path of the table.
    """

    def __init__(self, table: Path) -> None:
        self.path = table.with_name(f"{table.name}{ENDING}")
        self._found: dict[str, dict[int, Episode]] = {}
        self._file: TextIO | None = None

    def read(self) -> None:
        """Open the file and read its episodes; an incomplete last line is ignored.

        Raises:
            ConfigError: another process has the file open.
        """
        file = self._opened()
        file.seek(0)
        for line in file.read().splitlines():
            entry = _entry(line)
            if entry is not None:
                key, episode = entry
                self._found.setdefault(key, {})[episode.index] = episode

    def find(self, key: str) -> tuple[Episode, ...]:
        """Return the episodes of an evaluation that were read.

        Args:
            key: unique key of the evaluation.
        """
        return tuple(self._found.get(key, {}).values())

    def add(self, key: str, episode: Episode) -> None:
        """Write an episode; a kill -9 after this call does not lose it."""
        if episode.error is not None:
            return
        file = self._opened()
        file.write(to_json({"evaluation": key, "episode": episode.to_dict()}) + "\n")
        file.flush()

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it if all of its evaluations are finished, or it is empty."""
        file, self._file = self._file, None
        if file is None:
            return
        with file:  # the lock is kept until the file is removed
            if remove or not os.fstat(file.fileno()).st_size:
                self.path.unlink(missing_ok=True)

    def _opened(self) -> TextIO:
        """Return the file, open and locked, after removing an incomplete last line."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = appended(self.path, reads=True)
            try:
                _lock(file, self.path)
            except ConfigError:
                file.close()
                raise
            self._file = file
            content = self.path.read_bytes()
            if content and not content.endswith(b"\n"):
                file.write("\n")
        return self._file


def _lock(file: TextIO, path: Path) -> None:
    """Keep other processes out until the file is closed or this process has ended.

    Raises:
        ConfigError: another process has it open, or has just removed it.
    """
    is_free = True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_free = False
    except OSError:
        pass  # a file system without locks does not keep other processes out
    if not is_free or not os.fstat(file.fileno()).st_nlink:
        raise ConfigError(
            f"{path.with_name(path.name.removesuffix(ENDING))}: another process is writing it: wait for it, or choose "
            "another name"
        )


def _entry(line: str) -> tuple[str, Episode] | None:
    try:
        entry = json.loads(line)
        return str(entry["evaluation"]), episode_from_dict(entry["episode"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def episode_from_dict(entry: Mapping[str, Any]) -> Episode:
    """Return the episode from its :meth:`Episode.to_dict`."""
    names = {field.name for field in fields(Episode)}
    own = {key: value for key, value in entry.items() if key in names}
    if own["episode_return"] is None:  # JSON has no infinite numbers or NaN
        own["episode_return"] = math.nan
    return Episode(**own)
