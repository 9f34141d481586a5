"""Statistics of every array, with marks for constant, badly scaled and not finite values."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from imitate.data.batches.statistics import KeyStats
from imitate.data.curate.summary import key_statistics
from imitate.data.report.markup import Html, el, number, section, table
from imitate.data.report.subject import Subject
from imitate.errors import DatasetError

_MOST_KEYS = 100
_MOST_DIMS = 64
_CONSTANT = 1e-4  # a smaller range is shifted by the normalization, never scaled


def observations(subject: Subject) -> Html:
    """Return one row per array, and a folded table with one row per dimension."""
    keys = [key for key in subject.layout.steps if _is_shown(key)]
    found = {key: _statistics(subject, key) for key in keys[:_MOST_KEYS]}
    rows = [_row(subject, key, stats) for key, stats in found.items()]
    details = [_details(key, stats) for key, stats in found.items() if stats is not None]
    if not rows:
        return Html("")
    header = (
        "array",
        "one step",
        "type",
        "constant dimensions",
        "smallest",
        "mean",
        "largest",
        "std",
    )
    note = "Over all steps that were read; the smallest to the largest standard deviation of its dimensions."
    if len(keys) > _MOST_KEYS:
        note += f" The first {_MOST_KEYS} of {len(keys)} arrays."
    return section(
        "observations",
        "Observations and actions",
        table(header, rows, left=4),
        el("details", el("summary", "Every dimension"), *details) if details else None,
        note=note,
    )


def _is_shown(key: str) -> bool:
    return key in ("actions", "rewards") or key.startswith(("obs/", "action_dict/"))


def _statistics(subject: Subject, key: str) -> KeyStats | None:
    usual = subject.layout.steps[key]
    having = [
        demo.name
        for demo in subject.sample
        if key in demo.arrays
        and demo.arrays[key].step == usual.step
        and demo.arrays[key].is_numeric
    ]
    if not having or math.prod(usual.step) == 0:
        return None
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            return key_statistics(subject.layout.extents, having, key)
    except DatasetError:
        return None


def _row(subject: Subject, key: str, stats: KeyStats | None) -> tuple[object, ...]:
    form = subject.layout.steps[key]
    shape = " × ".join(map(str, form.step)) or "number"
    if stats is None:
        return key, shape, str(form.dtype), el("span", "unreadable", class_="code"), *["–"] * 4
    with np.errstate(invalid="ignore"):
        still = np.flatnonzero(stats.max - stats.min < _CONSTANT)
    constant: object = ""
    if len(still) == stats.max.size:
        constant = el("span", "all", class_="code")
    elif len(still):
        constant = ", ".join(map(str, still[:8])) + (" …" if len(still) > 8 else "")
    low, high = float(stats.std.min()), float(stats.std.max())
    spread = number(high) if stats.std.size == 1 else f"{number(low)} … {number(high)}"
    values = [number(float(v)) for v in (stats.min.min(), stats.mean.mean(), stats.max.max())]
    return key, shape, str(form.dtype), constant, *values, spread


def _details(key: str, stats: KeyStats) -> Html | None:
    if stats.mean.size < 2:
        return None
    header = ("dimension", "smallest", "mean", "largest", "std")
    more = f", the first {_MOST_DIMS} of {stats.mean.size}" if stats.mean.size > _MOST_DIMS else ""
    return el("div", el("h3", f"{key}{more}"), table(header, list(_dimensions(stats))))


def _dimensions(stats: KeyStats) -> Iterator[tuple[str, ...]]:
    columns = (stats.min, stats.mean, stats.max, stats.std)
    for at in range(min(stats.mean.size, _MOST_DIMS)):
        yield str(at), *(number(float(np.ravel(column)[at])) for column in columns)
