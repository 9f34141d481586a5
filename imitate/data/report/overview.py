"""Head of the page: the file, its size and origin, and the doctor's findings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from imitate.data.doctor.finding import Finding, Level, Place
from imitate.data.report.markup import Html, el, join, number, percent, section, size
from imitate.data.report.subject import Subject
from imitate.system.wording import counted

_KINDS = {"1": "robosuite", "2": "gymnasium", "3": "iGibson", "4": "real robot"}
_KNOWN = frozenset(("env_args", "control_freq", "total", "imitate_format"))
_MAX_TEXT = 160
_MAX_ATTRS = 24
_MAX_PLACES = 6
_SIGNS = {Level.error: "✖", Level.warning: "▲", Level.info: "ℹ"}


def head(subject: Subject) -> Html:
    """Return the title, the main numbers and further facts."""
    path = subject.file.path
    lead = el("p", str(path.resolve()), class_="path")
    return el(
        "header", el("h1", path.name), lead, _tiles(subject), _facts(subject), _reading(subject)
    )


def _tiles(subject: Subject) -> Html:
    steps = sum(demo.length for demo in subject.demos)
    number, unit = counted(len(subject.demos), "demo").split()
    tiles = [(unit, number), ("step" if steps == 1 else "steps", f"{steps:,}".replace(",", " "))]
    if subject.control_freq and steps:
        tiles.append(("recorded", _duration(steps / subject.control_freq)))
    known = [outcome for outcome in subject.outcomes.values() if outcome is not None]
    if known:
        tiles.append(("solved", f"{percent(sum(known) / len(known))}"))
    tiles.append(("on disk", size(subject.file.hdf5_path.stat().st_size)))
    levels = [finding.level for finding in subject.health.findings]
    for level in (Level.error, Level.warning):
        count = levels.count(level)
        tiles.append((level.value if count == 1 else f"{level.value}s", str(count)))
    return el(
        "div",
        *(
            el(
                "div",
                el("b", value),
                el("span", name),
                class_=f"tile {_alarm(name, value)}".strip(),
            )
            for name, value in tiles
        ),
        class_="tiles",
    )


def _alarm(name: str, value: str) -> str:
    return name.rstrip("s") if name.rstrip("s") in ("error", "warning") and value != "0" else ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _facts(subject: Subject) -> Html:
    rows = [(name, value) for name, value in _described(subject) if value]
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in rows))


def _described(subject: Subject) -> Iterator[tuple[str, object]]:
    meta, attrs = subject.env_meta, subject.file.file_attrs
    robots = subject.env_kwargs.get("robots")
    kind = _KINDS.get(str(meta.get("type")))
    yield "environment", " ".join(_words(meta.get("env_name"))) or "not said"
    yield "simulator", " ".join([*_words(kind), *_words(meta.get("env_version"))])
    yield "robot", ", ".join(map(str, robots)) if isinstance(robots, list) else robots
    rate = subject.control_freq
    yield "control rate", f"{number(rate)} Hz" if rate else "not said"
    masks = [f"{name} ({len(demos)})" for name, demos in subject.masks.items()]
    yield "filter keys", ", ".join(masks) or "none"
    version = attrs.get("imitate_format")
    yield "format", "robomimic HDF5" + (f", imitate version {version}" if version else "")
    changed = subject.file.hdf5_path.stat().st_mtime
    yield "last changed", time.strftime("%Y-%m-%d %H:%M", time.localtime(changed))
    others = [name for name in attrs if name not in _KNOWN]
    for name in others[:_MAX_ATTRS]:
        yield name, _shortened(attrs[name])


def _words(value: Any) -> list[str]:
    return [str(value)] if value else []


def _shortened(value: object) -> str:
    said = " ".join(str(value).split())
    return said if len(said) <= _MAX_TEXT else f"{said[:_MAX_TEXT]} … ({len(said)} characters)"


def _reading(subject: Subject) -> Html:
    """Describe the part of the file that the page shows."""
    of = f" of filter key “{subject.filter_key}”" if subject.filter_key else ""
    if subject.is_whole:
        words = f"Values of all {len(subject.demos)} demos{of} were read."
    else:
        words = (
            f"Values of {len(subject.sample)} of {counted(len(subject.demos), 'demo')}{of}, evenly spread, were read; "
            "lengths are those of all demos."
        )
    return el("p", words, class_="note")


def doctor(subject: Subject) -> Html:
    """Return the findings, most severe first, each with the command that repairs it."""
    findings = subject.health.findings
    looked = (
        ""
        if subject.is_whole
        else f" Values were examined in {counted(len(subject.sample), 'demo')} only."
    )
    if not findings:
        body = el("p", "✔ Nothing is wrong with this file.", class_="well")
    else:
        body = join(_finding(subject, finding) for finding in findings)
    return section("doctor", "Doctor", body, note=f"Findings of imitate dataset doctor.{looked}")


def _finding(subject: Subject, finding: Finding) -> Html:
    command = finding.command(subject.file.path)
    advice = finding.alternative(subject.file.path)
    level = finding.level.value
    badge = el("span", f"{_SIGNS[finding.level]} {level}", class_=f"badge {level}")
    places = ", ".join(_place(place) for place in finding.places[:_MAX_PLACES])
    more = len(finding.places) - _MAX_PLACES
    if more > 0:
        places += f" and {more} more"
    return el(
        "div",
        el("p", badge, el("b", finding.code), " ", finding.what),
        el("p", places, class_="places") if places else None,
        el("pre", command) if command else None,
        el("p", f"{'Or' if command else 'Advice'}: {advice}") if advice else None,
        class_=f"finding {level}",
    )


def _place(place: Place) -> str:
    steps = ", ".join(str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in place.steps[:3])
    tail = f" steps {steps}{' …' if len(place.steps) > 3 else ''}" if steps else ""
    return " ".join(filter(None, (place.demo, place.key))) + tail
