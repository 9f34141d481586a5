"""Which normalization the configuration's words mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from imitate.errors import ConfigError, nearest
from imitate.functional import normalization

Affine = tuple[Tensor, Tensor]
"""Offset and scale: ``normalized = (raw - offset) / scale``."""


class Stats(Protocol):
    """Statistics of one key, arrays shaped like one step (images: per channel, in [0, 1])."""

    mean: ArrayLike
    std: ArrayLike
    min: ArrayLike
    max: ArrayLike


def fit_obs(mode: str, stats: Stats) -> Affine:
    """Offset and scale of an observation key for ``train.obs_normalization``."""
    return _rule(_OBS_RULES, mode, "train.obs_normalization")(*_tensors(stats))


def fit_actions(mode: str, stats: Stats, key: str) -> Affine:
    """Offset and scale of an action key for ``train.action_config.<key>.normalization``."""
    rule = _rule(_ACTION_RULES, mode, f"train.action_config.{key}.normalization")
    return rule(*_tensors(stats))


def _tensors(stats: Stats) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, std, low, high = (
        torch.as_tensor(np.asarray(value, dtype=np.float64))
        for value in (stats.mean, stats.std, stats.min, stats.max)
    )
    return mean, std, low, high


class _Rule(Protocol):
    def __call__(self, mean: Tensor, std: Tensor, low: Tensor, high: Tensor, /) -> Affine: ...


_OBS_RULES: Mapping[str, _Rule] = {
    "mean_std": lambda mean, std, low, high: normalization.mean_std_with_floor(mean, std),
    "min_max": lambda mean, std, low, high: normalization.min_max(low, high),
}
_ACTION_RULES: Mapping[str, _Rule] = {
    "min_max": lambda mean, std, low, high: normalization.min_max(
        low, high, normalization.ACTION_LIMIT
    ),
    "gaussian": lambda mean, std, low, high: normalization.mean_std_unless_constant(mean, std),
}


def _rule(rules: Mapping[str, _Rule], name: str, key: str) -> _Rule:
    if name not in rules:
        raise ConfigError(f"{key}: unknown normalization '{name}'; {nearest(name, rules)}")
    return rules[name]
