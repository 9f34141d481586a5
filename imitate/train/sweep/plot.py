"""Plot the curves of several runs; a setting with several seeds is a line with a band."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imitate.errors import UserError, nearest
from imitate.functional.statistics import Statistic
from imitate.system.plain_files import cleared, replaced
from imitate.train.sweep.over_seeds import Band, Curve, Setting, band, read_curves
from imitate.train.sweep.results_table import INTERVALS, NAMES

__all__ = ["AXES", "Curve", "draw", "draw_settings", "read_curves"]

AXES = {"epoch": "epoch", "step": "updates", "cpu": "CPU seconds of training"}
"""Horizontal axes of curves, and their labels."""
PANELS = {
    "loss": (("Train/Loss", "-"), ("Valid/Loss", "--")),
    "success": (("Rollout/Success_Rate", "-"),),
    "return": (("Rollout/Return", "-"), ("Metrics/AverageReturn", ":")),
}
"""Tags of the metrics and line styles of each panel."""
NOTHING = {"loss": "no losses", "success": "no evaluations", "return": "no returns"}
"""Text in a panel without a line."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B2A000")
"""Colours of Okabe and Ito, distinguishable with colour blindness (yellow is darkened)."""
PANEL_INCHES = (3.4, 2.4)
LEGEND_ROW = 0.18
"""Height of a line of the legend, in inches."""
PAPER: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 3,
    "pdf.fonttype": 42,  # embed outlines of letters, which publishers accept
    "ps.fonttype": 42,
}


def draw(curves: Sequence[Curve], path: Path, over: str = "step") -> Path:
    """Draw a line per run: losses on the left, success rates with their intervals on the right."""
    runs = [Setting(curve.label, {}, (curve,), 1) for curve in curves]
    return draw_settings(runs, [path], over)[0]


def draw_settings(
    settings: Sequence[Setting],
    paths: Sequence[Path],
    over: str = "step",
    statistic: Statistic = "mean",
    panels: Sequence[str] | None = None,
) -> list[Path]:
    """Draw settings: the statistic over seeds as a line, its 95 % interval as a band.

    A single run's success has the Wilson interval of its episodes as bars.

    Args:
        settings: the settings, in the order of the legend.
        paths: image files to write; the suffix gives the format (.png, .pdf, .svg).
        over: 'step', 'epoch' or 'cpu'.
        statistic: see :func:`imitate.functional.statistics.estimate`.
        panels: names of `PANELS`; by default loss and success, for online training return and success.

    Raises:
        UserError: the format of an image file is unknown.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = list(panels or default_panels(settings))
    # Use the object interface: it sets no global state and opens no window.
    with matplotlib.rc_context(PAPER):
        width = PANEL_INCHES[0] * len(shown)
        columns, rows = _legend_shape(settings, width)
        figure = Figure(figsize=(width, PANEL_INCHES[1] + LEGEND_ROW * rows), layout="constrained")
        FigureCanvasAgg(figure)
        _check_forms(figure, paths)
        for name, axes in zip(shown, figure.subplots(1, len(shown), squeeze=False)[0], strict=True):
            _panel(axes, name, settings, over, statistic)
        _legend(figure, settings, columns)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path) as part:
                figure.savefig(cleared(part), dpi=200, format=path.suffix[1:].lower())
    return list(paths)


def default_panels(settings: Sequence[Setting]) -> tuple[str, str]:
    """Return the panels that suit most of the runs."""
    online = any(curve.is_online for setting in settings for curve in setting.curves)
    return ("return", "success") if online else ("loss", "success")


def _panel(
    axes: Any, name: str, settings: Sequence[Setting], over: str, statistic: Statistic
) -> None:
    positive = True
    for number, setting in enumerate(settings):
        color = _color(number, settings)
        for tag, style in PANELS[name]:
            line = band(setting, tag, over, statistic)
            _line(axes, line, color, style, marker="o" if tag.startswith("Rollout/") else "")
            positive = positive and all(value > 0 for value in line.value)
        if name == "success" and len(setting.curves) == 1:
            _episode_bars(axes, setting.curves[0], over, color)
    _label(axes, name, settings, over, statistic)
    if name == "loss" and positive and axes.lines:
        axes.set_yscale("log")
        _plain_numbers(axes)


def _plain_numbers(axes: Any) -> None:
    """Label a logarithmic axis that spans less than a power of ten with 5.6, not 5.6 x 10^0."""
    from matplotlib.ticker import AutoLocator, NullLocator, ScalarFormatter

    low, high = axes.get_ylim()
    if high < 10 * low:
        axes.yaxis.set_major_locator(AutoLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))


def _line(axes: Any, line: Band, color: Any, style: str, marker: str) -> None:
    if not line.x:
        return
    axes.plot(line.x, line.value, style, color=color, marker=marker)
    if line.low != line.value or line.high != line.value:
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, linewidth=0)


def _label(
    axes: Any, name: str, settings: Sequence[Setting], over: str, statistic: Statistic
) -> None:
    online = any(curve.is_online for setting in settings for curve in setting.curves)
    x = "environment steps" if online and over == "step" else AXES[over]
    several = any(len(setting.curves) > 1 for setting in settings)
    interval = INTERVALS[statistic] if several else "Wilson interval of its episodes"
    titles = {
        "loss": "loss (dashed: validation)",
        "success": "success rate",
        "return": "return (dotted: while training)",
    }
    axes.set(xlabel=x, ylabel=titles[name])
    axes.grid(alpha=0.25, linewidth=0.5)
    if name == "success":
        axes.set_ylim(-0.03, 1.03)
        words = f"{NAMES[statistic]}, 95 % {interval}" if several else f"95 % {interval}"
        axes.set_title(words, fontsize=7, color="0.35")
    if not axes.lines:
        axes.text(0.5, 0.5, NOTHING[name], ha="center", va="center", transform=axes.transAxes)


def _episode_bars(axes: Any, curve: Curve, over: str, color: Any) -> None:
    records = [r for r in curve.rollouts if r.get("Rollout/Success_Rate_Low") is not None]
    x = [curve.place(record, over) for record in records]
    rate = [record["Rollout/Success_Rate"] for record in records]
    below = [
        max(0.0, r - record["Rollout/Success_Rate_Low"])
        for r, record in zip(rate, records, strict=True)
    ]
    above = [
        max(0.0, record["Rollout/Success_Rate_High"] - r)
        for r, record in zip(rate, records, strict=True)
    ]
    if x:
        axes.errorbar(x, rate, [below, above], fmt="none", capsize=2, color=color, alpha=0.5)


def _color(number: int, settings: Sequence[Setting]) -> Any:
    if len(settings) <= len(COLORS):
        return COLORS[number]
    import matplotlib

    return matplotlib.colormaps["turbo"]((number + 0.5) / len(settings))


def _legend_shape(settings: Sequence[Setting], width: float) -> tuple[int, int]:
    """Return the numbers of columns and rows of a legend of this width (in inches)."""
    longest = max(len(setting.title) for setting in settings)
    columns = max(1, min(len(settings), int(width * 13 / (longest + 6))))
    return columns, -(-len(settings) // columns)


def _legend(figure: Any, settings: Sequence[Setting], columns: int) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=_color(number, settings), label=setting.title)
        for number, setting in enumerate(settings)
    ]
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False)


def _check_forms(figure: Any, paths: Sequence[Path]) -> None:
    forms = {f".{form}" for form in figure.canvas.get_supported_filetypes()}
    for path in paths:
        if path.suffix.lower() not in forms:
            raise UserError(
                f"{path}: a picture cannot be written as '{path.suffix}'; "
                f"{nearest(path.suffix, ('.png', '.pdf', '.svg'))}"
            )
