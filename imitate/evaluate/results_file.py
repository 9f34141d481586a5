"""Files of evaluation results, written as they come, from which an interrupted series can be resumed.

A second file has the finished episodes of running evaluations, so an interruption loses only unfinished episodes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from imitate.errors import ConfigError
from imitate.evaluate.episodes import EpisodeResult
from imitate.evaluate.eval_result import EvalResult
from imitate.evaluate.late import Lateness
from imitate.evaluate.prepared import EvalSettings
from imitate.system.locks import lock
from imitate.system.plain_files import appended, read_json
from imitate.system.run_folder import find_checkpoint, to_json, write_text

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
        self._found: dict[str, dict[int, EpisodeResult]] = {}
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

    def find(self, key: str) -> tuple[EpisodeResult, ...]:
        """Return the episodes of an evaluation that were read.

        Args:
            key: unique key of the evaluation.
        """
        return tuple(self._found.get(key, {}).values())

    def add(self, key: str, episode: EpisodeResult) -> None:
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
    is_free = False
    with suppress(BlockingIOError):
        lock(file, needed=False)
        is_free = os.fstat(file.fileno()).st_nlink > 0
    if not is_free:
        raise ConfigError(
            f"{path.with_name(path.name.removesuffix(ENDING))}: another process is writing it: wait for it, or choose "
            "another name"
        )


def _entry(line: str) -> tuple[str, EpisodeResult] | None:
    try:
        entry = json.loads(line)
        return str(entry["evaluation"]), episode_from_dict(entry["episode"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def episode_from_dict(entry: Mapping[str, Any]) -> EpisodeResult:
    """Return the episode from its :meth:`EpisodeResult.to_dict`."""
    names = {field.name for field in fields(EpisodeResult)}
    own = {key: value for key, value in entry.items() if key in names}
    if own["episode_return"] is None:  # JSON has no infinite numbers or NaN
        own["episode_return"] = math.nan
    return EpisodeResult(**own)


SAME = "settings"
"""Key of an entry with everything that its result depends on."""


class ResultsFile:
    """A JSON file ``{"evaluations": [...]}``, with the entries of ``imitate eval --json``.

    Episodes of unfinished evaluations are in a file beside it (:class:`EpisodeLog`).

    Args:
        path: path of the file.
        resume: true to keep the evaluations and episodes in the file.

    Raises:
        ConfigError: the file exists but is not resumed or has another format, or another process is writing it.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self._entries: list[dict[str, Any]] = []
        self._sums: dict[Path, str] = {}
        self._log = EpisodeLog(path)
        for there in (path, self._log.path):
            if there.exists() and there.stat().st_size and not resume:
                raise ConfigError(
                    f"{there}: exists already; choose another name, or continue it with --resume"
                )
        self._log.read()
        if not path.exists():
            return
        try:
            self._entries = [dict(entry) for entry in read_json(path)["evaluations"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._log.close(remove=False)
            raise ConfigError(
                f"{path}: is not a table of evaluations ({type(error).__name__}: {error}); "
                "choose another name"
            ) from error

    def find(
        self, agent: Path, env_meta: Mapping[str, Any], settings: EvalSettings
    ) -> EvalResult | None:
        """Return the result of an earlier evaluation of the same checkpoint, environment and settings."""
        wanted = self._same(agent, env_meta, settings)
        for entry in self._entries:
            if entry.get(SAME) == wanted:
                try:
                    return result_from_dict(entry)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ConfigError(
                        f"{self.path}: contains an evaluation that cannot be read "
                        f"({type(error).__name__}: {error}); choose another name"
                    ) from error
        return None

    def add(
        self, agent: Path, env_meta: Mapping[str, Any], settings: EvalSettings, result: EvalResult
    ) -> None:
        """Write the file with one more result."""
        entry = {**result.to_dict(), SAME: self._same(agent, env_meta, settings)}
        self._entries.append(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, to_json({"evaluations": self._entries}, indent=2) + "\n")

    def earlier(
        self, agent: Path, env_meta: Mapping[str, Any], settings: EvalSettings
    ) -> tuple[EpisodeResult, ...]:
        """Return the episodes of an interrupted evaluation with the same checkpoint, environment and settings."""
        return self._log.find(_key(self._same(agent, env_meta, settings)))

    def note(
        self, agent: Path, env_meta: Mapping[str, Any], settings: EvalSettings
    ) -> Callable[[EpisodeResult], None]:
        """Return a function that stores the episodes of an evaluation until it has a result."""
        return partial(self._log.add, _key(self._same(agent, env_meta, settings)))

    def close(self, *, is_over: bool) -> None:
        """Close the file of episodes.

        Args:
            is_over: true if all evaluations have a result, so that the episodes are no longer needed.
        """
        self._log.close(remove=is_over)

    def _same(
        self, agent: Path, env_meta: Mapping[str, Any], settings: EvalSettings
    ) -> dict[str, Any]:
        """Return everything that a result depends on, in the form read from JSON."""
        late, path = settings.late, find_checkpoint(agent)
        same = {
            "checkpoint": str(path.resolve()),
            "checkpoint_sha256": self._sum(path),
            "env_args": dict(env_meta),
            "episodes": settings.episodes,
            "horizon": settings.horizon,
            "seed": settings.seed,
            "mode": settings.mode,
            # stochastic policies draw for all environments of a lockstep at once
            "num_envs": settings.workers if settings.mode == "vector" else None,
            "terminate_on_success": settings.terminate_on_success,
            "give_up_after": settings.give_up_after,
            "late": None if late is None else vars(late),
        }
        if settings.rename:  # entries of earlier versions lack it
            same["rename"] = dict(settings.rename)
        if settings.precision != "fp32":
            same["precision"] = settings.precision
        return dict(json.loads(to_json(same)))

    def _sum(self, path: Path) -> str:
        if path not in self._sums:
            with path.open("rb") as file:
                self._sums[path] = _digest(file)
        return self._sums[path]


def result_from_dict(entry: Mapping[str, Any]) -> EvalResult:
    """Return the result from its :meth:`EvalResult.to_dict`."""
    own = {key: entry[key] for key in _names(Lateness) if key in entry}
    return EvalResult(
        env_name=entry["env"],
        checkpoint=entry["checkpoint"],
        episodes=tuple(episode_from_dict(episode) for episode in entry["per_episode"]),
        planned=entry["planned_episodes"],
        horizon=entry["horizon"],
        seed=entry["seed"],
        mode=entry["mode"],
        workers=entry["workers"],
        wall_s=entry["wall_s"],
        video=entry["video"],
        warnings=tuple(entry["warnings"]),
        longest_demo=entry["longest_demo"],
        late=Lateness(**own) if own else None,
    )


def _key(same: Mapping[str, Any]) -> str:
    """Return a key made of everything that a result depends on."""
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _digest(file: BinaryIO) -> str:
    """Return the SHA-256 of a file's bytes."""
    found = hashlib.sha256()
    while block := file.read(1 << 20):
        found.update(block)
    return found.hexdigest()
