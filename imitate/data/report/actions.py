"""Plots of actions: distribution of each dimension, and magnitude over the course of a demo."""

from __future__ import annotations

import numpy as np

from imitate.data.doctor.motion import is_switch
from imitate.data.file.faults import ACTION_LIMIT
from imitate.data.report.markup import Html, el, figure, number, percent, section
from imitate.data.report.subject import Array, Subject
from imitate.data.report.svg import Line, Plot, histogram
from imitate.system.wording import counted

_MOST_STEPS = 200_000
_MOST_DIMS = 32
_PHASES = 50


def actions(subject: Subject) -> Html:
    """Return histograms per dimension, and the magnitude over time."""
    values = subject.pooled("actions", _MOST_STEPS)
    if values is None:
        return section("actions", "Actions", el("p", "There are no actions that can be read."))
    low, high = values.min(axis=0), values.max(axis=0)
    bounded = bool(max(high.max(), -low.min()) <= ACTION_LIMIT)
    drawings = [
        _dimension(values[:, d], d, bounded) for d in range(min(values.shape[1], _MOST_DIMS))
    ]
    note = f"{counted(len(values), 'step')} of {counted(len(subject.sample), 'demo')}"
    note += (
        "; dashed lines are the limits −1 and 1."
        if bounded
        else "; the actions leave [−1, 1]: the limits are the smallest and largest value."
    )
    if values.shape[1] > _MOST_DIMS:
        note += f" The first {_MOST_DIMS} of {values.shape[1]} dimensions are shown."
    course = _course(subject, values)
    return section(
        "actions", "Actions", el("div", *drawings, class_="grid small"), course, note=note
    )


def _dimension(values: Array, dimension: int, bounded: bool) -> Html:
    low, high = float(values.min()), float(values.max())
    drawing = histogram(
        values,
        noun="step",
        label="action",
        limits=(-1.08, 1.08) if bounded else _range(low, high),
        marks=(-1, 1) if bounded else (),
        width=232,
        height=150,
        title=f"histogram of action {dimension}",
    )
    if low == high:
        words = f"always {number(low)}"
    elif bool(is_switch(values[:, None])[0]):
        words = f"a switch: {number(low, 3)} in {percent(float((values == low).mean()))}, else {number(high, 3)}"
    else:
        words = f"{number(low, 3)} to {number(high, 3)}, mean {number(float(values.mean()), 2)}"
        words += f"; {percent(float(_stuck(values, bounded).mean()))} at a limit"
    return figure(drawing, f"dimension {dimension}", words)


def _stuck(values: Array, bounded: bool) -> Array:
    """Return (n,), true where a value is at -1 or 1, or at its smallest or largest value if actions are not bounded."""
    if bounded:
        return np.asarray(np.abs(values) >= 1)
    return np.asarray((values == values.min()) | (values == values.max()))


def _range(low: float, high: float) -> tuple[float, float]:
    room = 0.04 * (high - low) or 0.5
    return low - room, high + room


def _course(subject: Subject, pooled: Array) -> Html:
    """Plot the magnitude of actions over the course of a demo: median, and the middle 80 %."""
    arm = ~is_switch(pooled)
    if not arm.any():
        return Html("")
    phases: list[list[Array]] = [[] for _ in range(_PHASES)]
    for demo in subject.sample:
        values = subject.values(demo, "actions", 2_000)
        if values is None:
            continue
        norms = np.linalg.norm(values[:, arm], axis=1)
        parts = np.arange(len(norms)) * _PHASES // len(norms)
        for part in np.unique(parts):
            phases[part].append(norms[parts == part])
    at = np.array([k for k in range(_PHASES) if phases[k]])
    spread = np.array([np.quantile(np.concatenate(phases[k]), (0.1, 0.5, 0.9)) for k in at])
    progress = 100 * (at + 0.5) / _PHASES
    plot = Plot(
        (0, 100),
        (0, float(spread.max()) * 1.05),
        width=720,
        height=220,
        labels=("progress of the demo, %", "size of the action"),
        title="size of the action in the course of a demo",
    )
    plot.band(progress, spread[:, 0], spread[:, 2])
    plot.line(Line(np.stack([progress, spread[:, 1]], axis=1), "curve", "median"))
    switches = "; switches such as a gripper's are left out" if not arm.all() else ""
    words = f"norm of the action: median, and the middle 80 % of the steps{switches}"
    return figure(plot.draw(), "Action in the course of a demo", words)
