"""File of a comparison, with one JSON object per line. Each line is on disk before the next trial begins.

    {"kind": "comparison", "version": 1, "policies": {"A": {...}, "B": {...}}, "settings": {...}, "order": "5f0c..."}
    {"kind": "trial", "pair": 0, "position": 0, "success": true, "progress": 7, "note": "...", ...}
    {"kind": "redo", "pair": 0, "position": 1, "reason": "...", ...}
    {"kind": "revealed", "pairs": 12}

A trial does not name its policy, which follows from ``order`` by :func:`first_of_pair`. So reading the file does not
reveal it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from imitate.errors import UserError
from imitate.system.missing import no_such
from imitate.system.plain_files import appended, json_value, lock, path_inside, read_bytes, sync
from imitate.system.version import __version__

VERSION = 1
_MAX_BYTES = 2**28
POLICIES = ("A", "B")
_BEGINNING = b'{"kind": "comparison"'


@dataclass(frozen=True)
class Trial:
    """One judged trial.

    Attributes:
        pair: index of the pair, from 0.
        position: 0 for the first trial of the pair, 1 for the second.
        success: true if the task was solved.
        progress: rating of the progress from 0 to 9, or None if not rated.
        note: note of the person.
        stopped: reason why the control loop stopped the robot, which makes the trial a failure; empty otherwise.
        steps: number of control steps in which an action was sent.
        pictures: path of the initial picture by image key, relative to the folder of the comparison's file.
        report: report of the control loop.
    """

    pair: int
    position: int
    success: bool
    progress: int | None = None
    note: str = ""
    stopped: str = ""
    steps: int = 0
    pictures: Mapping[str, str] = field(default_factory=dict)
    report: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Redo:
    """A trial that does not count and is repeated by the same policy.

    Attributes:
        pair, position: as in :class:`Trial`.
        reason: reason given by the person.
        stopped: reason why the control loop ended the trial, if it did.
    """

    pair: int
    position: int
    reason: str
    stopped: str = ""


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("version", "pair", "position", "pairs"), (int,)),
    **dict.fromkeys(("name", "sha256", "order", "judge", "note", "stopped", "reason"), (str,)),
    **dict.fromkeys(("policies", "settings", "pictures"), (dict,)),
    **{"success": (bool,), "alpha": (float,), "report": (dict, type(None))},
}
"""Required types of the values in a line."""


def _check_types(record: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError if a value in a line is not possible for a trial."""
    for name, value in record.items():
        if type(value) not in _TYPES.get(name, (type(value),)):
            raise TypeError(f"{name} is {json.dumps(value)[:50]}")
    if record.get("position", 0) not in (0, 1) or record.get("progress") not in (None, *range(10)):
        raise ValueError("position must be 0 or 1, and progress from 0 to 9")


def first_of_pair(order: str, pair: int) -> str:
    """Return the policy that acts first in a pair, by a fair coin that the random ``order`` determines.

    Returns:
        ``A`` or ``B``.
    """
    return POLICIES[hashlib.sha256(f"{order}:{pair}".encode()).digest()[0] & 1]


class TrialFile:
    """Context manager of the file with all data of a comparison.

    Args:
        path: path of the file.
        policies: name and ``sha256`` of A and B.
        settings: settings of the comparison. Give both to begin or resume it, or None for both to only read it.

    Attributes:
        trials: judged trials in order; the two of a pair are adjacent.
        redos: trials that did not count and were repeated.
        revealed: number of complete pairs when the policies were revealed before the end, or None if they were not.

    Raises:
        UserError: the file is not a comparison, is damaged, has other policies or settings, or is used by another
            process.
    """

    def __init__(
        self,
        path: Path,
        policies: Mapping[str, Mapping[str, str]] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.trials: list[Trial] = []
        self.redos: list[Redo] = []
        self.revealed: int | None = None
        self._file: FileIO | None = None
        if policies is None or settings is None:
            if not path.is_file():
                raise UserError(no_such(path, "comparison"))
            self._read(read_bytes(path, _MAX_BYTES))
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file, content = self._opened()
            if content:
                self._read(content)
                self._check(policies, settings)
            file.truncate(len(content))
            if not content:
                self._begin(policies, settings)
        except BaseException:
            self.close()
            raise

    def _opened(self) -> tuple[FileIO, bytes]:
        """Open the file for writing; return it and its complete lines, without an incomplete last one."""
        self._file = file = appended(self.path, text=False, reads=True)
        try:
            lock(file, by_process=True, needed=False)
        except BlockingIOError as error:
            raise UserError(
                f"{self.path}: another process uses this comparison: wait for it, or give another --out"
            ) from error
        file.seek(0)
        content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES or content[: len(_BEGINNING)] != _BEGINNING[: len(content)]:
            raise UserError(f"{self.path}: is not a comparison; give another --out")
        return file, content[: content.rfind(b"\n") + 1]

    def _begin(self, policies: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Write the first line."""
        self._head = {
            "kind": "comparison",
            "version": VERSION,
            "imitate": __version__,
            "policies": json.loads(json.dumps(policies)),
            "settings": json.loads(json.dumps(settings)),
            "order": secrets.token_hex(16),
        }
        self._append(self._head)
        sync(self.path.parent)

    def _read(self, content: bytes) -> None:
        lines = content.split(b"\n")[:-1]  # text after the last line end is incomplete
        for number, line in enumerate(lines):
            self._read_line(number, line)
        if not lines:
            raise UserError(f"{self.path}: is not a comparison; give another --out")

    def _read_line(self, number: int, line: bytes) -> None:
        try:
            record = json_value(line)
            kind = record.pop("kind")
            _check_types(record)
            if number == 0:
                self._read_head(kind, record)
            elif kind == "trial":
                trial = Trial(**record)
                if (trial.pair, trial.position) != self.next:
                    raise ValueError(f"expected the trial of pair and position {self.next}")
                for picture in trial.pictures.values():
                    path_inside(self.path.parent, picture)
                self.trials.append(trial)
            elif kind == "redo":
                self.redos.append(Redo(**record))
            elif kind == "revealed":
                self.revealed = int(record["pairs"])
            else:
                raise ValueError(f"unknown kind '{kind}'; wanted trial, redo or revealed")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self.path}, line {number + 1}: is not a line of a comparison ({error}); "
                "give another --out"
            ) from error

    def _read_head(self, kind: str, record: dict[str, Any]) -> None:
        if kind != "comparison":
            raise ValueError(f"the first line must be of kind 'comparison', but is '{kind}'")
        if record["version"] > VERSION:
            raise ValueError(f"written in version {record['version']}: upgrade imitate")
        self._head = {
            name: record[name] for name in ("version", "imitate", "policies", "settings", "order")
        }
        for letter in POLICIES:
            _check_types(self.policies[letter])
            if set(self.policies[letter]) != {"name", "sha256"}:
                raise ValueError(f"policy {letter} needs name and sha256")
        _check_types(self.settings)
        if not 0 < self.settings["alpha"] <= 0.5 or "judge" not in self.settings:
            raise ValueError("settings need alpha, from 0 to 0.5, and judge")

    def _check(self, policies: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Raise UserError if the file was begun with other policies or settings."""
        for letter in POLICIES:
            was, now = self.policies[letter], policies[letter]
            if was["sha256"] != now["sha256"]:
                raise UserError(
                    f"{self.path}: was begun with another policy {letter} ({was['name']}, sha256 "
                    f"{was['sha256'][:12]}) than {now['name']} (sha256 {now['sha256'][:12]}): name the first "
                    "policy again, or begin a new comparison with another --out"
                )
        now = json.loads(json.dumps(settings))
        for name in {**self.settings, **now}:
            if self.settings.get(name) != now.get(name):
                raise UserError(
                    f"{self.path}: was begun with {name} "
                    f"{json.dumps(self.settings.get(name))}, not {json.dumps(now.get(name))}: use the first value, or "
                    "begin again with another --out"
                )

    # ---- what is known ---------------------------------------------------------------------------

    @property
    def policies(self) -> dict[str, dict[str, str]]:
        """Name and ``sha256`` of A and of B."""
        policies: dict[str, dict[str, str]] = self._head["policies"]
        return policies

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the comparison."""
        settings: dict[str, Any] = self._head["settings"]
        return settings

    @property
    def next(self) -> tuple[int, int]:
        """Pair and position of the next trial."""
        return divmod(len(self.trials), 2)

    def policy(self, pair: int, position: int) -> str:
        """Return the policy of a trial: ``A`` or ``B``."""
        first = first_of_pair(self._head["order"], pair)
        return first if position == 0 else POLICIES[1 - POLICIES.index(first)]

    # ---- writing ---------------------------------------------------------------------------------

    def add(self, trial: Trial) -> None:
        """Add a judged trial; it is on disk when the method returns."""
        self._append({"kind": "trial", **asdict(trial)})
        self.trials.append(trial)

    def add_redo(self, redo: Redo) -> None:
        """Add a trial that does not count and will be repeated."""
        self._append({"kind": "redo", **asdict(redo)})
        self.redos.append(redo)

    def reveal(self) -> None:
        """Record that the policies were revealed to the judge."""
        if self.revealed is not None:
            return
        if self._file is None:  # the file is open for reading only
            file, content = self._opened()
            file.truncate(len(content))
        self.revealed = len(self.trials) // 2
        self._append({"kind": "revealed", "pairs": self.revealed})

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            raise UserError(f"{self.path}: is open for reading only")
        try:
            rest = memoryview(json.dumps(record).encode() + b"\n")
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}): make room, then resume "
                "with the same command (the last entry is lost)"
            ) from error

    def close(self) -> None:
        """Release the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> TrialFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
