"""Lengths and returns of demos, and a table of demos."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from imitate.data.quality.report.markup import (
    Html,
    el,
    figure,
    join,
    number,
    percent,
    section,
    table,
)
from imitate.data.quality.report.subject import Array, ReportInput
from imitate.data.quality.report.svg import histogram
from imitate.system.text import counted

_WIDTH, _HEIGHT = 460, 210
_MAX_NAMES = 200


def episodes(subject: ReportInput) -> Html:
    """Return the distributions of length and return."""
    lengths = np.array([demo.length for demo in subject.demos])
    if not len(lengths):
        return section("episodes", "Episodes", el("p", "There is no demo with steps."))
    unit = (
        f"steps per demo, at {number(subject.control_freq)} Hz"
        if subject.control_freq
        else "steps per demo"
    )
    median = float(np.median(lengths))
    words = f"{lengths.min()} to {lengths.max()} steps, median {number(median)}, mean {number(lengths.mean())}"
    drawings = [
        figure(
            histogram(
                lengths,
                noun="demo",
                label=unit,
                width=_WIDTH,
                height=_HEIGHT,
                title="lengths of the demos",
            ),
            "Length",
            words,
        )
    ]
    returns = np.array(list(subject.returns.values()))
    if len(returns):
        drawings.append(_returns(returns))
    return section("episodes", "Episodes", el("div", *drawings, class_="grid"), _success(subject))


def _returns(returns: Array) -> Html:
    title = "Return"
    returns = returns[np.isfinite(returns)]
    if len(returns) and returns.min() == returns.max():
        words = f"the sum of rewards is {number(float(returns[0]))} in each of {counted(len(returns), 'demo')}"
        return figure(el("p", words, class_="plain"), title)
    drawing = histogram(
        returns,
        noun="demo",
        label="sum of rewards",
        width=_WIDTH,
        height=_HEIGHT,
        title="returns of the demos",
    )
    return figure(drawing, title, f"{number(returns.min())} to {number(returns.max())}")


def _success(subject: ReportInput) -> Html | None:
    outcomes = [outcome for outcome in subject.outcomes.values() if outcome is not None]
    if not outcomes:
        return el(
            "p",
            "It is not known which demos solved their task: there are no attribute success and no rewards.",
        )
    failed = [name for name, outcome in subject.outcomes.items() if outcome is False]
    share = percent(sum(outcomes) / len(outcomes))
    words = f"{sum(outcomes)} of {counted(len(outcomes), 'demo')} solved their task ({share})."
    if failed:
        words += f" Not solved: {', '.join(failed[:10])}{' …' if len(failed) > 10 else ''}."
    return el("p", words)


def demo_table(subject: ReportInput) -> Html:
    """Return a table with one row per demo."""
    if not subject.sample:
        return Html("")
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
        codes = join(el("span", code, class_="code") for code in dict.fromkeys(found[demo.name]))
        rows.append(
            (demo.name, ", ".join(masks[demo.name]), solved, codes, demo.length, number(gained))
        )
    header = ("demo", "filter keys", "solved", "findings", "steps", "return")
    shown = f"The first {len(rows)} that were read. " if len(rows) < len(subject.sample) else ""
    note = f"{shown}Click on a column's head to sort."
    return section("demos", "Demos", table(header, rows, left=4), note=note)
