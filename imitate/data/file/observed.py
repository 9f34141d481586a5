"""Observations of demonstration files by modality: the meaning of ``"auto"`` in ``observation.modalities``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from imitate.data.file.hdf5_format import DemoFile
from imitate.errors import DatasetError

Shape = tuple[int, ...]
Form = tuple[Shape, np.dtype[Any]]
SCAN_WORDS = ("scan", "lidar", "laser")


@dataclass(frozen=True)
class FileObservations:
    """Observations that all files have.

    Attributes:
        shapes: shape of one step as stored, by key, sorted.
        modalities: 'low_dim', 'rgb', 'depth' or 'scan' by key.
        left_out: keys that are not observations of a known modality, with the reason.
    """

    shapes: Mapping[str, Shape]
    modalities: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def keys(self, modality: str) -> list[str]:
        """Return the keys of a modality."""
        return [key for key, kind in self.modalities.items() if kind == modality]

    @property
    def words(self) -> str:
        """Describe the observations, for example: position (2,), camera_image (96, 96, 3)."""
        return ", ".join(f"{key} {shape}" for key, shape in self.shapes.items())


def observed(files: Sequence[tuple[DemoFile, str]]) -> FileObservations:
    """Read the observations of one demo of each file.

    Args:
        files: open files, each with the name of one of its demos.

    Raises:
        DatasetError: there is no observation that all files have.
    """
    return observed_of([(str(file.path), observation_forms(file, demo)) for file, demo in files])


def observation_forms(file: DemoFile, demo: str) -> dict[str, Form]:
    """Return the shape of one step and the type of each observation of a demo."""
    return {
        key: (file.shape(demo, f"obs/{key}")[1:], file.dtype(demo, f"obs/{key}"))
        for key in file.obs_keys(demo)
    }


def observed_of(datasets: Sequence[tuple[str, Mapping[str, Form]]]) -> FileObservations:
    """Sort observations into modalities.

    Args:
        datasets: name of each dataset, and its observations: shape of one step and type by key.

    Raises:
        DatasetError: there is no observation that all datasets have.
    """
    common = set.intersection(*(set(forms) for _, forms in datasets))
    shapes, modalities, left_out = {}, {}, {}
    for key in sorted(common):
        shape, dtype = datasets[0][1][key]
        shapes[key] = shape
        kind = _modality(key, shape, dtype)
        if kind is None:
            left_out[key] = f"shape {shape} of {dtype} is no vector, image, depth image or scan"
        else:
            modalities[key] = kind
    if not modalities:
        raise DatasetError(
            f"{', '.join(name for name, _ in datasets)}: have no observation in common: name other files"
        )
    return FileObservations(shapes, modalities, left_out)


def _modality(key: str, shape: Shape, dtype: np.dtype) -> str | None:  # type: ignore[type-arg]
    if dtype.kind not in "fiub":
        return None
    if len(shape) == 3:
        return {3: "rgb", 1: "depth"}.get(shape[-1])
    if len(shape) == 2 and dtype == np.uint8:
        return None
    if len(shape) == 2 and any(word in key.lower() for word in SCAN_WORDS):
        return "scan"
    return "low_dim" if len(shape) <= 2 else None
