"""Curves of runs: metrics read from their folders, settings and their short names, and the style of pictures."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imitate.config.axes import short_name
from imitate.data.file.hdf5_format import natural_key
from imitate.errors import UserError, nearest, printable
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
        """The label, with control characters escaped, and the number of seeds if there are several."""
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


# ---- names and style in pictures -----------------------------------------------------------------

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 8,
    "axes.titlecolor": "0.35",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.3,
    "lines.markersize": 3,
    "errorbar.capsize": 2,
    "pdf.fonttype": 42,  # embeds TrueType fonts, which publishers accept
    "ps.fonttype": 42,
}
"""Settings of matplotlib."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B2A000")
"""Colours of Okabe and Ito, distinguishable with colour blindness (yellow is darkened)."""
PANEL_INCHES = (3.4, 2.4)
"""Size of a panel; two are the width of two columns of a paper."""
_NAMES = {
    "bc_ensemble": "BC ensemble",
    "cal_ql": "Cal-QL",
    "causal_bc": "causal BC",
    "diffusion_policy": "diffusion policy",
    "flow_policy": "flow policy",
    "ppo_bc": "PPO+BC",
    "rebrac": "ReBRAC",
    "fql": "FQL",
    "residual": "residual",
    "td3_bc": "TD3+BC",
    "vq_bet": "VQ-BeT",
}


def algorithm_name(name: str) -> str:
    """Return the name of an algorithm in the literature, such as ``IQL`` for ``iql``."""
    return _NAMES.get(name, name.upper().replace("_", "-"))


def color(number: int, count: int) -> Any:
    """Return the colour of line ``number`` of ``count``."""
    if count <= len(COLORS):
        return COLORS[number]
    import matplotlib

    return matplotlib.colormaps["turbo"]((number + 0.5) / count)


LONGEST = 30
"""Largest number of letters of a label, and of a value that has a column in a table."""
MOST_KEYS = 2
"""Largest number of keys in a label."""


def labelled(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings with a label of at most `LONGEST` letters each, all different.

    A label is the name of the sweep's folder or of the experiment, else of the algorithm. If several settings share
    this name, at most `MOST_KEYS` values in which they differ are added; within a single sweep the label has only these
    values.
    """
    bases = [_base(setting.curves) for setting in settings]
    alone = len(set(bases)) == 1 and all(curve.sweep for s in settings for curve in s.curves)
    labels = []
    for setting, base in zip(settings, bases, strict=True):
        cell = _cell(setting)
        if alone and cell:
            labels.append(cell)
        elif bases.count(base) == 1:
            labels.append(base or _of_algorithm(setting))
        else:
            labels.append(f"{base} {cell or value_words(setting.values)}".strip())
    return distinguished(settings, labels)


def renamed(settings: Sequence[Setting], names: Iterable[str]) -> list[Setting]:
    """Return the settings with the user's labels, given as ``NAME=TEXT``.

    Raises:
        UserError: there is no such label.
    """
    texts: dict[str, str] = {}
    for name in names:
        old, equals, text = name.rpartition("=")
        if not equals or not text:
            raise UserError(f"--label {name}: wanted NAME=TEXT, such as lift_bc=BC")
        labels = [setting.label for setting in settings]
        if old not in labels and algorithm_name(old) in labels:
            old = algorithm_name(old)
        if old not in labels:
            raise UserError(f"--label {name}: no line has the name '{old}'; {nearest(old, labels)}")
        texts[old] = text
    return [replace(s, label=texts.get(s.label, s.label)) for s in settings]


def distinguished(settings: Sequence[Setting], labels: Sequence[str]) -> list[Setting]:
    """Return the settings with labels of at most `LONGEST` letters; equal ones get a number."""
    labels, made = [_shortened(label) for label in labels], []
    for number, (setting, label) in enumerate(zip(settings, labels, strict=True)):
        if labels.count(label) > 1:
            short = label[: LONGEST - 4].rstrip()
            label = f"{short} #{1 + labels[:number].count(label)}"
        made.append(replace(setting, label=label))
    return made


def value_words(values: Mapping[str, Any]) -> str:
    """Return the first values as text, such as ``batch_size=64, seq_length=10``."""
    if list(values) == ["algo_name"]:
        return algorithm_name(words(values["algo_name"]))
    first = list(values.items())[:MOST_KEYS]
    return ", ".join(f"{short_name(key, values)}={_last_part(words(v))}" for key, v in first)


def words(value: Any) -> str:
    """Format a value as in JSON, without the quotes of a text."""
    return value if isinstance(value, str) else json.dumps(value)


def cell_of(run: str) -> str:
    """Return the values in the name of a sweep's run except the seed; the runs of one setting share them."""
    parts = [part for part in run.split(",") if part.split("=")[0] not in ("seed", "train.seed")]
    return ", ".join(parts)


def origin(curve: Curve) -> tuple[str, str]:
    """Return the name that all runs of one setting share: the sweep and its values, or the experiment's name."""
    if curve.sweep:
        return curve.sweep, cell_of(curve.folder.parent.name)
    return str(curve.config.get("experiment", {}).get("name", curve.label)), ""


def _base(curves: Sequence[Curve]) -> str:
    """Return the name that the runs of a setting share, or an empty text."""
    names = {origin(curve)[0] for curve in curves}
    return names.pop() if len(names) == 1 else ""


def _cell(setting: Setting) -> str:
    cells = {origin(curve)[1] for curve in setting.curves}
    text = cells.pop() if len(cells) == 1 else ""
    key, _, value = text.partition("=")
    return algorithm_name(value) if key == "algo_name" and "," not in value else text


def _of_algorithm(setting: Setting) -> str:
    if setting.values:
        return value_words(setting.values)
    first = setting.curves[0]
    return first.folder.parent.parent.name or str(first.config.get("algo_name", "all"))


def _last_part(text: str) -> str:
    return text.rstrip("/").rpartition("/")[2] if "/" in text and "{" not in text else text


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3].rstrip(" ,_=") + "..."
