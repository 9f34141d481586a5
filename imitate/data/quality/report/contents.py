"""Sections of the report on the recorded values: plots, statistics of every array, and thumbnails of images.

The plots are of actions, of the robot's paths, and of the initial scenes.
"""

import base64
import io
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from imitate.data.batches.statistics import KeyStats
from imitate.data.edit.summary import key_statistics
from imitate.data.file.faults import are_beyond
from imitate.data.file.features import dimension_words
from imitate.data.quality.doctor.motion import is_position, is_switch
from imitate.data.quality.doctor.survey import HAND, DemoLayout, FileArray
from imitate.data.quality.report.section import (
    CameraFilms,
    Figure,
    Frame,
    ReportSection,
    Table,
    number,
    percent,
)
from imitate.data.quality.report.subject import Array, ReportInput, spread
from imitate.data.quality.report.svg import Line, Plot, histogram, padded
from imitate.errors import DatasetError
from imitate.system.text import counted

_PLACE = re.compile(r"_pos(ition)?$")
_ROBOT = re.compile(r"robot|eef|ee_|tcp|gripper|joint|qpos|_to_")
_MOST_PATHS, _MOST_POINTS = 60, 80
_MOST_CURVES = 6
_MOST_STARTS = 500
_MOST_PLACES = 4
_VIEWS = (("seen from above", 0, 1), ("seen from the side", 0, 2))
_AXES = ("x, m", "y, m", "z, m")


def trajectories(subject: ReportInput) -> ReportSection:
    """Plot the paths of the hands; for files without hands, the first observations over time."""
    hands = [
        key for key, form in subject.layout.steps.items() if HAND.match(key) and form.step == (3,)
    ]
    demos = spread(subject.sample, _MOST_PATHS)
    figures = [figure for key in hands for figure in _paths(subject, key, demos)]
    if figures:
        note = f"{counted(len(demos), 'demo')}; a circle where they begin, a dot where they end."
        failed = any(subject.outcomes[demo.name] is False for demo in demos)
        return ReportSection("trajectories", "Trajectories", note, legend=failed, figures=figures)
    note = "The first low-dimensional observations over time."
    return ReportSection("trajectories", "Trajectories", note, figures=list(_curves(subject)))


def _paths(subject: ReportInput, key: str, demos: list[DemoLayout]) -> Iterator[Figure]:
    found = [(demo, subject.values(demo, key, _MOST_POINTS)) for demo in demos]
    paths = [(demo, values) for demo, values in found if values is not None]
    if not paths:
        return
    every = np.concatenate([values for _, values in paths])
    for words, across, up in _VIEWS:
        plot = Plot(
            padded(every[:, across]),
            padded(every[:, up]),
            width=460,
            height=340,
            labels=(_AXES[across], _AXES[up]),
            title=f"paths of {key} {words}",
            equal=True,
        )
        for demo, values in paths:
            kind = "failed" if subject.outcomes[demo.name] is False else "solved"
            plot.line(Line(values[:, [across, up]], f"way {kind}", demo.name))
        for demo, values in paths:
            kind = "failed" if subject.outcomes[demo.name] is False else "solved"
            plot.dot(values[0, across], values[0, up], f"start {kind}", f"{demo.name} begins")
            plot.dot(values[-1, across], values[-1, up], f"end {kind}", f"{demo.name} ends", 2.5)
        yield Figure(key.removeprefix("obs/"), words, plot.draw())


def _curves(subject: ReportInput) -> Iterator[Figure]:
    keys = [
        key
        for key, form in subject.layout.steps.items()
        if key.startswith("obs/") and len(form.step) <= 1 and 0 not in form.step and form.is_numeric
    ]
    keys.sort(key=lambda key: (not is_position(key), key))
    demos = spread(subject.sample, 5)
    for key in keys[:_MOST_CURVES]:
        found = [(demo, subject.values(demo, key, 200)) for demo in demos]
        curves = [(demo, values) for demo, values in found if values is not None]
        if not curves:
            continue
        values = np.concatenate([values[:, 0] for _, values in curves])
        last = max(demo.length for demo, _ in curves)
        plot = Plot(
            (0, last - 1),
            padded(values),
            width=460,
            height=220,
            labels=("step", "value"),
            title=f"{key} over time",
        )
        for place, (demo, values) in enumerate(curves):
            at = np.linspace(0, demo.length - 1, len(values))
            plot.line(Line(np.stack([at, values[:, 0]], axis=1), f"curve c{place}", demo.name))
        names = [demo.name for demo, _ in curves]
        first = dimension_words([0], subject.names.get(key))
        title = f"{key.removeprefix('obs/')}, dimension {first}"
        yield Figure(title, drawing=plot.draw(), curves=names)


def initial_states(subject: ReportInput) -> ReportSection | None:
    """Plot the positions of objects at the first step."""
    demos = spread(subject.sample, _MOST_STARTS)
    figures: list[Figure] = []
    for key, form in subject.layout.steps.items():
        if len(form.step) == 1 and key.startswith("obs/") and not _ROBOT.search(key):
            figures += _scatters(subject, key, demos)
    if not figures:
        return None
    note = (
        f"Objects at the first step of {counted(len(demos), 'demo')}: how much the scenes differ."
    )
    shown = figures[:_MOST_PLACES]
    return ReportSection("starts", "Initial states", note, figures=shown, grid="grid starts")


def _scatters(subject: ReportInput, key: str, demos: list[DemoLayout]) -> Iterator[Figure]:
    found = [(demo, subject.values(demo, key, 1)) for demo in demos]
    kept = [(demo, values[0]) for demo, values in found if values is not None]
    if not kept:
        return
    starts = np.stack([values for _, values in kept])
    name = key.removeprefix("obs/")
    for first in places_in(key, starts):
        x, y = starts[:, first], starts[:, first + 1]
        plot = Plot(
            padded(x),
            padded(y),
            width=300,
            height=260,
            labels=(f"{name}[{first}], m", f"{name}[{first + 1}], m"),
            title=f"{key} at the first step",
            equal=True,
        )
        for (demo, _), a, b in zip(kept, x, y, strict=True):
            kind = "failed" if subject.outcomes[demo.name] is False else "solved"
            plot.dot(float(a), float(b), f"end {kind}", demo.name, 2.5)
        pair = dimension_words([first, first + 1], subject.names.get(key))
        yield Figure(name, f"dimensions {pair.replace(', ', ' and ')}", plot.draw())


def places_in(key: str, starts: Array) -> list[int]:
    """Return the index of the first dimension of each position in an observation.

    An observation is a position if its name says so. In ``object``, where robosuite concatenates a whole scene, the
    three dimensions before a unit quaternion are a position.

    Args:
        key: name of the observation.
        starts: (n, D) values of the observation at the first step of each demo.
    """
    width = starts.shape[1]
    if _PLACE.search(key):
        return [0] if width in (2, 3) else []
    if not key.endswith("object"):
        return []
    found = []
    first = 0
    while first + 7 <= width:
        norms = np.linalg.norm(starts[:, first + 3 : first + 7], axis=1)
        if np.abs(norms - 1).max() < 1e-3:
            found.append(first)
            first += 7
        else:
            first += 1
    return found or ([0] if width >= 2 else [])


_MOST_STEPS = 200_000
_MOST_DIMS = 32
_PHASES = 50


def actions(subject: ReportInput) -> ReportSection:
    """Return histograms per dimension, and the magnitude over time."""
    values = subject.pooled("actions", _MOST_STEPS)
    if values is None:
        return ReportSection("actions", "Actions", text="There are no actions that can be read.")
    low, high = values.min(axis=0), values.max(axis=0)
    bounded = not (are_beyond(low) | are_beyond(high)).any()
    figures = [
        _dimension(values[:, d], dimension_words([d], subject.names.get("actions")), bounded)
        for d in range(min(values.shape[1], _MOST_DIMS))
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
    return ReportSection(
        "actions", "Actions", note, figures=figures, grid="grid small", below=course
    )


def _dimension(values: Array, dimension: str, bounded: bool) -> Figure:
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
    return Figure(f"dimension {dimension}", words, drawing)


def _stuck(values: Array, bounded: bool) -> Array:
    """Return a mask (n,) of the values at -1 or 1, or at the smallest or largest value if actions are not bounded."""
    if bounded:
        return np.asarray(np.abs(values) >= 1)
    return np.asarray((values == values.min()) | (values == values.max()))


def _range(low: float, high: float) -> tuple[float, float]:
    room = 0.04 * (high - low) or 0.5
    return low - room, high + room


def _course(subject: ReportInput, pooled: Array) -> Figure | None:
    """Plot the magnitude of actions over the course of a demo: median, and the middle 80 %."""
    arm = ~is_switch(pooled)
    if not arm.any():
        return None
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
    return Figure("Action in the course of a demo", words, plot.draw())


_MOST_KEYS = 100
_MOST_ROWS = 64
_CONSTANT = 1e-4  # normalization shifts a smaller range but does not scale it


def observations(subject: ReportInput) -> ReportSection | None:
    """Return the statistics: a row per array, and folded tables with a row per dimension."""
    keys = [key for key in subject.layout.steps if _is_shown(key)]
    found = {key: _statistics(subject, key) for key in keys[:_MOST_KEYS]}
    rows = [_row(subject, key, stats) for key, stats in found.items()]
    details = [
        _details(key, stats, subject.names.get(key))
        for key, stats in found.items()
        if stats and stats.mean.size >= 2
    ]
    if not rows:
        return None
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
    note = "Over all steps that were read; std is the smallest … largest of the array's dimensions."
    if len(keys) > _MOST_KEYS:
        note += f" The first {_MOST_KEYS} of {len(keys)} arrays."
    shown = Table(header, rows, left=4)
    title = "Observations and actions"
    return ReportSection("observations", title, note, table=shown, details=details)


def _is_shown(key: str) -> bool:
    return key in ("actions", "rewards") or key.startswith(("obs/", "action_dict/"))


def _statistics(subject: ReportInput, key: str) -> KeyStats | None:
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


def _row(subject: ReportInput, key: str, stats: KeyStats | None) -> tuple[object, ...]:
    form = subject.layout.steps[key]
    shape = " × ".join(map(str, form.step)) or "number"
    if stats is None:
        return key, shape, str(form.dtype), ("unreadable",), *["–"] * 4
    with np.errstate(invalid="ignore"):
        still = np.flatnonzero(stats.max - stats.min < _CONSTANT)
    constant: object = ""
    if len(still) == stats.max.size:
        constant = ("all",)
    elif len(still):
        constant = dimension_words(still, subject.names.get(key), 8)
    low, high = float(stats.std.min()), float(stats.std.max())
    spread = number(high) if stats.std.size == 1 else f"{number(low)} … {number(high)}"
    values = [number(float(v)) for v in (stats.min.min(), stats.mean.mean(), stats.max.max())]
    return key, shape, str(form.dtype), constant, *values, spread


def _details(key: str, stats: KeyStats, names: Sequence[str] | None) -> tuple[str, Table]:
    header = ("dimension", "smallest", "mean", "largest", "std")
    more = f", the first {_MOST_ROWS} of {stats.mean.size}" if stats.mean.size > _MOST_ROWS else ""
    return f"{key}{more}", Table(header, list(_dimensions(stats, names)))


def _dimensions(stats: KeyStats, names: Sequence[str] | None) -> Iterator[tuple[str, ...]]:
    columns = (stats.min, stats.mean, stats.max, stats.std)
    for at in range(min(stats.mean.size, _MOST_ROWS)):
        yield (
            dimension_words([at], names),
            *(number(float(np.ravel(column)[at])) for column in columns),
        )


_MOST_CAMERAS, _MOST_DEMOS = 8, 4
_SIDE = 168  # length of the longer side in pixels
_QUALITY = 85


def thumbnails(subject: ReportInput) -> ReportSection | None:
    """Return a strip of frames per camera."""
    keys = [
        key
        for key, form in subject.layout.steps.items()
        if key.startswith("obs/") and _is_picture(form)
    ]
    if not keys:
        return None
    demos = spread(subject.sample, _MOST_DEMOS)
    cameras = [_camera(subject, key, demos) for key in keys[:_MOST_CAMERAS]]
    note = f"First, middle and last frame of {counted(len(demos), 'demo')}."
    if len(keys) > _MOST_CAMERAS:
        note += f" The first {_MOST_CAMERAS} of {len(keys)} cameras."
    return ReportSection("images", "Images", note, cameras=cameras)


def _is_picture(form: FileArray) -> bool:
    return form.is_numeric and (form.is_image or form.is_channel_first)


def _camera(subject: ReportInput, key: str, demos: list[DemoLayout]) -> CameraFilms:
    form = subject.layout.steps[key]
    said = f"{' × '.join(map(str, form.step))} {form.dtype}"
    films = [_film(subject, key, demo) for demo in demos]
    return CameraFilms(key, key.removeprefix("obs/"), said, [film for film in films if film])


def _film(subject: ReportInput, key: str, demo: DemoLayout) -> tuple[str, list[Frame]] | None:
    form = demo.arrays.get(key)
    if form is None or form.step != subject.layout.steps[key].step or form.shape[0] == 0:
        return None
    last = form.shape[0] - 1
    shown = []
    for step in sorted({0, last // 2, last}):
        try:
            frame = np.asarray(subject.file.read(demo.name, key, step, step + 1)[0])
        except DatasetError:
            continue
        shown.append(Frame(data_url(key, frame), f"{demo.name}, step {step}"))
    return (f"{demo.name}, {counted(last + 1, 'step')}", shown) if shown else None


def data_url(key: str, frame: Array) -> str:
    """Return a frame as a small image embedded in the page: a JPEG, or a PNG for segmentations."""
    exact = "segmentation" in key
    picture = Image.fromarray(_pixels(key, frame))
    scale = min(1.0, _SIDE / max(picture.size))
    width, height = (max(1, round(side * scale)) for side in picture.size)
    filter_ = Image.Resampling.NEAREST if exact else Image.Resampling.BOX
    picture = picture.resize((width, height), filter_)
    kind = "PNG" if exact else "JPEG"
    packed = io.BytesIO()
    picture.save(packed, kind, **({} if exact else {"quality": _QUALITY}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(packed.getvalue()).decode()}"


def _pixels(key: str, frame: Array) -> Array:
    """Convert a frame of any kind to (H, W, 3) uint8."""
    if frame.shape[2] not in (1, 3, 4):
        frame = np.moveaxis(frame, 0, 2)
    if "segmentation" in key:
        return _coloured(frame[..., 0])
    if frame.dtype != np.uint8:
        frame = _stretched(frame, is_depth="depth" in key)
    return np.ascontiguousarray(
        frame[..., :3] if frame.shape[2] > 1 else np.repeat(frame, 3, axis=2)
    )


def _stretched(frame: Array, *, is_depth: bool) -> Array:
    """Scale values to bytes: depth from the nearest to the farthest, other numbers from 0 to 1 or 255."""
    values = np.nan_to_num(frame.astype(np.float64), posinf=0, neginf=0)
    low, high = float(values.min()), float(values.max())
    if not is_depth and low >= 0:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    scaled = (values - low) / max(high - low, 1e-12)
    pixels: Array = np.rint(255 * scaled.clip(0, 1)).astype(np.uint8)
    return pixels


def _coloured(numbers: Array) -> Array:
    """Return a colour per object number: hues a golden angle apart; dark for no object (0 or less)."""
    values = numbers.astype(np.int64)
    hue = (values * 0.618034) % 1.0 * 2 * math.pi
    waves = [0.5 + 0.4 * np.cos(hue + shift) for shift in (0.0, -2.094, 2.094)]
    colours: Array = np.rint(255 * np.stack(waves, axis=-1)).astype(np.uint8)
    colours[values <= 0] = 40
    return colours
