"""Findings of the doctor, and its report on a file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from imitate.data.curate.rewrite import Rows, Values

_MAX_NAMES = 20
_MOST_NAMES = 200
Runs = tuple[tuple[int, int], ...]
"""Stretches of steps: first, and one past the last."""


class Level(str, Enum):
    """Severity of a finding."""

    info = "info"
    warning = "warning"
    error = "error"


EXIT_CODES = {Level.info: 0, Level.warning: 1, Level.error: 3}


@dataclass(frozen=True)
class Place:
    """Place of a finding; None stands for all of a kind."""

    demo: str | None = None
    key: str | None = None
    steps: Runs = ()


@dataclass(frozen=True)
class Remedy:
    """Repair of a finding; see :class:`imitate.data.curate.rewrite.Changes`.

    Attributes:
        drop_demos: demos to leave out.
        drop_keys: arrays to leave out.
        rows: by demo.
        values: by array.
        masks: filter keys with new content; an empty one is removed.
        attrs: of the group ``data``.
    """

    drop_demos: Sequence[str] = ()
    drop_keys: Sequence[str] = ()
    rows: Mapping[str, Rows] = field(default_factory=dict)
    values: Mapping[str, Callable[[Values], Values]] = field(default_factory=dict)
    masks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        code: its kind, as ``--only`` takes it.
        level: how bad it is.
        what: in words.
        places: where.
        remedy: changes that make a copy without it; None: no program can know them.
        advice: what to do where there is no remedy, or in its place.
    """

    code: str
    level: Level
    what: str
    places: Sequence[Place] = ()
    remedy: Remedy | None = None
    advice: str = ""

    @property
    def demos(self) -> list[str]:
        """Return the demos of its places, each once."""
        return list(dict.fromkeys(place.demo for place in self.places if place.demo is not None))

    def command(self, path: Path) -> str | None:
        """Return the command that writes a file without this finding."""
        if self.remedy is None:
            return None
        fixed = path.with_name(f"{path.stem}_fixed{path.suffix}")
        remedy = self.remedy
        words = ["imitate", "dataset"]
        others = remedy.rows or remedy.values or remedy.masks or remedy.attrs
        names = [*remedy.drop_demos, *remedy.drop_keys]
        if others or not 0 < len(names) <= _MAX_NAMES or any("," in name for name in names):
            words += ["doctor", str(path), "--fix", "--only", self.code]
        else:
            words += ["delete", str(path)]
            words += ["--demos", ",".join(remedy.drop_demos)] if remedy.drop_demos else []
            words += ["--keys", ",".join(remedy.drop_keys)] if remedy.drop_keys else []
        return shlex.join([*words, "--out", str(fixed)])

    def alternative(self, path: Path) -> str:
        """Return what to do in place of the repair or without one; no repair that deletes is the only offer."""
        remedy = self.remedy
        if self.advice or remedy is None:
            return self.advice
        names = ",".join(remedy.drop_demos)
        if names and len(remedy.drop_demos) <= _MOST_NAMES and not remedy.drop_keys:
            key = f"without_{self.code}"
            words = ["imitate", "dataset", "filter", str(path), key, "--without", names]
            return f"keep them, and train on the others: {shlex.join([*words, '--in-place'])}"
        if names:
            return (
                "look at some of them with imitate dataset playback, and keep those that are good"
            )
        if remedy.drop_keys:
            return "keep it in the file, and leave it out of observation.modalities"
        return ""

    def to_dict(self, path: Path) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "code": self.code,
            "level": self.level.value,
            "what": self.what,
            "where": [
                {"demo": place.demo, "key": place.key, "steps": [list(run) for run in place.steps]}
                for place in self.places
            ],
            "repair": self.command(path),
            "advice": self.alternative(path) or None,
        }


@dataclass(frozen=True)
class Report:
    """The doctor's report of one file.

    Attributes:
        path: the file.
        demos: number of demos.
        steps: number of steps.
        read_bytes: size of all values that were read.
        findings: the worst first.
    """

    path: Path
    demos: int
    steps: int
    read_bytes: int
    findings: Sequence[Finding]

    @property
    def exit_code(self) -> int:
        """0 clean, 1 warnings, 3 errors."""
        return max((EXIT_CODES[finding.level] for finding in self.findings), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        counts = Counter(finding.level for finding in self.findings)
        return {
            "path": str(self.path),
            "demos": self.demos,
            "steps": self.steps,
            "read_bytes": self.read_bytes,
            "exit_code": self.exit_code,
            "counts": {level.value: counts[level] for level in Level},
            "findings": [finding.to_dict(self.path) for finding in self.findings],
        }


def counted(count: int, verbs: str = "") -> str:
    """``1 demo`` or ``3 demos``, with the verb that belongs to it: ``counted(1, "has have")`` is ``1 demo has``."""
    one, _, many = verbs.partition(" ")
    words = ("demo", one) if count == 1 else ("demos", many)
    return " ".join(filter(None, (str(count), *words)))


def runs_of(steps: Sequence[int] | Any) -> Runs:
    """Sorted step numbers as stretches."""
    runs: list[tuple[int, int]] = []
    for step in map(int, steps):
        if runs and runs[-1][1] == step:
            runs[-1] = runs[-1][0], step + 1
        else:
            runs.append((step, step + 1))
    return tuple(runs)
