"""Learning and success curves of several runs in one picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imitate.errors import UserError
from imitate.train.metrics import MetricsFile
from imitate.train.run_folder import RunFolder, open_run_folder

Record = Mapping[str, Any]
AXES = {"epoch": "epoch", "step": "updates", "cpu": "CPU seconds of training"}
"""What a curve is drawn over, and its label."""


@dataclass(frozen=True)
class Curve:
    """One run.

    Attributes:
        label: in the legend.
        epochs: records of epochs, in order.
        rollouts: records of evaluations, in order.
    """

    label: str
    epochs: tuple[Record, ...]
    rollouts: tuple[Record, ...]

    def place(self, record: Record, over: str) -> float:
        """Where a record stands on the axis."""
        if over != "cpu":
            return float(record[over])
        known = {r["epoch"]: r["Timing/CPU_s"] for r in self.epochs if "Timing/CPU_s" in r}
        if record["epoch"] not in known:
            raise UserError(
                f"run '{self.label}': its metrics have no CPU seconds (an older run); choose another --over"
            )
        return float(known[record["epoch"]])


def read_curves(paths: Iterable[str | Path]) -> list[Curve]:
    """Curves of run folders; a folder of runs stands for all of them.

    Raises:
        UserError: there is no run, or it has no metrics yet.
    """
    folders = [folder for path in paths for folder in _runs(Path(path).expanduser())]
    names = [_name(folder) for folder in folders]
    curves = []
    for folder, name in zip(folders, names, strict=True):
        records = MetricsFile(folder.metrics).read()
        label = name if names.count(name) == 1 else f"{name} {folder.path.name}"
        epochs = [record for record in records if record.get("kind") == "epoch"]
        rollouts = [record for record in records if record.get("kind") == "rollout"]
        if not epochs:
            raise UserError(f"{folder.path}: no epoch is over yet, so there is nothing to draw")
        curves.append(
            Curve(
                label,
                tuple(sorted(epochs, key=_epoch)),
                tuple(sorted(rollouts, key=_epoch)),
            )
        )
    return curves


def draw(curves: Sequence[Curve], path: Path, over: str = "step") -> Path:
    """Losses on the left, success rates with their intervals on the right."""
    # The object interface: nothing global is chosen, no window is opened.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for number, curve in enumerate(curves):
        color = f"C{number % 10}"
        _loss(left, curve, over, color)
        _success(right, curve, over, color)
    left.set(xlabel=AXES[over], ylabel="loss (dashed: validation)")
    if all(record.get("Train/Loss", 0) > 0 for curve in curves for record in curve.epochs):
        left.set_yscale("log")
    right.set(xlabel=AXES[over], ylabel="success rate (bars: 95 % interval)", ylim=(-0.03, 1.03))
    right.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def _loss(axes: Any, curve: Curve, over: str, color: str) -> None:
    for tag, style in (("Train/Loss", "-"), ("Valid/Loss", "--")):
        records = [record for record in curve.epochs if record.get(tag) is not None]
        x = [curve.place(record, over) for record in records]
        axes.plot(x, [record[tag] for record in records], style, color=color)


def _success(axes: Any, curve: Curve, over: str, color: str) -> None:
    x = [curve.place(record, over) for record in curve.rollouts]
    rate = [record["Rollout/Success_Rate"] for record in curve.rollouts]
    axes.plot(x, rate, marker="o", markersize=4, color=color, label=curve.label)
    low = [
        r - record.get("Rollout/Success_Rate_Low", r)
        for r, record in zip(rate, curve.rollouts, strict=True)
    ]
    high = [
        record.get("Rollout/Success_Rate_High", r) - r
        for r, record in zip(rate, curve.rollouts, strict=True)
    ]
    if x:
        bars = [[max(0.0, width) for width in widths] for widths in (low, high)]
        axes.errorbar(x, rate, bars, fmt="none", capsize=3, color=color, alpha=0.5)


def _runs(path: Path) -> list[RunFolder]:
    if (path / "config.json").is_file():
        return [open_run_folder(path)]
    found = sorted(config.parent for config in path.rglob("config.json") if _is_run(config.parent))
    if not found:
        raise UserError(f"{path}: neither a run folder nor a folder that holds runs")
    return [RunFolder(folder) for folder in found]


def _is_run(folder: Path) -> bool:
    return (folder / "metrics.jsonl").is_file()


def _name(folder: RunFolder) -> str:
    config = json.loads(folder.config.read_text(encoding="utf-8"))
    return str(config["experiment"]["name"])


def _epoch(record: Record) -> int:
    return int(record["epoch"])
