"""Layouts of observations and actions: in files, inside networks, and for the robot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imitate.errors import ConfigError, nearest
from imitate.functional import rotations
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


class JoinedVectors(dict[str, Tensor]):
    """Vectors (*B, D) by key that are the columns of one tensor; copies and changed copies are ordinary dicts.

    An encoder that concatenates the vectors in the same order uses the tensor instead.

    Args:
        joined: (*B, sum of D) all vectors side by side.
        keys: keys of the vectors, in order.
        sizes: number D of values of each vector, in order.
    """

    __slots__ = ("_columns", "joined")

    def __init__(self, joined: Tensor, keys: Sequence[str], sizes: Sequence[int]) -> None:
        self.joined = joined
        self._columns = joined.split_with_sizes(list(sizes), -1)
        super().__init__(zip(keys, self._columns, strict=True))

    def are_columns(self, vectors: Sequence[Tensor]) -> bool:
        """Return true if the vectors are all columns of :attr:`joined`, in order."""
        return len(vectors) == len(self._columns) and all(map(is_, vectors, self._columns))


ROTATION_6D = "rot_6d"


# ---- actions -------------------------------------------------------------------------------------

_Convert = Callable[[Tensor], Tensor]


class _Robot(NamedTuple):
    """Conversions between rotation-6d and a robot's form of a rotation, three numbers: axis-angle or Euler angles."""

    from_6d: _Convert
    to_6d: _Convert


_ROBOT_ROTATIONS = {
    "rot_axis_angle": _Robot(
        rotations.rotation_6d_to_axis_angle, rotations.axis_angle_to_rotation_6d
    ),
    "rot_euler": _Robot(
        lambda x: rotations.matrix_to_euler(rotations.rotation_6d_to_matrix(x)),
        lambda x: rotations.matrix_to_rotation_6d(rotations.euler_to_matrix(x)),
    ),
}


class ActionKey(NamedTuple):
    """Size and rotation form of one action key.

    Attributes:
        stored: number of values in the data.
        rotation: None, or the robot's form of the rotation in this key ('rot_axis_angle', 'rot_euler'); networks learn
            it as rotation-6d, which is continuous (Zhou et al., CVPR 2019, arXiv:1812.07035).
    """

    stored: int
    rotation: str | None = None

    @property
    def learned(self) -> int:
        """Number of values that networks predict."""
        return self.stored if self.rotation is None else 6

    @property
    def sent(self) -> int:
        """Number of values that the robot takes."""
        return self.stored if self.rotation is None else 3


class ActionLayout:
    """Action keys in the order of their concatenation.

    A key with a rotation is stored either as rotation-6d or in the robot's form, which is detected by the number of its
    values.

    Args:
        stored_dims: size of each key in the data.
        rotations: the robot's form of rotation, for each key that is a rotation.

    Attributes:
        converts: True if a key has a rotation.
    """

    def __init__(
        self, stored_dims: Mapping[str, int], rotations: Mapping[str, str] | None = None
    ) -> None:
        self.keys = {
            key: ActionKey(int(dim), (rotations or {}).get(key)) for key, dim in stored_dims.items()
        }
        for name, key in self.keys.items():
            if key.rotation is not None and key.stored not in (3, 6):
                raise ConfigError(
                    f"train.action_config.{name}.format is 'rot_6d', but the data have {key.stored} numbers there; "
                    f"expected 6, or 3 that are '{key.rotation}'"
                )
        self.converts = any(key.rotation for key in self.keys.values())

    @classmethod
    def from_config(
        cls, stored_dims: Mapping[str, int], action_config: Mapping[str, Any]
    ) -> ActionLayout:
        """Build the layout from ``format`` and ``convert_at_runtime`` of each key of ``train.action_config``."""
        chosen = {}
        for key in stored_dims:
            section = action_config.get(key, {})
            if section.get("format", None) == ROTATION_6D and section.get(
                "convert_at_runtime", None
            ):
                chosen[key] = section["convert_at_runtime"]
        return cls(stored_dims, chosen)

    @property
    def learned_dims(self) -> dict[str, int]:
        """Number of values per key that networks predict."""
        return {name: key.learned for name, key in self.keys.items()}

    @property
    def sent_dim(self) -> int:
        """Number of values that the robot takes."""
        return sum(key.sent for key in self.keys.values())

    def sent_limits(
        self, low: Sequence[float], high: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Convert limits of stored actions to limits of actions sent to the robot; rotations have limits +- pi."""
        lows: list[float] = []
        highs: list[float] = []
        start = 0
        for key in self.keys.values():
            stop = start + key.stored
            if key.rotation is None:
                lows += low[start:stop]
                highs += high[start:stop]
            else:
                lows += [-math.pi] * key.sent
                highs += [math.pi] * key.sent
            start = stop
        return lows, highs

    def to_learned(self, stored: Tensor) -> Tensor:
        """Convert stored actions ``(*B, D)`` to the form that networks learn."""
        if not self.converts:
            return stored
        parts = torch.split(stored, [key.stored for key in self.keys.values()], dim=-1)
        return torch.cat(
            [
                _ROBOT_ROTATIONS[key.rotation].to_6d(part)
                if key.rotation is not None and key.stored == 3
                else part
                for key, part in zip(self.keys.values(), parts, strict=True)
            ],
            dim=-1,
        )

    def to_sent(self, learned: Tensor) -> Tensor:
        """Convert predictions ``(*B, D)``, unnormalized, to the form that the robot takes."""
        if not self.converts:
            return learned
        parts = torch.split(learned, [key.learned for key in self.keys.values()], dim=-1)
        return torch.cat(
            [
                part if key.rotation is None else _ROBOT_ROTATIONS[key.rotation].from_6d(part)
                for key, part in zip(self.keys.values(), parts, strict=True)
            ],
            dim=-1,
        )
