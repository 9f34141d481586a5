"""Data of the report's sections, which ``page.html`` displays, and formatting of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup


class Figure(NamedTuple):
    """A drawing with its title and the names of its curves, or a text in place of the drawing."""

    title: str
    caption: str = ""
    drawing: Markup = Markup("")
    curves: Sequence[str] = ()
    text: str = ""


class Table(NamedTuple):
    """A table that a click on a header sorts; the first ``left`` columns are text, the others numbers.

    A cell that is a sequence of strings is displayed as codes.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    left: int = 1


class Frame(NamedTuple):
    """An image with its demo and step."""

    url: str
    place: str


class CameraFilms(NamedTuple):
    """Frames of one camera: ``films`` has a label and the frames of each shown demo."""

    key: str
    name: str
    form: str
    films: Sequence[tuple[str, Sequence[Frame]]]


class ShownFinding(NamedTuple):
    """A finding of the doctor in words."""

    level: str
    sign: str
    code: str
    what: str
    places: str
    command: str | None
    advice: str | None


@dataclass(frozen=True)
class ReportSection:
    """Section of the page; parts without a value are left out.

    Attributes:
        id: name of the section's anchor.
        title: heading.
        note: explanation below the heading.
        findings: findings of the doctor.
        well: text to show if the doctor found nothing.
        legend: true to explain the colours of solved and other demos.
        figures: drawings in a grid.
        grid: CSS class of the grid.
        below: a drawing below the grid.
        text: a paragraph.
        cameras: frames of cameras.
        table: a table.
        details: titles and tables that are folded.
    """

    id: str
    title: str
    note: str = ""
    findings: Sequence[ShownFinding] = ()
    well: str = ""
    legend: bool = False
    figures: Sequence[Figure] | None = None
    grid: str = "grid"
    below: Figure | None = None
    text: str = ""
    cameras: Sequence[CameraFilms] = ()
    table: Table | None = None
    details: Sequence[tuple[str, Table]] = ()


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with ``digits`` significant digits; None becomes a dash."""
    return "–" if value is None else f"{value:.{digits}g}".replace("-", "−")


def size(num_bytes: float) -> str:
    """Format a number of bytes in a suitable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:  # less than 1 of the next unit after rounding to three digits
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def percent(share: float) -> str:
    """Format a fraction in percent; a positive one is never shown as 0 %."""
    if 0 < share < 0.001:
        return "<\u00a00.1\u00a0%"
    if 0.999 < share < 1:
        return ">\u00a099.9\u00a0%"
    return f"{100 * share:.1f}".removesuffix(".0") + "\u00a0%"
