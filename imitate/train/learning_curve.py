"""Picture of one run's learning curves: two panels with lines, drawn by Pillow.

Every training ends with this picture. Pillow is imported by then, whereas the import of matplotlib takes longer than a
small training; `imitate plot`, which compares runs, draws with matplotlib.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Box = tuple[float, float, float, float]

SIZE = (1100, 440)
FINE = 3
"""Lines are drawn this many times larger and then averaged, which smooths their edges."""
TOP, BOTTOM, RIGHT = 36, 54, 14
AXIS_LABEL, TICK = 26, 5
"""Width of the vertical axis' label, and length of the mark of a number, in pixels."""
COLORS = ("#1f77b4", "#ff7f0e")
BLACK, GRAY = "#000000", "#cccccc"
MOST_NUMBERS = 9
"""Numbers along an axis."""


class Line(NamedTuple):
    """Points joined by a line.

    Attributes:
        label: in the legend; '' for none.
        marked: points are marked; a single one always is.
        bars: lowest and highest value at each point, drawn as an interval.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    marked: bool = False
    bars: Sequence[tuple[float, float]] = ()


class Panel(NamedTuple):
    """Lines over epochs.

    Attributes:
        note: text where there is no line.
        range: of the vertical axis; None: that of the lines.
    """

    label: str
    lines: Sequence[Line]
    note: str = ""
    range: tuple[float, float] | None = None


def draw_panels(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side over the epochs of a run, as a PNG file."""
    width, height = SIZE
    fine = Image.new("RGB", (width * FINE, height * FINE), "white")
    canvas = _Canvas(ImageDraw.Draw(fine))
    epochs = _wider([x for panel in panels for line in panel.lines for x in line.x])
    for number, panel in enumerate(panels):
        left = width * number / len(panels)
        _draw_panel(
            canvas, panel, (left, TOP, left + width / len(panels) - RIGHT, height - BOTTOM), epochs
        )
    image = fine.reduce(FINE)
    canvas.write(image)
    draw = ImageDraw.Draw(image)
    draw.text((width / 2, TOP / 2), title, BLACK, _font(17), anchor="mm")
    image.save(path, "PNG")


def numbers(low: float, high: float, whole: bool = False) -> list[float]:
    """Return round numbers from low to high, for an axis: at most `MOST_NUMBERS`; ``whole``: none between integers."""
    least = (high - low) / MOST_NUMBERS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= least)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def words(values: Sequence[float]) -> list[str]:
    """Write the numbers of an axis with as many digits as tell them apart."""
    step = min(np.diff(values), default=1.0)
    largest = max(map(abs, values), default=0.0)
    if 1e-4 <= largest < 1e6:
        places = next(n for n in range(9) if n == 8 or math.isclose(step, round(step, n)))
        return [f"{value:.{places}f}" for value in values]
    digits = max(1, math.ceil(math.log10(largest / step)) + 1) if largest else 1
    return [f"{value:.{digits}g}" for value in values]


class _Canvas:
    """Lines go to a large picture at once, texts to the one that is made of it."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self._draw = draw
        self._texts: list[tuple[tuple[float, float], str, str, bool]] = []

    def line(self, points: Sequence[tuple[float, float]], color: str, width: float) -> None:
        large = [(x * FINE, y * FINE) for x, y in points]
        self._draw.line(large, color, round(width * FINE), joint="curve")

    def dot(self, x: float, y: float, radius: float, color: str) -> None:
        sides = (x - radius, y - radius, x + radius, y + radius)
        self._draw.ellipse([side * FINE for side in sides], color)

    def box(self, box: Box, color: str, fill: str | None = None) -> None:
        self._draw.rectangle([round(side * FINE) for side in box], fill, color, FINE)

    def text(
        self, place: tuple[float, float], text: str, anchor: str, upright: bool = False
    ) -> None:
        self._texts.append((place, text, anchor, upright))

    def write(self, image: Image.Image) -> None:
        draw, font = ImageDraw.Draw(image), _font(14)
        for (x, y), text, anchor, upright in self._texts:
            if upright:
                turned = Image.new("RGB", (math.ceil(font.getlength(text)) + 2, 20), "white")
                ImageDraw.Draw(turned).text((1, 10), text, BLACK, font, anchor="lm")
                turned = turned.rotate(90, expand=True)
                image.paste(turned, (round(x), round(y - turned.height / 2)))
            else:
                draw.text((x, y), text, BLACK, font, anchor=anchor)


def _draw_panel(canvas: _Canvas, panel: Panel, space: Box, x_range: tuple[float, float]) -> None:
    panel = panel._replace(lines=[line for line in panel.lines if line.x])
    y_range = panel.range or _wider([value for line in panel.lines for value in line.y])
    y_numbers = numbers(*y_range)
    y_words, font = words(y_numbers), _font(14)
    left, top, right, bottom = space
    canvas.text((left + 4, (top + bottom) / 2), panel.label, "mm", upright=True)
    left += AXIS_LABEL + TICK + 6 + max(map(font.getlength, y_words), default=0)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (x - x_range[0]) / (x_range[1] - x_range[0]) * (right - left),
            bottom - (y - y_range[0]) / (y_range[1] - y_range[0]) * (bottom - top),
        )

    x_numbers = numbers(*x_range, whole=True)
    for value, text in zip(x_numbers, words(x_numbers), strict=True):
        x, y = at(value, y_range[0])
        canvas.line([(x, y), (x, y + TICK)], BLACK, 1)
        canvas.text((x, y + TICK + 4), text, "mt")
    for value, text in zip(y_numbers, y_words, strict=True):
        x, y = at(x_range[0], value)
        canvas.line([(x - TICK, y), (x, y)], BLACK, 1)
        canvas.text((x - TICK - 4, y), text, "rm")
    canvas.text(((left + right) / 2, bottom + 34), "epoch", "mt")
    paths = [[at(x, y) for x, y in zip(line.x, line.y, strict=True)] for line in panel.lines]
    for line, path, color in zip(panel.lines, paths, COLORS, strict=False):
        canvas.line(path, color, 2)
        for x, y in path if line.marked or len(path) == 1 else ():
            canvas.dot(x, y, 4, color)
        for (x, _), ends in zip(path, line.bars, strict=False):
            low, high = (at(0, end)[1] for end in ends)
            canvas.line([(x, low), (x, high)], color, 2)
            for end in (low, high):
                canvas.line([(x - 5, end), (x + 5, end)], color, 2)
    canvas.box((left, top, right, bottom), BLACK)
    if panel.lines:
        _legend(canvas, panel.lines, paths, (left, top, right, bottom))
    else:
        canvas.text(((left + right) / 2, (top + bottom) / 2), panel.note, "mm")


def _wider(values: Sequence[float]) -> tuple[float, float]:
    """Return a range that holds the values, with a little room."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    more = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return low - more, high + more


def _legend(
    canvas: _Canvas,
    lines: Sequence[Line],
    paths: Sequence[Sequence[tuple[float, float]]],
    frame: Box,
) -> None:
    """Draw the names of the lines in the corner that the lines leave free."""
    names = [(line.label, color) for line, color in zip(lines, COLORS, strict=False) if line.label]
    if not names:
        return
    width = 58 + max(_font(14).getlength(name) for name, _ in names)
    height = 8 + 22 * len(names)
    left, top, right, bottom = frame
    corners = [
        (x, y) for x in (right - width - 8, left + 8) for y in (top + 8, bottom - height - 8)
    ]

    def covered(corner: tuple[float, float]) -> int:
        along = np.linspace(left, right, 400)
        heights = [
            np.interp(along, path[:, 0], path[:, 1], np.nan, np.nan)
            for path in map(np.array, paths)
        ]
        inside = (along > corner[0]) & (along < corner[0] + width)
        return sum(
            int(((y > corner[1] - 4) & (y < corner[1] + height + 4))[inside].sum()) for y in heights
        )

    x, y = min(corners, key=covered)
    canvas.box((x, y, x + width, y + height), GRAY, "white")
    for number, (name, color) in enumerate(names):
        middle = y + 15 + 22 * number
        canvas.line([(x + 8, middle), (x + 36, middle)], color, 2)
        canvas.text((x + 46, middle), name, "lm")


def _font(size: int) -> ImageFont.FreeTypeFont:
    """Load the font that matplotlib brings, without importing matplotlib."""
    found = importlib.util.find_spec("matplotlib")
    assert found is not None and found.origin is not None
    fonts = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"
    return ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), size)
