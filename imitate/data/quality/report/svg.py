"""Small charts as inline SVG, with colours from the page's style sheet, so that they follow its light or dark mode."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from imitate.data.quality.report.section import number
from imitate.system.text import counted

Array = NDArray[Any]
_LEAST_BARS = 9
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 8, 34


def el(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element of a drawing.

    Args:
        name: name of the tag.
        *children: text, which is escaped, or markup.
        **attributes: attributes of the element; ``class_`` becomes ``class``, other underscores become hyphens;
            attributes with the value None are left out.
    """
    words = Markup("")
    for key, value in attributes.items():
        if value is not None:
            value = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
            words += Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
    inner = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>" if inner else "<{0}{1}/>").format(name, words, inner)


@dataclass(frozen=True)
class Line:
    """Points joined by a line.

    Attributes:
        points: (n, 2) coordinates of the points.
        class_: CSS class.
        title: text that is shown when the mouse is over the line.
    """

    points: Array
    class_: str
    title: str


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers between two limits."""
    low, high = float(low), float(high)  # the difference may exceed the range of a narrow type
    step = 10 ** math.floor(math.log10(max(high - low, 1e-12) / most))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (k * step) <= most)
    return [
        k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


class Plot:
    """A frame with two axes.

    Args:
        x: range from left to right.
        y: range from bottom to top.
        width: width of the whole drawing in pixels.
        height: height of the whole drawing in pixels.
        labels: labels of the axes.
        title: description for screen readers.
        equal: use the same scale in both directions.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        width: int = 300,
        height: int = 170,
        labels: tuple[str, str] = ("", ""),
        title: str = "",
        equal: bool = False,
    ) -> None:
        self.width, self.height, self._labels, self._title = width, height, labels, title
        self._inner = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
        self.x_range, self.y_range = _wide(x), _wide(y)
        if equal:
            self._equalize()
        self._parts: list[Markup] = []

    def _equalize(self) -> None:
        spans = self.x_range[1] - self.x_range[0], self.y_range[1] - self.y_range[0]
        unit = max(spans[0] / self._inner[0], spans[1] / self._inner[1])
        grown = []
        for (low, high), pixels in zip((self.x_range, self.y_range), self._inner, strict=True):
            middle, half = (low + high) / 2, unit * pixels / 2
            grown.append((middle - half, middle + half))
        self.x_range, self.y_range = grown[0], grown[1]

    def at(self, x: float | Array, y: float | Array) -> tuple[Any, Any]:
        """Return the pixel coordinates of a point."""
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        return (
            _LEFT + (x - x0) / (x1 - x0) * self._inner[0],
            _TOP + (y1 - y) / (y1 - y0) * self._inner[1],
        )

    def bars(
        self, counts: Sequence[int], edges: Sequence[float], say: Callable[[int], str]
    ) -> None:
        """Draw adjacent bars; the function ``say`` returns the description of a bar."""
        for k, count in enumerate(counts):
            (left, top), (right, base) = self.at(edges[k], float(count)), self.at(edges[k + 1], 0.0)
            if count:
                bar = el(
                    "rect",
                    el("title", say(k)),
                    class_="bar",
                    x=float(left) + 0.5,
                    y=min(float(top), float(base) - 1.5),
                    width=max(1.0, float(right - left) - 1),
                    height=max(1.5, float(base - top)),
                )
                self._parts.append(bar)

    def line(self, line: Line) -> None:
        """Draw points joined by a line."""
        x, y = self.at(line.points[:, 0], line.points[:, 1])
        way = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
        self._parts.append(el("path", el("title", line.title), class_=line.class_, d=way))

    def band(self, x: Array, low: Array, high: Array) -> None:
        """Draw the area between two curves."""
        points = np.concatenate([np.stack([x, high], 1), np.stack([x, low], 1)[::-1]])
        px, py = self.at(points[:, 0], points[:, 1])
        way = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(px, py, strict=True)) + "Z"
        self._parts.append(el("path", class_="band", d=way))

    def dot(self, x: float, y: float, class_: str, title: str, radius: float = 3.0) -> None:
        """Draw a point."""
        px, py = self.at(x, y)
        self._parts.append(
            el("circle", el("title", title), class_=class_, cx=float(px), cy=float(py), r=radius)
        )

    def mark(self, x: float, class_: str = "limit") -> None:
        """Draw a vertical line."""
        px, _ = self.at(x, 0.0)
        base = self.height - _BOTTOM
        self._parts.append(el("line", class_=class_, x1=float(px), x2=float(px), y1=_TOP, y2=base))

    def draw(self) -> Markup:
        """Return the whole drawing."""
        return el(
            "svg",
            *self._axes(),
            *self._parts,
            viewBox=f"0 0 {self.width} {self.height}",
            width=self.width,
            height=self.height,
            role="img",
            aria_label=self._title or None,
        )

    def _axes(self) -> list[Markup]:
        base, right = self.height - _BOTTOM, self.width - _RIGHT
        drawn = []
        for value in ticks(*self.y_range, most=max(2, self._inner[1] // 34)):
            _, y = self.at(0.0, value)
            drawn.append(el("line", class_="grid", x1=_LEFT, x2=right, y1=float(y), y2=float(y)))
            drawn.append(el("text", short(value), x=_LEFT - 6, y=float(y) + 3.5, class_="tick y"))
        for value in ticks(*self.x_range, most=max(2, self._inner[0] // 52)):
            x, _ = self.at(value, 0.0)
            drawn.append(el("text", short(value), x=float(x), y=base + 14, class_="tick"))
        drawn.append(el("line", class_="axis", x1=_LEFT, x2=right, y1=base, y2=base))
        across, up = self._labels
        middle = _TOP + self._inner[1] / 2
        if across:
            place = {"x": _LEFT + self._inner[0] / 2, "y": self.height - 5}
            drawn.append(el("text", across, class_="label", **place))
        if up:
            turn = f"rotate(-90 11 {middle:.1f})"
            drawn.append(el("text", up, class_="label", x=11, y=middle, transform=turn))
        return drawn


def short(value: float) -> str:
    """Format the number of a tick, with k for thousands."""
    if abs(value) < 1e-9:
        return "0"
    if abs(value) >= 1e6:
        return f"{number(value / 1e6)}M"
    return f"{number(value / 1000)}k" if abs(value) >= 1000 else number(value)


def _wide(limits: tuple[float, float]) -> tuple[float, float]:
    """Widen a range that is a single point."""
    low, high = map(float, limits)
    if high - low > 1e-9 * max(1.0, abs(low), abs(high)):
        return low, high
    half = max(abs(low) * 0.05, 0.5)
    return low - half, high + half


def padded(values: Array, share: float = 0.06) -> tuple[float, float]:
    """Return the range of values with a margin around it."""
    low, high = float(values.min()), float(values.max())
    room = share * (high - low)
    return low - room, high + room


def histogram(
    values: Array,
    *,
    noun: str,
    label: str,
    bins: int = 40,
    limits: tuple[float, float] | None = None,
    marks: Sequence[float] = (),
    **frame: Any,
) -> Markup:
    """Draw a histogram of values.

    Args:
        values: (n,) finite values.
        noun: name of the counted objects in the singular, such as ``step``.
        label: label of the values.
        bins: number of bins; integers in a small range get one bin each.
        limits: range of the histogram; None for the range of the values.
        marks: values at which a vertical line is drawn.
        **frame: arguments of :class:`Plot`.
    """
    low, high = limits or (float(values.min()), float(values.max()))
    whole = bool((values == np.round(values)).all()) and high - low < 200 and limits is None
    if whole:
        room = max(0, math.ceil((_LEAST_BARS - 1 - (high - low)) / 2))
        low, high = low - room, high + room
        width = max(1, math.ceil((high - low + 1) / bins))
        edges = np.arange(low - 0.5, high + 0.5 + width, width)
    else:
        edges = np.linspace(*_wide((low, high)), bins + 1)
    counts, edges = np.histogram(values, bins=edges)
    plot = Plot(
        (float(edges[0]), float(edges[-1])),
        (0, float(counts.max()) * 1.05),
        labels=(label, f"{noun}s"),
        **frame,
    )

    def say(k: int) -> str:
        first, last = edges[k], edges[k + 1]
        if whole:
            first, last = first + 0.5, last - 0.5
        span = number(first) if whole and first == last else f"{number(first)} to {number(last)}"
        return f"{span}: {counted(int(counts[k]), noun)}"

    plot.bars(counts.tolist(), edges.tolist(), say)
    for value in marks:
        plot.mark(value)
    return plot.draw()


def share_bar(share: float, title: str) -> Markup:
    """Return a bar for a table cell; ``share`` is in [0, 1]."""
    whole = 120
    return el(
        "svg",
        el("rect", class_="track", x=0, y=3, width=whole, height=8, rx=2),
        el(
            "rect",
            el("title", title),
            class_="bar",
            x=0,
            y=3,
            width=max(1.0, whole * share),
            height=8,
            rx=2,
        ),
        viewBox=f"0 0 {whole} 14",
        width=whole,
        height=14,
        role="img",
        aria_label=title,
    )
