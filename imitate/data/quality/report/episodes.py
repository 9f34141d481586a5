"""Lengths and returns of demos, and a table of demos."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from imitate.data.quality.report.section import Figure, ReportSection, Table, number, percent
from imitate.data.quality.report.subject import Array, ReportInput
from imitate.data.quality.report.svg import histogram
from imitate.system.text import counted

_FRAME: dict[str, Any] = {"width": 460, "height": 210}
_MAX_NAMES = 200


def episodes(subject: ReportInput) -> ReportSection:
    """Return the distributions of length and return."""
    lengths = np.array([demo.length for demo in subject.demos])
    if not len(lengths):
        return ReportSection("episodes", "Episodes", text="There is no demo with steps.")
    unit = (
        f"steps per demo, at {number(subject.control_freq)} Hz"
        if subject.control_freq
        else "steps per demo"
    )
    median = float(np.median(lengths))
    words = f"{lengths.min()} to {lengths.max()} steps, median {number(median)}, mean {number(lengths.mean())}"
    drawing = histogram(lengths, noun="demo", label=unit, title="lengths of the demos", **_FRAME)
    figures = [Figure("Length", words, drawing)]
    returns = np.array(list(subject.returns.values()))
    if len(returns):
        figures.append(_returns(returns))
    return ReportSection("episodes", "Episodes", figures=figures, text=_success(subject))


def _returns(returns: Array) -> Figure:
    returns = returns[np.isfinite(returns)]
    if len(returns) and returns.min() == returns.max():
        words = f"the sum of rewards is {number(float(returns[0]))} in each of {counted(len(returns), 'demo')}"
        return Figure("Return", text=words)
    drawing = histogram(
        returns, noun="demo", label="sum of rewards", title="returns of the demos", **_FRAME
    )
    return Figure("Return", f"{number(returns.min())} to {number(returns.max())}", drawing)


def _success(subject: ReportInput) -> str:
    outcomes = [outcome for outcome in subject.outcomes.values() if outcome is not None]
    if not outcomes:
        return "It is not known which demos solved their task: there are no attribute success and no rewards."
    failed = [name for name, outcome in subject.outcomes.items() if outcome is False]
    share = percent(sum(outcomes) / len(outcomes))
    words = f"{sum(outcomes)} of {counted(len(outcomes), 'demo')} solved their task ({share})."
    if failed:
        words += f" Not solved: {', '.join(failed[:10])}{' …' if len(failed) > 10 else ''}."
    return words


def demo_table(subject: ReportInput) -> ReportSection | None:
    """Return a table with one row per demo."""
    if not subject.sample:
        return None
    found: dict[str, list[str]] = defaultdict(list)
    for finding in subject.health.findings:
        for name in finding.demos:
            found[name].append(finding.code)
    masks: dict[str, list[str]] = defaultdict(list)
    for key, names in subject.masks.items():
        for name in names:
            masks[name].append(key)
    rows = []
    for demo in subject.sample[:_MAX_NAMES]:
        outcome = subject.outcomes[demo.name]
        solved = {True: "yes", False: "no", None: "–"}[outcome]
        gained = subject.returns.get(demo.name)
        codes = tuple(dict.fromkeys(found[demo.name]))
        rows.append(
            (demo.name, ", ".join(masks[demo.name]), solved, codes, demo.length, number(gained))
        )
    header = ("demo", "filter keys", "solved", "findings", "steps", "return")
    shown = f"The first {len(rows)} that were read. " if len(rows) < len(subject.sample) else ""
    note = f"{shown}Click on a column's head to sort."
    return ReportSection("demos", "Demos", note, table=Table(header, rows, left=4))
