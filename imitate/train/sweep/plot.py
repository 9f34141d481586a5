"""Plot the curves of several runs; a setting with several seeds is a line with a band."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imitate.errors import UserError, nearest, printable
from imitate.system.plain_files import cleared, replaced
from imitate.system.statistics import Statistic
from imitate.train.sweep.curves import PANEL_INCHES, STYLE, Curve, Setting, color
from imitate.train.sweep.over_seeds import Band, band
from imitate.train.sweep.results_table import NAMES, loss_kind, losses_differ

AXES = {"epoch": "epoch", "step": "updates", "cpu": "CPU seconds of training"}
"""Horizontal axes of curves, and their labels."""


class Metric(NamedTuple):
    """A metric in a panel: its tag, its line style, and its name in the legend of a panel with several metrics."""

    tag: str
    style: Any
    words: str


class Panel(NamedTuple):
    """A panel: its metrics, the label of its axis, and the text in it where there is no line."""

    metrics: tuple[Metric, ...]
    axis: str
    nothing: str


PANELS = {
    "loss": Panel(
        (Metric("Train/Loss", "-", "training"), Metric("Valid/Loss", "--", "validation")),
        "loss",
        "no losses",
    ),
    "success": Panel(
        (Metric("Rollout/Success_Rate", "-", "evaluation"),), "success rate", "no evaluations"
    ),
    "return": Panel(
        (
            Metric("Rollout/Return", "-", "evaluation"),
            Metric("Metrics/AverageReturn", ":", "while training"),
        ),
        "return",
        "no returns",
    ),
}
LEGEND_ROW = 0.18
"""Height of a line of the legend, in inches."""
APART = 0.012
"""Distance between the points of two settings that have a single point each, as a share of the axis."""


def draw_settings(
    settings: Sequence[Setting],
    paths: Sequence[Path],
    over: str = "step",
    statistic: Statistic = "mean",
    panels: Sequence[str] | None = None,
) -> list[Path]:
    """Draw settings: the statistic over seeds as a line, its 95 % interval as a band (at a single point, as a bar).

    A single run has the interval of its episodes. The name of a single setting is the title.

    Args:
        settings: the settings, in the order of the legend.
        paths: image files to write; the suffix gives the format (.png, .pdf, .svg).
        over: 'step', 'epoch' or 'cpu'.
        statistic: see :func:`imitate.system.statistics.estimate`.
        panels: names of `PANELS`; by default those of `default_panels`. Losses of different scales have a panel each.

    Raises:
        UserError: the format of an image file is unknown.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [
        (name, of)
        for name in panels or default_panels(settings)
        for of in (_by_loss(settings) if name == "loss" else [range(len(settings))])
    ]
    # Use the object interface: it sets no global state and opens no window.
    with matplotlib.rc_context(STYLE):
        width = PANEL_INCHES[0] * len(shown)
        columns, rows = _legend_shape(settings, width)
        figure = Figure(figsize=(width, PANEL_INCHES[1] + LEGEND_ROW * rows), layout="constrained")
        FigureCanvasAgg(figure)
        _check_forms(figure, paths)
        panes = figure.subplots(1, len(shown), squeeze=False, sharex=True)[0]
        drawn = set[int]()
        for (name, of), axes in zip(shown, panes, strict=True):
            drawn |= _panel(axes, name, settings, of, over, statistic)
        _from_zero(panes)
        if len(settings) == 1:
            figure.suptitle(settings[0].title, fontsize=9)
        else:
            _legend(figure, settings, drawn, columns)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path) as part:
                figure.savefig(cleared(part), dpi=200, format=path.suffix[1:].lower())
    return list(paths)


def _by_loss(settings: Sequence[Setting]) -> list[list[int]]:
    """Return the numbers of the settings whose losses have the same scale, scale by scale."""
    kinds: dict[str, list[int]] = {}
    for number, setting in enumerate(settings):
        kinds.setdefault(loss_kind(setting), []).append(number)
    return list(kinds.values())


def default_panels(settings: Sequence[Setting]) -> list[str]:
    """Return the panels for which there are numbers: losses, or returns of online training, and success.

    Losses of different scales are not compared; returns take the place of a success that is not reported.
    """
    curves = [curve for setting in settings for curve in setting.curves]
    first = "return" if any(curve.is_online for curve in curves) else "loss"
    wanted = ["success"] if first == "loss" and losses_differ(settings) else [first, "success"]
    if not _is_measured(curves, "success"):
        wanted = list(dict.fromkeys([*wanted, "return"]))
    return [name for name in wanted if _is_measured(curves, name)] or [first]


def _is_measured(curves: Sequence[Curve], panel: str) -> bool:
    return any(
        record.get(metric.tag) is not None
        for curve in curves
        for record in (*curve.epochs, *curve.rollouts)
        for metric in PANELS[panel].metrics
    )


def _panel(
    axes: Any,
    name: str,
    settings: Sequence[Setting],
    of: Sequence[int],
    over: str,
    statistic: Statistic,
) -> set[int]:
    """Draw a panel of some of the settings; return the numbers of those that have a line in it."""
    positive, drawn, intervals, lines = True, dict[Metric, None](), False, set[int]()
    for number in of:
        setting, paint = settings[number], color(number, len(settings))
        aside = APART * (number - (len(settings) - 1) / 2)
        for metric in PANELS[name].metrics:
            line = band(setting, metric.tag, over, statistic)
            if not line.x:
                continue
            intervals |= _line(axes, line, paint, metric, aside)
            drawn[metric] = None
            lines.add(number)
            positive = positive and all(value > 0 for value in line.value)
    part = [settings[number] for number in of]
    _label(axes, name, part, over, statistic if intervals else None)
    if len(part) < len(settings):
        others = f" and {len(part) - 1} more" if len(part) > 1 else ""
        axes.set_ylabel(f"{PANELS[name].axis} of {printable(part[0].label)}{others}")
    if len(drawn) > 1 or list(drawn)[:1] not in ([], [PANELS[name].metrics[0]]):
        _styles_legend(axes, list(drawn))
    if name == "loss" and positive and drawn:
        axes.set_yscale("log")
        _plain_numbers(axes)
    return lines


def _plain_numbers(axes: Any) -> None:
    """Label a logarithmic axis that spans less than a power of ten with 5.6, not 5.6 x 10^0."""
    from matplotlib.ticker import AutoLocator, NullLocator, ScalarFormatter

    low, high = axes.get_ylim()
    if high < 10 * low:
        axes.yaxis.set_major_locator(AutoLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))


def _line(axes: Any, line: Band, paint: Any, metric: Metric, aside: float) -> bool:
    """Draw a line and its interval; return true if there is an interval."""
    if len(line.x) == 1:  # draw a bar, because a band of one point has no width
        x, value = line.x[0] * (1 + aside), line.value[0]
        # Rounding may put the value outside of its interval, but lengths must not be negative.
        bar = [[max(0.0, value - line.low[0])], [max(0.0, line.high[0] - value)]]
        fill = "full" if metric.style == "-" else "none"
        axes.errorbar(x, value, bar, color=paint, marker="o", fillstyle=fill, linewidth=0.8)
    else:
        marker = "o" if metric.tag.startswith("Rollout/") else ""
        axes.plot(line.x, line.value, metric.style, color=paint, marker=marker)
        if metric.style == ":":
            return False
        axes.fill_between(line.x, line.low, line.high, color=paint, alpha=0.18, linewidth=0)
    return line.low != line.value or line.high != line.value


def _label(
    axes: Any, name: str, settings: Sequence[Setting], over: str, statistic: Statistic | None
) -> None:
    """Label the axes, and state the kind of interval in the title if a statistic is given."""
    online = any(curve.is_online for setting in settings for curve in setting.curves)
    x = "environment steps" if online and over == "step" else AXES[over]
    axes.set(xlabel=x, ylabel=PANELS[name].axis)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if name == "success":
        axes.set_ylim(-0.03, 1.03)
    if statistic is not None:
        several = any(len(setting.curves) > 1 for setting in settings)
        mean = f"{NAMES[statistic]}, 95 % interval over seeds"
        axes.set_title(mean if several else "95 % interval of the episodes")
    if not axes.lines:
        axes.text(
            0.5, 0.5, PANELS[name].nothing, ha="center", va="center", transform=axes.transAxes
        )


def _from_zero(panes: Sequence[Any]) -> None:
    """Begin the horizontal axis, which the panels share, at 0."""
    right = max((axes.dataLim.x1 for axes in panes if axes.lines), default=0.0)
    if right > 0:
        panes[0].set_xlim(0, 1.04 * right)


def _legend_shape(settings: Sequence[Setting], width: float) -> tuple[int, int]:
    """Return the numbers of columns and rows of a legend of this width (in inches)."""
    longest = max(len(setting.title) for setting in settings)
    columns = max(1, min(len(settings), int(width * 13 / (longest + 6))))
    return columns, -(-len(settings) // columns)


def _legend(figure: Any, settings: Sequence[Setting], drawn: set[int], columns: int) -> None:
    """Add a legend of the drawn settings, or of all settings if none is drawn."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=color(number, len(settings)), label=setting.title)
        for number, setting in enumerate(settings)
        if number in drawn or not drawn
    ]
    figure.legend(handles=lines, loc="outside lower center", ncols=columns)


def _styles_legend(axes: Any, metrics: Sequence[Metric]) -> None:
    """Add a legend of the line style of each metric."""
    from matplotlib.lines import Line2D

    lone = not any(len(line.get_xdata()) > 1 for line in axes.lines)
    lines = [
        Line2D(
            [],
            [],
            linestyle="" if lone else m.style,
            marker="o" if lone else "",
            fillstyle="full" if m.style == "-" else "none",
            color="0.4",
            label=m.words,
        )
        for m in metrics
    ]
    axes.legend(handles=lines)


def _check_forms(figure: Any, paths: Sequence[Path]) -> None:
    forms = {f".{form}" for form in figure.canvas.get_supported_filetypes()}
    for path in paths:
        if path.suffix.lower() not in forms:
            raise UserError(
                f"{path}: a picture cannot be written as '{path.suffix}'; "
                f"{nearest(path.suffix, ('.png', '.pdf', '.svg'))}"
            )
