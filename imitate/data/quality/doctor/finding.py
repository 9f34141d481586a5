"""Findings of the doctor, and its report on a file."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from imitate.data.edit.rewrite import Rows, Values

_MAX_NAMES = 20
_MOST_NAMES = 200
Runs = tuple[tuple[int, int], ...]
"""Ranges of steps: the first step, and the step after the last one."""


class Level(str, Enum):
    """Severity of a finding."""

    info = "info"
    warning = "warning"
    error = "error"


EXIT_CODES = {Level.info: 0, Level.warning: 1, Level.error: 3}


@dataclass(frozen=True)
class Place:
    """Demo, key and steps of a finding; None means all demos or keys."""

    demo: str | None = None
    key: str | None = None
    steps: Runs = ()


@dataclass(frozen=True)
class Remedy:
    """Changes that repair a finding; see :class:`imitate.data.edit.rewrite.FileChanges`.

    Attributes:
        drop_demos: demos to leave out.
        drop_keys: arrays to leave out.
        rows: rows to keep, by demo.
        values: function that changes the values of an array, by array.
        masks: the new list of demos of each filter key; a filter key whose list is empty is removed.
        attrs: new values of attributes of the group ``data``.
    """

    drop_demos: Sequence[str] = ()
    drop_keys: Sequence[str] = ()
    rows: Mapping[str, Rows] = field(default_factory=dict)
    values: Mapping[str, Callable[[Values], Values]] = field(default_factory=dict)
    masks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A fault, or a remark about a file.

    Attributes:
        code: short name of the finding's type, as given to ``--only``.
        level: severity of the finding.
        what: description of the finding.
        places: demos, arrays and steps concerned.
        remedy: changes that make a copy without the finding; None if a person has to repair it.
        advice: advice if there is no remedy, or as an alternative to it.
    """

    code: str
    level: Level
    what: str
    places: Sequence[Place] = ()
    remedy: Remedy | None = None
    advice: str = ""

    @property
    def demos(self) -> list[str]:
        """Return the demos in which the finding occurs, without duplicates."""
        return list(dict.fromkeys(place.demo for place in self.places if place.demo is not None))

    def command(self, path: Path) -> str | None:
        """Return the command that writes a file without this finding, or None."""
        if self.remedy is None:
            return None
        fixed = path.with_name(f"{path.stem}_fixed{path.suffix if _is_own(path) else '.hdf5'}")
        remedy = self.remedy
        words = ["imitate", "dataset"]
        others = remedy.rows or remedy.values or remedy.masks or remedy.attrs
        names = [*remedy.drop_demos, *remedy.drop_keys]
        if others or not 0 < len(names) <= _MAX_NAMES or any("," in name for name in names):
            words += ["doctor", str(path), "--fix", "--only", self.code]
        else:
            words += ["delete", str(path)]
            words += (
                ["--demos", ",".join(ranges_of(remedy.drop_demos))] if remedy.drop_demos else []
            )
            words += ["--keys", ",".join(remedy.drop_keys)] if remedy.drop_keys else []
        return shlex.join([*words, "--out", str(fixed)])

    def alternative(self, path: Path) -> str:
        """Return advice in addition to the repair or instead of it, so that deletion is never the only option."""
        remedy = self.remedy
        if self.advice or remedy is None:
            return self.advice
        names = ",".join(ranges_of(remedy.drop_demos))
        if names and len(remedy.drop_demos) <= _MOST_NAMES and not remedy.drop_keys:
            key = f"without_{self.code}"
            words = ["imitate", "dataset", "filter", str(path), key, "--without", names]
            words += ["--in-place"] if _is_own(path) else ["--out", f"{path.stem}_filtered.hdf5"]
            return f"keep them, and train on the others: {shlex.join(words)}"
        if names:
            return (
                "look at some of them with imitate dataset playback, and keep those that are good"
            )
        if remedy.drop_keys:
            return "keep it in the file, and leave it out of observation.modalities"
        return ""

    def to_dict(self, path: Path) -> dict[str, Any]:
        """Return the finding as plain values, for JSON."""
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
class DoctorReport:
    """The doctor's report of one file.

    Attributes:
        path: the file.
        demos: number of demos.
        steps: number of steps.
        read_bytes: size of all values that were read.
        findings: the findings, most severe first.
    """

    path: Path
    demos: int
    steps: int
    read_bytes: int
    findings: Sequence[Finding]

    @property
    def exit_code(self) -> int:
        """Exit code: 0 without faults, 1 for warnings, 3 for errors."""
        return max((EXIT_CODES[finding.level] for finding in self.findings), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
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


def ranges_of(demos: Sequence[str]) -> list[str]:
    """Replace three or more demos with successive numbers by a range, such as ``demo_3-demo_7``."""
    found: list[list[str]] = []
    for name in demos:
        if found and name == _following(found[-1][-1]):
            found[-1].append(name)
        else:
            found.append([name])
    return [word for run in found for word in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else run)]


def _following(name: str) -> str:
    """Return the name with the next number, such as demo_8 after demo_7."""
    head = name.rstrip("0123456789")
    return f"{head}{int(name[len(head) :]) + 1}" if name != head else ""


def _is_own(path: Path) -> bool:
    """Return true for an HDF5 file, which can be changed in place; a dataset of another format is converted."""
    return path.suffix in (".hdf5", ".h5")


def counted(count: int, verbs: str = "") -> str:
    """Return ``1 demo`` or ``3 demos``, with a verb that agrees: ``counted(1, "has have")`` is ``1 demo has``."""
    one, _, many = verbs.partition(" ")
    words = ("demo", one) if count == 1 else ("demos", many)
    return " ".join(filter(None, (str(count), *words)))


def runs_of(steps: Sequence[int] | Any) -> Runs:
    """Convert sorted step numbers to ranges."""
    runs: list[tuple[int, int]] = []
    for step in map(int, steps):
        if runs and runs[-1][1] == step:
            runs[-1] = runs[-1][0], step + 1
        else:
            runs.append((step, step + 1))
    return tuple(runs)
