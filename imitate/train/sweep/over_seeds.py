"""Statistics over runs that differ in their seed alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from imitate.config.axes import CONFIG, leaves_of
from imitate.errors import UserError
from imitate.system.statistics import (
    FEWEST_SEEDS,
    Estimate,
    Statistic,
    estimate,
    mean_over_seeds,
    rate_over_seeds,
)
from imitate.train.outcomes import SUCCESS
from imitate.train.sweep.curves import (
    SEED,
    Curve,
    Record,
    Setting,
    distinguished,
    labelled,
    origin,
    seed_of,
)

NOT_OF_THE_SETTING = (
    "experiment.name",
    "experiment.logging",
    "experiment.render_video",
    "experiment.keep_all_videos",
    "experiment.video_skip",
    "meta",
    "train.output_dir",
    "train.cuda",
    "train.device",
    "train.num_data_workers",
    "train.num_threads",
    "train.data_on_device",
    "train.hdf5_cache_mode",
)
"""Configuration keys for name, folder and machine, which do not change the training."""
MISSING = object()


@dataclass(frozen=True)
class Measure:
    """A number that summarizes a finished run, such as its last success rate.

    Attributes:
        words: description of the measure.
        tag: name in the metrics.
        best: true for the largest value of all evaluations, false for the value in the last record.
    """

    words: str
    tag: str
    best: bool = False

    @property
    def is_rate(self) -> bool:
        """True if the measure is a rate in [0, 1], which is shown in percent."""
        return self.tag == SUCCESS

    @property
    def is_mean(self) -> bool:
        """True if the measure is a mean over episodes, which is shown with its standard deviation."""
        return self.tag in MEANS

    def point(self, curve: Curve) -> Point | None:
        """Return a run's value with its number of episodes, or None if the run has no value."""
        records = list(curve.rollouts if self.tag.startswith("Rollout/") else curve.epochs)
        points = [_point(r, self.tag) for r in (records if self.best else records[-1:])]
        return max((p for p in points if p is not None), default=None, key=lambda p: p.value)

    def of(self, curve: Curve) -> float | None:
        """Return a run's value, or None if the run has none."""
        point = self.point(curve)
        return None if point is None else point.value


class Point(NamedTuple):
    """A value of one run, with the episodes behind it.

    Attributes:
        value: the value.
        episodes: number of episodes over which the value is a mean; 0 if unknown.
        std: standard deviation over the episodes; NaN if unknown.
    """

    value: float
    episodes: float
    std: float


def _point(record: Record, tag: str) -> Point | None:
    value = _finite(record.get(tag))
    if value is None:
        return None
    std = _finite(record.get(f"{tag}_Std"))
    episodes = record.get("Rollout/Episodes") or 0
    return Point(value, float(episodes), math.nan if std is None else std)


def _estimate(tag: str, points: Sequence[Point], statistic: Statistic) -> Estimate:
    """Compute a statistic of a metric from one point per seed."""
    values, episodes, stds = zip(*points, strict=True)
    counts = [round(number) for number in episodes]
    if tag == SUCCESS:
        return rate_over_seeds(values, counts, statistic)
    if tag in MEANS:
        return mean_over_seeds(values, [_finite(std) for std in stds], counts, statistic)
    return estimate(values, statistic)


MEANS = ("Rollout/Return", "Rollout/D4RL_Score")
MEASURES = {
    "success_last": Measure("success, last", SUCCESS),
    "success_best": Measure("success, best", SUCCESS, best=True),
    "return_last": Measure("return, last", "Rollout/Return"),
    "return_best": Measure("return, best", "Rollout/Return", best=True),
    "d4rl_score_last": Measure("D4RL score, last", "Rollout/D4RL_Score"),
    "train_loss": Measure("train loss", "Train/Loss"),
    "valid_loss": Measure("valid loss", "Valid/Loss"),
}


def settings_of(
    curves: Sequence[Curve], runs: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Setting]:
    """Group runs of the same configuration, ordered by the first run of each.

    If two runs have the same seed, they form two settings if their sweeps or their experiments' names differ; otherwise
    only the later run counts.

    Args:
        curves: the runs, with their configurations.
        runs: values of all runs of a sweep, by name; by default settings are distinguished by all keys in which they
            differ.
    """
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(json.dumps(_compared(curve), sort_keys=True), []).append(curve)
    parted = [part for group in groups.values() for part in _a_run_per_seed(group)]
    flat = [dict(leaves_of(_compared(part[0]))) for part in parted]
    seeds = {values.get(SEED) for values in (runs or {}).values()}
    keys = _differing(flat)
    made = []
    for part, values in zip(parted, flat, strict=True):
        own = {key: values[key] for key in keys if key in values}
        if runs is not None:
            swept = runs[part[0].folder.parent.name]
            own = {key: value for key, value in swept.items() if key not in (SEED, CONFIG)}
        made.append(Setting("", own, tuple(sorted(part, key=seed_of)), len(seeds) or len(part)))
    return labelled(made)


def each_run(curves: Sequence[Curve]) -> list[Setting]:
    """Return a setting for each run; equal names are preceded by the sweep's name, or followed by the run's time."""
    names = [curve.label for curve in curves]
    longer = [
        name if names.count(name) == 1 else f"{curve.sweep} {name}" if curve.sweep else name
        for name, curve in zip(names, curves, strict=True)
    ]
    return distinguished([Setting("", {}, (curve,), 1) for curve in curves], longer)


def estimate_of(setting: Setting, measure: Measure, statistic: Statistic) -> Estimate | None:
    """Compute a measure over the setting's seeds; None if too few runs have it."""
    points = [point for curve in setting.curves if (point := measure.point(curve)) is not None]
    if len(points) < FEWEST_SEEDS[statistic]:
        return None
    return _estimate(measure.tag, points, statistic)


def require_seeds(settings: Sequence[Setting], statistic: Statistic) -> None:
    """Refuse a statistic that needs more seeds.

    Raises:
        UserError: a setting has too few seeds; the message names it.
    """
    for setting in settings:
        if len(setting.curves) < FEWEST_SEEDS[statistic]:
            raise UserError(
                f"--statistic {statistic} needs at least {FEWEST_SEEDS[statistic]} seeds; '{setting.label}' has "
                f"{len(setting.curves)}: choose mean or median, or train more seeds"
            )


@dataclass(frozen=True)
class Band:
    """A statistic over seeds during the training.

    Attributes:
        x: positions on the axis, increasing.
        value, low, high: statistic and interval at each x; without an interval ``low`` and ``high`` equal ``value``.
            A single run's rate and return have the interval of its episodes.
    """

    x: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def band(
    setting: Setting,
    tag: str,
    over: str,
    statistic: Statistic = "mean",
) -> Band:
    """Compute the statistic of a metric over seeds, epoch by epoch.

    A seed that was not evaluated at an epoch is linearly interpolated between its neighbouring evaluations. Epochs that
    some seed has not reached are left out, so every point includes all seeds.

    Args:
        setting: setting whose runs are used.
        tag: metric such as ``Train/Loss`` or ``Rollout/Success_Rate``.
        over: 'step', 'epoch' or 'cpu' (mean CPU seconds of the seeds at that epoch).
        statistic: see :func:`imitate.system.statistics.estimate`.
    """
    tracks = [list(_track(curve, tag, over)) for curve in setting.curves]
    if not all(tracks):
        return Band((), (), (), ())
    first = max(track[0][0] for track in tracks)
    last = min(track[-1][0] for track in tracks)
    epochs = sorted({row[0] for track in tracks for row in track if first <= row[0] <= last})
    points = []
    for epoch in epochs:
        rows = [_between(track, epoch) for track in tracks]
        made = _estimate(tag, [Point(*row) for _, *row in rows], statistic)
        ends = [made.value if end is None else end for end in (made.low, made.high)]
        points.append((fmean(place for place, *_ in rows), made.value, *ends))
    columns = zip(*points, strict=True) if points else iter(((), (), (), ()))
    return Band(*columns)


def _track(curve: Curve, tag: str, over: str) -> Iterator[tuple[float, ...]]:
    """Yield epoch, axis position, and value, episodes and deviation of each record that has the tag."""
    for record in curve.rollouts if tag.startswith("Rollout/") else curve.epochs:
        point = _point(record, tag)
        if point is not None:
            yield (float(record["epoch"]), curve.place(record, over), *point)


def _between(track: Sequence[tuple[float, ...]], epoch: float) -> list[float]:
    """Interpolate the axis position and the numbers of a track at an epoch."""
    known, *columns = zip(*track, strict=True)
    return [float(np.interp(epoch, known, column)) for column in columns]


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _compared(curve: Curve) -> dict[str, Any]:
    """Return the configuration without the keys that do not distinguish settings."""
    tree: dict[str, Any] = json.loads(json.dumps(curve.config))
    for path in (SEED, *NOT_OF_THE_SETTING):
        *sections, key = path.split(".")
        node: Any = tree
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(key, None)
    # A run without a configuration (made in Python) is a setting by itself.
    return tree or {"label": curve.label}


def _a_run_per_seed(group: Sequence[Curve]) -> list[list[Curve]]:
    if len({seed_of(curve) for curve in group}) == len(group):
        return [list(group)]
    named: dict[tuple[str, str], dict[int, Curve]] = {}
    for curve in sorted(group, key=lambda curve: curve.folder.name):
        named.setdefault(origin(curve), {})[seed_of(curve)] = curve
    return [list(part.values()) for part in named.values()]


def _differing(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = {key: None for values in flat for key in values}
    return [
        key for key in keys if any(v.get(key, MISSING) != flat[0].get(key, MISSING) for v in flat)
    ]
