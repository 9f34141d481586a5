"""Row of a benchmark's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """A measurement.

    Args:
        name: name of the measurement.
        value, unit: the measured number.
        target: smallest (or, with ``at_most``, largest) value wanted, or None if there is no target.
        at_most: true if smaller is better.
        peer: the other library's number in the same unit.
        peer_source: "same run", or the source of a recorded number.
        note: a remark that is printed beside the numbers.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False
    peer: float | None = None
    peer_source: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Return true if the target was met, or None without a target."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dictionary that can be written as JSON."""
        return {**asdict(self), "met": self.met}


def table(subject: str, rows: Sequence[Row], peer: str = "robomimic") -> str:
    """Return a Markdown table; columns of the peer are omitted if no row has its number."""
    header: tuple[str, ...] = (subject, "value", "unit", "wanted", "met", peer, "note")
    cells = [header] + [
        (
            row.name,
            _number(row.value),
            row.unit,
            "" if row.target is None else f"{'<=' if row.at_most else '>='} {_number(row.target)}",
            "" if row.met is None else "yes" if row.met else "NO",
            "" if row.peer is None else f"{_number(row.peer)} ({row.peer_source})",
            row.note,
        )
        for row in rows
    ]
    if all(row.peer is None for row in rows):
        cells = [line[:5] + line[6:] for line in cells]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
