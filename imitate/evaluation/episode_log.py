"""Episodes of evaluations that are not over, so that an interrupted series loses only those that were playing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from imitate.evaluation.episodes import Episode
from imitate.run_folder import to_json

ENDING = ".episodes"
"""Added to the name of the table."""


class EpisodeLog:
    """A file with a JSON line per episode, beside a table of evaluations; the table's own entries replace it.

    An episode that could not be played is left out: another try may succeed.

    Args:
        table: path of the table.
    """

    def __init__(self, table: Path) -> None:
        self.path = table.with_name(f"{table.name}{ENDING}")
        self._found: dict[str, dict[int, Episode]] = {}
        self._file: TextIO | None = None

    def read(self) -> None:
        """Read the episodes that are there; a line that a kill cut short is left out."""
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            entry = _entry(line)
            if entry is not None:
                key, episode = entry
                self._found.setdefault(key, {})[episode.index] = episode

    def find(self, key: str) -> tuple[Episode, ...]:
        """Return the episodes of an evaluation that were read.

        Args:
            key: of the evaluation, different from that of every other one.
        """
        return tuple(self._found.get(key, {}).values())

    def add(self, key: str, episode: Episode) -> None:
        """Write an episode; a kill -9 after this call does not lose it."""
        if episode.error is not None:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut_short = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            self._file = self.path.open("a", encoding="utf-8")
            self._file.write("\n" if cut_short else "")
        self._file.write(to_json({"evaluation": key, "episode": episode.to_dict()}) + "\n")
        self._file.flush()

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it where all of its evaluations are over."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self.path.unlink(missing_ok=True)


def _entry(line: str) -> tuple[str, Episode] | None:
    try:
        entry = json.loads(line)
        return str(entry["evaluation"]), episode_from_dict(entry["episode"])
    except (ValueError, KeyError, TypeError):
        return None


def episode_from_dict(entry: Mapping[str, Any]) -> Episode:
    """Return the episode whose :meth:`Episode.to_dict` an entry is."""
    names = {field.name for field in fields(Episode)}
    own = {key: value for key, value in entry.items() if key in names}
    if own["episode_return"] is None:  # JSON has no number that is not finite
        own["episode_return"] = math.nan
    return Episode(**own)
