"""Observations and actions of a policy of LeRobot, and their names here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from imitate.data.formats.lerobot import obs_name
from imitate.errors import CheckpointError

ACTION = "action"
Kind = Literal["STATE", "ENV", "VISUAL", "ACTION"]


@dataclass(frozen=True)
class Feature:
    """An observation or the action.

    Attributes:
        name: LeRobot's, such as 'observation.images.top'.
        kind: by which its normalization is chosen.
        shape: of one step; images (C, H, W).
        joins: names here of the vectors whose numbers it has side by side; empty: one, of the name :attr:`key`.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    joins: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Names here of all that it holds."""
        return self.joins or (self.key,)

    @property
    def key(self) -> str:
        """Name here, such as 'top_image'."""
        return "actions" if self.name == ACTION else obs_name(self.name)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape in datasets here: images (H, W, C)."""
        return (*self.shape[1:], self.shape[0]) if self.kind == "VISUAL" else self.shape


def inputs_of(config: Mapping[str, Any]) -> list[Feature]:
    """Return the observations in the order of ``config.json``, which is that of cameras in a network.

    Raises:
        CheckpointError: a feature is of a kind, or has a shape, that no policy here takes.
    """
    features = _features(config, "input_features", ("STATE", "ENV", "VISUAL"))
    homes: dict[str, str] = {}
    for feature in features:
        other = homes.setdefault(feature.key, feature.name)
        if other != feature.name:
            raise CheckpointError(
                f"input_features: '{other}' and '{feature.name}' would both be called '{feature.key}' here"
            )
    return features


def output_of(config: Mapping[str, Any]) -> Feature:
    """Return the action.

    Raises:
        CheckpointError: there is another number of actions than one.
    """
    features = _features(config, "output_features", ("ACTION",))
    if [feature.name for feature in features] != [ACTION]:
        names = ", ".join(feature.name for feature in features) or "nothing"
        raise CheckpointError(f"output_features: {names}; expected '{ACTION}' alone")
    return features[0]


def vectors(features: list[Feature], kind: Kind) -> list[Feature]:
    """Return those of a kind, at most one of which a network takes.

    Raises:
        CheckpointError: there are several.
    """
    found = [feature for feature in features if feature.kind == kind]
    if len(found) > 1:
        names = ", ".join(feature.name for feature in found)
        raise CheckpointError(
            f"input_features: {names} are all of type {kind}; expected one at most"
        )
    return found


def cameras(features: list[Feature]) -> list[Feature]:
    """Return the images, in order."""
    return [feature for feature in features if feature.kind == "VISUAL"]


def _features(config: Mapping[str, Any], group: str, kinds: tuple[Kind, ...]) -> list[Feature]:
    entries = config.get(group)
    if not isinstance(entries, Mapping) or not entries:
        raise CheckpointError(
            f"config.json: {group} is missing or empty; the file is of before February 2025, or cut"
        )
    found = []
    for name, entry in entries.items():
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        shape = entry.get("shape") if isinstance(entry, Mapping) else None
        if kind not in kinds:
            raise CheckpointError(
                f"{group}.{name}: type {kind!r}; expected one of {', '.join(kinds)}"
            )
        dims = 3 if kind == "VISUAL" else 1
        if (
            not isinstance(shape, list)
            or len(shape) != dims
            or not all(type(size) is int and size > 0 for size in shape)
        ):
            raise CheckpointError(
                f"{group}.{name}: shape {shape!r}; expected {dims} positive numbers"
            )
        found.append(Feature(str(name), kind, tuple(shape)))
    return found
