"""Normalizations by their names in the configuration, and the statistics to which they are fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from imitate.errors import ConfigError
from imitate.functional import normalization
from imitate.models.options import chosen

Affine = tuple[Tensor, Tensor]
"""Offset and scale: ``normalized = (raw - offset) / scale``."""


class Stats(Protocol):
    """Statistics of one key, arrays shaped like one step (images: per channel, in [0, 1])."""

    @property
    def mean(self) -> ArrayLike:
        """Mean of each number, or of each channel of an image."""
        ...

    @property
    def std(self) -> ArrayLike:
        """Population standard deviation of each number, or of each channel."""
        ...

    @property
    def min(self) -> ArrayLike:
        """Smallest value of each number, or of each channel."""
        ...

    @property
    def max(self) -> ArrayLike:
        """Largest value of each number, or of each channel."""
        ...

    @property
    def quantiles(self) -> Mapping[float, ArrayLike] | None:
        """Quantiles 0.01, 0.1, 0.9 and 0.99 by their level; None if they were not measured, as for images."""
        ...


Statistics = Mapping[str, Mapping[str, Stats]]
"""``{"obs": {observation: Stats}, "actions": {action key: Stats}}``."""


@dataclass(frozen=True)
class MeasuredStats:
    """Statistics of N values, which were measured in float64; each statistic has the shape of one value."""

    mean: Tensor
    std: Tensor
    min: Tensor
    max: Tensor
    quantiles: Mapping[float, Tensor]

    @classmethod
    def of(cls, values: Tensor) -> MeasuredStats:
        """Compute population statistics over the first axis, in float64."""
        x = values.double()
        levels = [level for ends in QUANTILES.values() for level in ends]
        found = torch.as_tensor(np.quantile(x.numpy(), levels, axis=0))
        return cls(
            x.mean(0),
            x.std(0, correction=0),
            x.amin(0),
            x.amax(0),
            dict(zip(levels, found, strict=True)),
        )


QUANTILES = {"quantile": (0.01, 0.99), "quantile10": (0.1, 0.9)}
"""For each normalization by quantiles, the levels of the quantiles that it maps to -1 and 1."""


class PartlyMeasured(Mapping[str, Stats]):
    """Statistics by key, some of which are measured when they are first read.

    Args:
        known: statistics of all keys, from before a step changed the values.
        measure: returns the statistics of a key whose values were changed, and None for the other keys.
    """

    def __init__(self, known: Mapping[str, Stats], measure: Callable[[str], Stats | None]) -> None:
        self._known = known
        self._measure = measure

    def __getitem__(self, key: str) -> Stats:
        return self._measure(key) or self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def fit_obs(mode: str, stats: Stats, key: str = "") -> Affine:
    """Return offset and scale of an observation key for ``train.obs_normalization``."""
    rule = chosen(_OBS_RULES, mode, "train.obs_normalization")
    return rule(stats, f"train.obs_normalization of '{key}'")


def fit_actions(mode: str, stats: Stats, key: str) -> Affine:
    """Return offset and scale of an action key for ``train.action_config.<key>.normalization``."""
    place = f"train.action_config.{key}.normalization"
    return chosen(_ACTION_RULES, mode, place)(stats, place)


def _tensor(value: ArrayLike) -> Tensor:
    return torch.as_tensor(np.asarray(value, dtype=np.float64))


class _Rule(Protocol):
    def __call__(self, stats: Stats, place: str, /) -> Affine: ...


def _mean_std(stats: Stats, place: str) -> Affine:
    return normalization.mean_std_with_floor(_tensor(stats.mean), _tensor(stats.std))


def _gaussian(stats: Stats, place: str) -> Affine:
    return normalization.mean_std_unless_constant(_tensor(stats.mean), _tensor(stats.std))


def _min_max(stats: Stats, place: str) -> Affine:
    return normalization.min_max(_tensor(stats.min), _tensor(stats.max))


def _limited_min_max(stats: Stats, place: str) -> Affine:
    low, high = _tensor(stats.min), _tensor(stats.max)
    return normalization.min_max(low, high, normalization.ACTION_LIMIT)


def _quantile(mode: str, stats: Stats, place: str) -> Affine:
    found = stats.quantiles
    if found is None:
        raise ConfigError(
            f"{place}: '{mode}' needs quantiles, which are measured only for vectors; expected 'mean_std' or 'min_max'"
        )
    lower, upper = (_tensor(found[level]) for level in QUANTILES[mode])
    return normalization.quantiles(lower, upper, _tensor(stats.min), _tensor(stats.max))


_BY_QUANTILES: Mapping[str, _Rule] = {mode: partial(_quantile, mode) for mode in QUANTILES}


_OBS_RULES: Mapping[str, _Rule] = {
    "mean_std": _mean_std,
    "min_max": _min_max,
    **_BY_QUANTILES,
}
_ACTION_RULES: Mapping[str, _Rule] = {
    "min_max": _limited_min_max,
    "gaussian": _gaussian,
    **_BY_QUANTILES,
}
