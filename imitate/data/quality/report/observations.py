"""Statistics of every array, and thumbnails of images."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from imitate.data.batches.statistics import KeyStats
from imitate.data.edit.summary import key_statistics
from imitate.data.file.features import dimension_words
from imitate.data.quality.doctor.survey import DemoLayout, FileArray
from imitate.data.quality.report.section import CameraFilms, Frame, ReportSection, Table, number
from imitate.data.quality.report.subject import Array, ReportInput, spread
from imitate.errors import DatasetError
from imitate.system.text import counted

_MOST_KEYS = 100
_MOST_DIMS = 64
_CONSTANT = 1e-4  # normalization shifts a smaller range but does not scale it


def observations(subject: ReportInput) -> ReportSection | None:
    """Return one row per array, and a folded table with one row per dimension."""
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
    note = "Over all steps that were read; the smallest to the largest standard deviation of its dimensions."
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
    more = f", the first {_MOST_DIMS} of {stats.mean.size}" if stats.mean.size > _MOST_DIMS else ""
    return f"{key}{more}", Table(header, list(_dimensions(stats, names)))


def _dimensions(stats: KeyStats, names: Sequence[str] | None) -> Iterator[tuple[str, ...]]:
    columns = (stats.min, stats.mean, stats.max, stats.std)
    for at in range(min(stats.mean.size, _MOST_DIMS)):
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
