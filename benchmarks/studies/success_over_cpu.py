"""Draw the table of robosuite's tasks in docs/results/imitation.md: success over CPU seconds of training.

python -m benchmarks.studies.success_over_cpu --picture docs/images/success_over_cpu.png
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple

from imitate.functional.statistics import wilson_interval
from imitate.train.style import PANEL_INCHES, STYLE, color

PAGE = Path(__file__).parents[2] / "docs" / "results" / "imitation.md"
CELL = re.compile(r"(\d+)/(\d+) \([^)]*\), (\d+) s")
MARKERS = "osD^v"


class Point(NamedTuple):
    """A cell of the table: successes of episodes, and CPU seconds of the training."""

    policy: str
    task: str
    wins: int
    episodes: int
    cpu_s: int


def points(text: str) -> list[Point]:
    """Return the cells of the table whose columns are tasks, without policies that have a single one."""
    lines = text[text.index("## Robosuite") :].splitlines()
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if "|" in line]
    tasks, *body = rows[: next(i for i, row in enumerate(rows) if i > 1 and len(row) != 4)]
    found = [
        Point(row[0].replace("_", "-"), task, *map(int, match.groups()))
        for row in body
        for task, part in zip(tasks[1:], row[1:], strict=True)
        if (match := CELL.fullmatch(part))
    ]
    return [p for p in found if sum(q.policy == p.policy for q in found) > 1]


def draw(cells: list[Point], path: Path) -> None:
    """Draw a panel for each task, with Wilson's 95 % interval of each policy."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(cell.task for cell in cells))
    names = list(dict.fromkeys(cell.policy for cell in cells))
    with matplotlib.rc_context(STYLE):
        figure = Figure((PANEL_INCHES[0] * len(tasks), PANEL_INCHES[1]), layout="constrained")
        FigureCanvasAgg(figure)
        panes = figure.subplots(1, len(tasks), sharex=True, sharey=True)
        for task, axes in zip(tasks, panes, strict=True):
            for cell in (cell for cell in cells if cell.task == task):
                number, rate = names.index(cell.policy), cell.wins / cell.episodes
                low, high = wilson_interval(cell.wins, cell.episodes)
                style: Any = {"color": color(number, len(names)), "label": cell.policy}
                style |= {"fmt": MARKERS[number % len(MARKERS)], "markersize": 4, "linewidth": 0.8}
                axes.errorbar(cell.cpu_s, rate, [[rate - low], [high - rate]], **style)
            axes.set(xlabel="CPU seconds of training", xscale="log", ylim=(-0.03, 1.03))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_title(task)
        panes[0].set_ylabel("success rate")
        figure.legend(*panes[0].get_legend_handles_labels(), loc="outside right upper")
        figure.savefig(path, dpi=150)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, required=True, help="PNG to write")
    draw(points(PAGE.read_text(encoding="utf-8")), parser.parse_args().picture)


if __name__ == "__main__":
    main()
