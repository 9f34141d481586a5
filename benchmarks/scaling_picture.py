"""The picture of :mod:`benchmarks.scaling`: measured points, and dashed lines beyond them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.scale_model import Inputs, evaluated_s

Cells = Mapping[str, Mapping[str, float]]
Points = list[tuple[float, float]]
MOST_WINDOWS, MOST_GB, MOST_WORKERS = 10_000_000, 30.0, 32
LABELS = {
    "vectors": "imitate",
    "robomimic, vectors": "robomimic",
    "ram": "in RAM",
    "raw": "in the file",
    "jpeg": "JPEG",
    "video": "video",
    "robomimic, images": "robomimic, in the file",
}
COLOURS = dict(zip(LABELS, ("C0", "C3", "C4", "C0", "C1", "C2", "C3"), strict=True))
EVAL_STEPS, EVAL_EPISODES = 100, 50


def points_of(cells: Cells, kind: str, figure: str) -> Points:
    """Return the sizes of the cells of a kind and what was measured there, by size."""
    found = []
    for name, figures in cells.items():
        family, _, size = name.rpartition(" ")
        if family == kind and figure in figures:
            found.append((float(size), figures[figure]))
    return sorted(found)


def straight(points: Points) -> Callable[[float], float]:
    """Return the straight line through the first and the last point: a start and a cost per unit of size."""
    (x0, y0), (x1, y1) = points[0], points[-1]
    slope = max((y1 - y0) / (x1 - x0), 0.0)
    return lambda x: y1 + slope * (x - x1)


def constant(points: Points) -> Callable[[float], float]:
    """Return the last point's value everywhere."""
    return lambda x: points[-1][1]


def evaluation_inputs(cells: Cells) -> Inputs:
    """Return the costs of an evaluation with one worker, in seconds."""
    one = cells["evaluation 1"]
    episode_s = 1.0 / one["episodes_per_s"]
    return Inputs(
        env_s=episode_s / EVAL_STEPS,
        act_s=0.0,
        reset_s=0.0,
        start_s=max(one["first_episode_s"] - episode_s, 0.0),
        updates_s=1.0,
        weights_bytes=0.0,
        obs_bytes=0.0,
    )


def draw(cells: Cells, path: Path) -> None:
    """Draw all panels; those without figures stay empty."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 12.0), layout="constrained")
    grid = figure.subplots(4, 2)
    vectors, images = ("vectors", "robomimic, vectors"), ("ram", "raw", "jpeg", "video")
    for column, (kinds, most) in enumerate(((vectors, MOST_WINDOWS), (images, MOST_GB))):
        opening, loading, memory = grid[0, column], grid[1, column], grid[2, column]
        beside = () if column == 0 else ("robomimic, images",)
        for kind in (*kinds, *beside):
            _line(opening, cells, kind, "opening_cpu_s", straight, most)
            _line(loading, cells, kind, "batches_per_cpu_s", constant, most)
            _line(memory, cells, kind, "peak_mb", straight, most)
        opening.set_ylabel("opening, CPU seconds")
        loading.set_ylabel("batches per CPU second")
        memory.set_ylabel("peak memory of the process, MB")
        for axes in (opening, loading, memory):
            axes.set_xlabel("windows" if column == 0 else "GB of images as they are in memory")
    for kind in ("jpeg", "video"):
        label = f"{LABELS[kind]}, first time"
        _line(grid[0, 1], cells, kind, "first_opening_cpu_s", straight, MOST_GB, label, "^")
    grid[0, 0].set_title("vectors, windows of 10 steps")
    grid[0, 1].set_title("images, two cameras of 84 x 84")
    _line(
        grid[1, 0], cells, "vectors", "updates_per_cpu_s", constant, MOST_WINDOWS,
        "updates of BC 2x1024", "^",
    )  # fmt: skip
    _updates(grid[3, 0], cells)
    _evaluation(grid[3, 1], cells)
    for axes in grid.flat:
        axes.set(xscale="log", yscale="log")
    for axes in grid[2]:
        axes.set_ylim(100, 1e5)
    grid[3, 0].set_ylim(0.5, 10)
    grid[0, 1].set_ylim(top=1e5)  # room for the legend
    for axes in grid.flat:
        axes.grid(visible=True, color="0.9")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _line(
    axes: Any,
    cells: Cells,
    kind: str,
    figure: str,
    beyond: Callable[[Points], Callable[[float], float]],
    most: float,
    label: str | None = None,
    marker: str = "o",
) -> None:
    """Draw the points of a kind, and dashed to ``most`` what ``beyond`` makes of them."""
    points = points_of(cells, kind, figure)
    if not points:
        return
    colour = COLOURS[kind]
    x, y = zip(*points, strict=True)
    axes.plot(x, y, f"{marker}-", color=colour, label=label or LABELS[kind], markersize=4)
    if len(points) > 1 and x[-1] < most:
        line = beyond(points)
        further = [x[-1] * (most / x[-1]) ** (k / 20) for k in range(21)]
        axes.plot(further, [line(value) for value in further], "--", color=colour)


def _updates(axes: Any, cells: Cells) -> None:
    for kind in ("raw", "jpeg", "video"):
        _line(axes, cells, kind, "updates_per_cpu_s", constant, MOST_GB)
    axes.set_xlabel("GB of images as they are in memory")
    axes.set_ylabel("updates of image BC per CPU second")


def _evaluation(axes: Any, cells: Cells) -> None:
    """Draw episodes per second: measured, a core for each worker, and with starts and waves."""
    points = points_of(cells, "evaluation", "episodes_per_s")
    axes.set_xlabel("evaluation workers, a core each")
    axes.set_ylabel("episodes of 100 steps per second")
    if not points:
        return
    x, y = zip(*points, strict=True)
    axes.plot(x, y, "o-", color="C0", label="Lift, states", markersize=4)
    inputs = evaluation_inputs(cells)
    counts = [2**k for k in range(6)]
    each = points[0][1]
    axes.plot(
        counts, [each * n for n in counts], "--", color="C0", label="as many times as workers"
    )
    whole = [
        EVAL_EPISODES / evaluated_s(inputs, n, EVAL_EPISODES, EVAL_STEPS)
        for n in counts
        if n <= MOST_WORKERS
    ]
    axes.plot(counts, whole, "--", color="C1", label="50 episodes, with the workers' start")
