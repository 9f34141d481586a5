"""Layout of text for readers: pairs, tables, formatted values."""

from collections.abc import Iterator, Sequence
from typing import Any

Report = dict[str, Any]


SOLVED = {True: "solved", False: "not solved", None: "success unknown"}


def in_one_line(text: str) -> str:
    """Replace line breaks in a text from a file, which could otherwise imitate lines of the report."""
    return text.replace("\n", "\\n").replace("\r", "\\r")


def pairs(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield lines with a label and a value each."""
    for label, value in rows:
        yield in_one_line(f"{label:<14} {value}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, with columns as wide as their widest cell."""
    lines = [[in_one_line(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        yield "  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip()


def environment_words(report: Report) -> str:
    """Describe an environment by its task, the simulator with its version, and the robots."""
    if not report["env_name"]:
        return "not said"
    kind = {1: "robosuite", 2: "gymnasium", 3: "iGibson", 4: "real robot"}.get(report["env_type"])
    robots = report["robots"]
    if isinstance(robots, list):
        robots = ", ".join(robots)
    details = " ".join(filter(None, (kind, report["env_version"], robots)))
    return f"{report['env_name']} ({details})" if details else str(report["env_name"])


def success_words(success: Report | None) -> str:
    """Describe how many demos solve their task, and whether this is known from rewards or from an attribute."""
    if success is None:
        return "not said"
    rate = percent(success["demos"] / success["of"])
    return f"{success['demos']} of {success['of']} ({rate}), by {success['by']}"


def shape_words(shape: Sequence[int]) -> str:
    """Format a shape, such as ``84 x 84 x 3``."""
    return " x ".join(map(str, shape)) or "number"


def number(value: float | None) -> str:
    """Format a number with four significant digits; a dash for None."""
    return "-" if value is None else f"{value:.4g}"


def whole(value: float | None) -> str:
    """Format a count without decimals; a dash for None."""
    return "-" if value is None else f"{value:.0f}"


def percent(value: float | None) -> str:
    """Format a share as whole percent; a dash for None."""
    return "-" if value is None else f"{100 * value:.0f} %"
