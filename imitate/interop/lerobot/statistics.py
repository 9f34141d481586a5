"""Normalization of LeRobot's policies, as offset and scale: ``(x - offset) / scale``.

Formulas of LeRobot, by ``normalization_mapping`` of the feature's type; types that it does not name are left as they
are:

    MEAN_STD                       (x - mean) / (std + 1e-8)
    MIN_MAX, QUANTILES, QUANTILE10 2 (x - low) / (high - low) - 1, of min and max, q01 and q99, q10 and q90

A number that is constant in the data (high = low) becomes -1 whatever it is; up to 0.3, 1e-8 is added to every range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from imitate.errors import CheckpointError
from imitate.interop.lerobot.features import Feature
from imitate.models.fitting import Affine

_EPSILON = 1e-8
_RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
MODES = ("IDENTITY", "MEAN_STD", *_RANGES)


def affine_of(
    feature: Feature, mapping: Mapping[str, Any], statistics: Mapping[str, Mapping[str, Tensor]]
) -> Affine | None:
    """Return offset and scale of a feature, per number of a vector or channel of an image; None: it is left as it is.

    Raises:
        CheckpointError: its statistics are missing, of another shape or not finite, or the mode is unknown.
    """
    mode = mapping.get(feature.kind, "IDENTITY")
    if mode not in MODES:
        raise CheckpointError(
            f"normalization_mapping.{feature.kind}: {mode!r}; expected one of {', '.join(MODES)}"
        )
    if mode == "IDENTITY":
        return None
    of_feature = statistics.get(feature.name, {})
    if mode == "MEAN_STD":
        mean, std = (_statistic(feature, of_feature, name, mode) for name in ("mean", "std"))
        return mean, std + _EPSILON
    low, high = (_statistic(feature, of_feature, name, mode) for name in _RANGES[mode])
    span = high - low
    if feature.kind == "ACTION":  # what is sent is the constant, whatever the network says
        half = torch.where(span == 0, torch.full_like(span, _EPSILON), span) / 2
        return low + half, half
    # What comes in is -1 at the constant, and no other value was ever learned from.
    half = torch.where(span == 0, torch.ones_like(span), span / 2)
    return low + half, half


def _statistic(feature: Feature, found: Mapping[str, Tensor], name: str, mode: str) -> Tensor:
    if name not in found:
        raise CheckpointError(
            f"'{feature.name}' is to be normalized by {mode}, but the folder has no '{name}' of it: LeRobot would act "
            "on values that are not normalized; save the policy again with the statistics of its dataset"
        )
    value = found[name].double().flatten()
    wanted = feature.shape[0]
    if value.numel() != wanted:
        raise CheckpointError(
            f"'{name}' of '{feature.name}' has {value.numel()} numbers; expected {wanted}"
        )
    if not bool(value.isfinite().all()):
        raise CheckpointError(
            f"'{name}' of '{feature.name}' is not finite: the policy was saved without statistics"
        )
    return value
