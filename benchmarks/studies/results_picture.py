"""Success against CPU seconds of training, a picture of the cells that `python -m benchmarks.studies.results` left.

    python -m benchmarks.studies.results_picture runs/results50 runs/results100 --out docs/images/success_over_cpu.png

One panel per task, one point per variant with its 95 % interval; training seeds are put together. Where two folders
have the same variant, the one with more episodes is drawn.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imitate.functional.statistics import wilson_interval

BASELINE = "bc_rnn_gmm"
SECONDS = (10, 30, 100, 300, 1000)


@dataclass(frozen=True)
class Point:
    """A variant on a task."""

    cpu_s: float
    successes: int
    episodes: int


def read_points(folders: Iterable[Path]) -> dict[str, dict[str, Point]]:
    """Points by task and variant.

    Raises:
        SystemExit: there is no cell, or cells of one variant differ in their number of updates.
    """
    points: dict[str, dict[str, Point]] = defaultdict(dict)
    for folder in folders:
        for place in sorted({path.parent.parent for path in folder.glob("*/*/*/cell.json")}):
            cells = [json.loads(path.read_text()) for path in sorted(place.glob("*/cell.json"))]
            point = _together(place, cells)
            known = points[place.parent.name].get(place.name)
            if known is None or known.episodes < point.episodes:
                points[place.parent.name][place.name] = point
    if not points:
        raise SystemExit("there are no cells: run python -m benchmarks.studies.results first")
    return points


def _together(place: Path, cells: list[dict[str, Any]]) -> Point:
    if len({cell["steps"] for cell in cells}) > 1:
        raise SystemExit(f"{place}: cells of different numbers of updates cannot be one point")
    return Point(
        sum(cell["train_cpu_s"] for cell in cells) / len(cells),
        sum(cell["successes"] for cell in cells),
        sum(cell["episodes"] for cell in cells),
    )


def draw(points: dict[str, dict[str, Point]], out: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    variants = sorted({name for of_task in points.values() for name in of_task})
    style = {
        name: (plt.get_cmap("tab20")(k % 20), "os^Dv"[k % 5]) for k, name in enumerate(variants)
    }
    figure, panels = plt.subplots(
        1,
        len(points),
        figsize=(1.5 + 4 * len(points), 4.4),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for panel, (task, of_task) in zip(panels[0], sorted(points.items()), strict=True):
        for name, point in sorted(of_task.items()):
            low, high = wilson_interval(point.successes, point.episodes)
            rate = point.successes / point.episodes
            color, marker = style[name]
            panel.errorbar(
                point.cpu_s,
                100 * rate,
                yerr=[[100 * (rate - low)], [100 * (high - rate)]],
                color=color,
                marker=marker,
                markersize=8 if name == BASELINE else 6,
                capsize=2,
                label=name,
            )
        panel.set(title=task, xscale="log", xlabel="CPU seconds of training", ylim=(45, 102))
        panel.set_xticks(SECONDS, [str(seconds) for seconds in SECONDS])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("success, %")
    handles = {}
    for panel in panels[0]:
        handles.update(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    names = sorted(handles)
    figure.legend([handles[n] for n in names], names, loc="center right", fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1 - 1.5 / figure.get_figwidth(), 1))
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, help="--out of benchmarks.studies.results")
    parser.add_argument("--out", type=Path, default=Path("docs/images/success_over_cpu.png"))
    args = parser.parse_args()
    draw(read_points(args.folders), args.out)
    print(args.out)


if __name__ == "__main__":
    main()
