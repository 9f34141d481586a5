"""Metrics of runs, read from their folders, and runs of one setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imitate.data.file.hdf5_format import natural_key
from imitate.errors import UserError, printable
from imitate.system.plain_files import read_json
from imitate.system.run_folder import RunFolder, existing, open_run_folder
from imitate.train.metrics import MetricsFile

Record = Mapping[str, Any]
SEED = "train.seed"


@dataclass(frozen=True)
class Curve:
    """Records of one run.

    Attributes:
        label: the experiment's name.
        epochs: records of epochs, in order.
        rollouts: records of evaluations, in order.
        config: the run's resolved configuration.
        folder: the run's folder.
        sweep: name of the sweep's folder, or None for a run by itself.
    """

    label: str
    epochs: tuple[Record, ...]
    rollouts: tuple[Record, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    sweep: str | None = None

    def place(self, record: Record, over: str) -> float:
        """Return the position of a record on the horizontal axis."""
        if over != "cpu" and record.get(over) is None:
            raise UserError(
                f"run '{self.label}': a line of its metrics has no {over}: copy the file from the run again"
            )
        if over != "cpu":
            return float(record[over])
        known = {r["epoch"]: r["Timing/CPU_s"] for r in self.epochs if "Timing/CPU_s" in r}
        if record["epoch"] not in known:
            raise UserError(
                f"run '{self.label}': its metrics have no CPU seconds (an older run); choose another --over"
            )
        return float(known[record["epoch"]])

    @property
    def is_online(self) -> bool:
        """True for online RL, whose steps are environment steps."""
        return any("Metrics/EnvironmentSteps" in record for record in self.epochs)


@dataclass(frozen=True)
class Setting:
    """Runs of one configuration, one per seed.

    Attributes:
        label: name in legends and tables.
        values: by dotted key, the values in which it differs from the other settings.
        curves: its runs, in the order of their seeds.
        wanted: number of seeds in the sweep; without a sweep the number of runs.
    """

    label: str
    values: Mapping[str, Any]
    curves: tuple[Curve, ...]
    wanted: int

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the training seeds, in order."""
        return tuple(seed_of(curve) for curve in self.curves)

    @property
    def title(self) -> str:
        """The label, with the number of seeds if there are several; it can be drawn."""
        label = printable(self.label)
        return label if len(self.curves) == 1 else f"{label} ({len(self.curves)} seeds)"


def seed_of(curve: Curve) -> int:
    """Return the training seed of a run, 0 if its configuration names none."""
    seed = curve.config.get("train", {}).get("seed", 0)
    return seed if type(seed) is int else 0


def read_curves(paths: Iterable[str | Path]) -> list[Curve]:
    """Read the curves of run folders; a folder of runs is replaced by all runs in it.

    Raises:
        UserError: there is no run, or it has no metrics yet.
    """
    folders = [folder for path in paths for folder in _runs(existing(path, "run"))]
    configs = [_config_in(folder) for folder in folders]
    curves = []
    for folder, config in zip(folders, configs, strict=True):
        records = MetricsFile(folder.metrics).read()
        epochs = [record for record in records if record.get("kind") == "epoch"]
        rollouts = [record for record in records if record.get("kind") == "rollout"]
        if not epochs:
            raise UserError(f"{folder.path}: no epoch is finished yet, so there is nothing to draw")
        curves.append(
            Curve(
                str(config["experiment"].get("name")),
                tuple(sorted(epochs, key=_epoch)),
                tuple(sorted(rollouts, key=_epoch)),
                config,
                folder.path,
                _sweep_of(folder.path),
            )
        )
    return curves


def _config_in(folder: RunFolder) -> dict[str, Any]:
    """Read the configuration of a run and check that its sections are JSON objects.

    Raises:
        UserError: a section is not an object.
    """
    config = read_json(folder.config)
    parts = [config]
    if isinstance(config, dict):
        parts = [config.get("experiment"), config.get("train", {})]
    if not all(isinstance(part, dict) for part in parts):
        raise UserError(
            f"{folder.config}: is not the configuration of a run: copy it from the run again"
        )
    return dict(config)


def _runs(path: Path) -> list[RunFolder]:
    if (path / "config.json").is_file():
        return [open_run_folder(path)]
    found = sorted(
        (config.parent for config in path.rglob("config.json") if _is_run(config.parent)),
        key=lambda folder: [natural_key(part) for part in folder.parts],
    )
    if not found and any(path.rglob("config.json")):
        raise UserError(f"{path}: no epoch is finished yet, so there is nothing to draw")
    if not found:
        raise UserError(f"{path}: neither a run folder nor a folder that holds runs")
    return [RunFolder(folder) for folder in found]


def _sweep_of(folder: Path) -> str | None:
    place = folder.absolute().parent.parent
    return place.name if (place / "sweep.json").is_file() else None


def _is_run(folder: Path) -> bool:
    return (folder / "metrics.jsonl").is_file()


def _epoch(record: Record) -> int:
    return int(record["epoch"])
