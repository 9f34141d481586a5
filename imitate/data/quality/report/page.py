"""The report's page: head, findings, demos and disk space by key, filled into the template ``page.html``."""

import base64
import hashlib
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.target import Target
from imitate.data.file.extents import Extents
from imitate.data.quality.doctor.finding import Finding, Level, Place
from imitate.data.quality.report.contents import (
    actions,
    initial_states,
    observations,
    thumbnails,
    trajectories,
)
from imitate.data.quality.report.section import (
    Figure,
    ReportSection,
    ShownFinding,
    Table,
    number,
    percent,
    size,
)
from imitate.data.quality.report.subject import Array, Progress, ReportInput, subject_of
from imitate.data.quality.report.svg import histogram, share_bar
from imitate.errors import DatasetError
from imitate.system.statistics import Rate, rate_of
from imitate.system.text import counted
from imitate.system.version import __version__

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
    rate = _rate(subject)
    if rate is None:
        return "It is not known which demos solved their task: neither success nor rewards of 0 and 1 are recorded."
    failed = [name for name, outcome in subject.outcomes.items() if outcome is False]
    words = (
        f"{rate.successes} of {counted(rate.n, 'demo')} solved their task ({percent(rate.value)})."
    )
    if failed:
        words += f" Not solved: {', '.join(failed[:10])}{' …' if len(failed) > 10 else ''}."
    return words


def _rate(subject: ReportInput) -> Rate | None:
    """Return the fraction of solved demos among the demos whose outcome is known."""
    return rate_of(outcome for outcome in subject.outcomes.values() if outcome is not None)


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


_KINDS = {"1": "robosuite", "2": "gymnasium", "3": "iGibson", "4": "real robot"}
_KNOWN = frozenset(("env_args", "control_freq", "total", "imitate_format", "features"))
_MAX_TEXT = 160
_MAX_ATTRS = 24
_MAX_PLACES = 6
_SIGNS = {Level.error: "✖", Level.warning: "▲", Level.info: "ℹ"}


def _tiles(subject: ReportInput) -> Iterator[tuple[str, str, str]]:
    """Yield the main numbers: name, value, and CSS class, 'error' or 'warning' for a count of findings, else ''."""
    steps = sum(demo.length for demo in subject.demos)
    number, unit = counted(len(subject.demos), "demo").split()
    yield unit, number, ""
    yield "step" if steps == 1 else "steps", f"{steps:,}".replace(",", " "), ""
    if subject.control_freq and steps:
        yield "recorded", _duration(steps / subject.control_freq), ""
    rate = _rate(subject)
    if rate is not None:
        yield "solved", percent(rate.value), ""
    yield "on disk", size(subject.file.hdf5_path.stat().st_size), ""
    levels = [finding.level for finding in subject.health.findings]
    for level in (Level.error, Level.warning):
        count = levels.count(level)
        name = level.value if count == 1 else f"{level.value}s"
        yield name, str(count), level.value if count else ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _facts(subject: ReportInput) -> Iterator[tuple[str, object]]:
    """Yield names and values of further facts; a value may be missing."""
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


def _reading(subject: ReportInput) -> str:
    """Describe the part of the file that the page shows."""
    of = f" of filter key “{subject.filter_key}”" if subject.filter_key else ""
    if subject.is_whole:
        return f"Values of all {len(subject.demos)} demos{of} were read."
    return (
        f"Values of {len(subject.sample)} of {counted(len(subject.demos), 'demo')}{of}, evenly spread, were read; "
        "lengths are those of all demos."
    )


def doctor(subject: ReportInput) -> ReportSection:
    """Return the findings, most severe first, each with the command that repairs it."""
    note = "Findings of imitate dataset doctor."
    if not subject.is_whole:
        note += f" Values were examined in {counted(len(subject.sample), 'demo')} only."
    findings = [_finding(subject, finding) for finding in subject.health.findings]
    well = "" if findings else "✔ Nothing is wrong with this file."
    return ReportSection("doctor", "Doctor", note, findings=findings, well=well)


def _finding(subject: ReportInput, finding: Finding) -> ShownFinding:
    command = finding.command(subject.file.path)
    advice = finding.alternative(subject.file.path)
    places = ", ".join(_place(place) for place in finding.places[:_MAX_PLACES])
    more = len(finding.places) - _MAX_PLACES
    if more > 0:
        places += f" and {more} more"
    sign, level = _SIGNS[finding.level], finding.level.value
    return ShownFinding(level, sign, finding.code, finding.what, places, command, advice)


def _place(place: Place) -> str:
    steps = ", ".join(str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in place.steps[:3])
    tail = f" steps {steps}{' …' if len(place.steps) > 3 else ''}" if steps else ""
    return " ".join(filter(None, (place.demo, place.key))) + tail


_FEW = 8
_ATTRIBUTES = "attributes of the demos"


def storage(subject: ReportInput) -> ReportSection | None:
    """Return a table of the disk space by key."""
    stored, raw, forms = _sizes(subject)
    if not stored:
        return None
    whole = sum(stored.values())
    rows = []
    for key in sorted(stored, key=lambda key: -stored[key]):
        share = stored[key] / max(1, whole)
        saved = f"{number(raw[key] / stored[key])} ×" if stored[key] and key in raw else "–"
        rows.append(
            (
                key,
                forms.get(key, "text"),
                share_bar(share, percent(share)),
                percent(share),
                size(stored[key]),
                saved,
            )
        )
    words = "all demos" if subject.is_whole else f"the {counted(len(subject.sample), 'demo')} read"
    note = f"{size(whole)} in arrays and attributes of {words}; compression is raw size divided by stored size."
    header = ("key", "one step", "", "share", "stored", "compression")
    return ReportSection("storage", "Size by key", note, table=Table(header, rows, left=3))


def _sizes(subject: ReportInput) -> tuple[dict[str, int], dict[str, int], dict[str, str]]:
    stored: dict[str, int] = {}
    raw: dict[str, int] = {}
    forms: dict[str, str] = {}
    for demo in subject.sample:
        for key, form in demo.arrays.items():
            array = subject.file.array(demo.name, key)
            with subject.file.reading(f"demo '{demo.name}', '{key}'"):
                stored[key] = stored.get(key, 0) + _stored(array)
            raw[key] = raw.get(key, 0) + int(np.prod(form.shape)) * form.dtype.itemsize
            shape = " × ".join(map(str, form.step)) or "number"
            forms[key] = f"{shape} {form.dtype}"
        texts = sum(len(str(value)) for value in subject.file.attrs(demo.name).values())
        stored[_ATTRIBUTES] = stored.get(_ATTRIBUTES, 0) + texts
    return stored, raw, forms


def _stored(array: h5py.Dataset) -> int:
    """Return the number of bytes on disk; for individually compressed frames, an estimate from a few frames."""
    if h5py.check_vlen_dtype(array.dtype) is None:
        return int(array.id.get_storage_size())
    some = range(0, array.shape[0], max(1, array.shape[0] // _FEW))
    return int(np.mean([len(array[step]) for step in some])) * array.shape[0] if some else 0


_SECTIONS = (
    doctor,
    episodes,
    trajectories,
    initial_states,
    actions,
    thumbnails,
    observations,
    storage,
    demo_table,
)
_FOLDER = Path(__file__).parent
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def write_report(
    path: str | Path,
    target: Target,
    *,
    filter_key: str | None = None,
    max_demos: int = 200,
    on_demo: Progress = lambda done, total: None,
) -> ReportInput:
    """Write a page about a demonstration file, atomically.

    Args:
        path: the HDF5 file.
        target: the page to write.
        filter_key: mask of the demos to report; None for all demos.
        max_demos: largest number of demos, evenly spread, whose values are read; at most 2 GB are read.
        on_demo: called with the number of processed demos and the number of all demos.

    Returns:
        the input of the page; its file is closed.

    Raises:
        DatasetError: the file cannot be read, there is no such filter key, or the page cannot be written.
    """
    if target.path.exists() and Path(path).exists() and target.path.samefile(path):
        raise DatasetError(f"{path}: is also the input file: name another with --out")
    with DatasetFile(path) as file, Extents(file) as extents:
        subject = subject_of(extents, filter_key=filter_key, max_demos=max_demos, on_demo=on_demo)
        with target.writing() as part:
            part.write_text(page(subject), encoding="utf-8")
    return subject


def page(subject: ReportInput) -> str:
    """Return the whole page; control characters in texts of the file are replaced."""
    pages = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True)
    sections = [section for build in _SECTIONS if (section := build(subject))]
    words = pages.get_template("page.html").render(
        name=subject.file.path.name,
        path=subject.file.path.resolve(),
        file=subject.file.path,
        version=__version__,
        tiles=_tiles(subject),
        facts=[(name, value) for name, value in _facts(subject) if value],
        reading=_reading(subject),
        sections=sections,
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup((_FOLDER / "page.js").read_text(encoding="utf-8")),
        digest=_digest,
    )
    return _CONTROL.sub("\ufffd", words)


def _digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
