"""Shapes of observations in files and inside networks."""

from __future__ import annotations

from collections.abc import Sequence

from imitate.errors import ConfigError, nearest
from imitate.system.text import MASK

Shape = tuple[int, ...]

_RAW_DIMS = {"rgb": 3, "depth": 3, "scan": 2}
_MODALITIES = ("low_dim", *_RAW_DIMS, MASK)


def processed_shape(raw_shape: Sequence[int], modality: str, key: str = "") -> Shape:
    """Return the shape of one step inside networks: images (H, W, C) to (C, H, W), scans (L, C) to (C, L)."""
    return _moved(raw_shape, modality, key, (-1, 0))


def raw_shape_of(processed: Sequence[int], modality: str, key: str = "") -> Shape:
    """Return the raw shape: the inverse of :func:`processed_shape`."""
    return _moved(processed, modality, key, (0, -1))


def _moved(shape: Sequence[int], modality: str, key: str, axes: tuple[int, int]) -> Shape:
    if modality not in _MODALITIES:
        raise ConfigError(
            f"observation '{key}': unknown modality '{modality}'; {nearest(modality, _MODALITIES)}"
        )
    wanted = _RAW_DIMS.get(modality, len(shape))
    if len(shape) != wanted:
        raise ConfigError(
            f"observation '{key}' has shape {tuple(shape)}, but modality '{modality}' needs "
            f"{wanted} dimensions; list it under the right modality"
        )
    if modality in ("low_dim", MASK):
        return tuple(shape)
    source, destination = axes
    rest = list(shape)
    rest.insert(destination if destination == 0 else len(rest) - 1, rest.pop(source))
    return tuple(rest)
