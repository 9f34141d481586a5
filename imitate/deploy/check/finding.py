"""Findings of a deployment check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """Severity of a finding: a note is not counted, a problem makes the check fail."""

    note = "note"
    warning = "warning"
    problem = "problem"


@dataclass(frozen=True)
class Finding:
    """A problem, or something that could not be checked.

    Attributes:
        level: severity.
        kind: keyword for programs: ``missing``, ``shape``, ``rate``, ``range``, ``channels`` ...
        key: affected observation; empty if it is not about a single one.
        words: message for people.
    """

    level: Level
    kind: str
    key: str
    words: str


def verdict(findings: Iterable[Finding]) -> str:
    """Return the result of a check: ``ok``, ``warnings`` or ``fails``."""
    levels = {finding.level for finding in findings}
    if Level.problem in levels:
        return "fails"
    return "warnings" if Level.warning in levels else "ok"
