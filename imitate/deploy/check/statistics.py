"""Statistics of the training data, for comparison with a policy's observations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.batches.statistics import image_statistics, statistics_of
from imitate.errors import UserError

if TYPE_CHECKING:
    from imitate.data.dataset_file import DatasetFile

Vector = NDArray[np.float64]
MAX_IMAGES = 100
"""Largest number of frames, evenly spread, from which image statistics of a training file are computed."""


@dataclass(frozen=True)
class Range:
    """Statistics of an observation, (D,) each; for images one value per channel, in [0, 1].

    Attributes:
        mean, std: average and population standard deviation.
        low, high: smallest and largest value; infinite if unknown.
        first: smallest and largest value in the first steps of the demonstrations; None for images, and if unknown.
    """

    mean: Vector
    std: Vector
    low: Vector
    high: Vector
    first: tuple[Vector, Vector] | None = None

    def to_dict(self) -> dict[str, tuple[float, ...]]:
        """Return the statistics under the names that they have in checkpoints and schemas."""
        named = {"mean": self.mean, "std": self.std, "min": self.low, "max": self.high}
        if self.first is not None:
            named |= {"first_min": self.first[0], "first_max": self.first[1]}
        return {name: tuple(values.tolist()) for name, values in named.items()}


@dataclass(frozen=True)
class TrainingObservations:
    """Statistics of the observations in a policy's training.

    Attributes:
        ranges: statistics by key.
        origin: description of the source of the statistics; empty without statistics.
    """

    ranges: Mapping[str, Range]
    origin: str


def training_of(
    ckpt: Mapping[str, Any] | None,
    file: Path | None,
    kinds: Mapping[str, str],
    reads_files: bool = True,
) -> TrainingObservations:
    """Return statistics of the training data from the best available source.

    The sources in order are a file that the user names, statistics in the checkpoint, the file that the checkpoint was
    trained on, the checkpoint's normalization.

    Args:
        ckpt: content of a checkpoint, or None for a server's policy.
        file: training file that the user names.
        kinds: modality of each observation.
        reads_files: true to read the checkpoint's training file if needed, which takes time.

    Raises:
        DatasetError: the file that the user names cannot be read.
    """
    if file is not None:
        return TrainingObservations(measured(file, kinds), f"the file {file}")
    provenance = (ckpt or {}).get("provenance") or {}
    recorded = recorded_ranges(provenance.get("observations"), kinds)
    if recorded:
        return TrainingObservations(recorded, "the checkpoint")
    for entry in (provenance.get("datasets") or ()) if reads_files else ():
        path = Path(str(entry.get("path")))
        try:
            if path.is_file():
                return TrainingObservations(measured(path, kinds), f"the training file {path}")
        except UserError:
            continue
    ranges = {} if ckpt is None else _of_normalization(ckpt, kinds)
    return TrainingObservations(ranges, "the checkpoint's normalization" if ranges else "")


def measured(path: Path, kinds: Mapping[str, str]) -> dict[str, Range]:
    """Compute statistics of a file's available observations, from all vectors and a sample of the images."""
    from imitate.data.dataset_file import DatasetFile

    ranges = {}
    with DatasetFile(path) as file:
        demos = file.demos()
        for key, kind in kinds.items():
            having = [demo for demo in demos if file.has(demo, f"obs/{key}")]
            if kind == "low_dim" and having:
                ranges[key] = range_of(
                    piece for demo in having for _, piece in file.pieces(demo, f"obs/{key}")
                )
                begin = [file.read(demo, f"obs/{key}", 0, 1) for demo in having]
                first = range_of(begin)
                ranges[key] = replace(ranges[key], first=(first.low, first.high))
            elif kind == "rgb" and having:
                ranges[key] = image_range(_frames(file, having, key))
    return ranges


def _frames(file: DatasetFile, demos: Sequence[str], key: str) -> Iterator[NDArray[Any]]:
    """Yield single images (1, H, W, C), which are read one by one."""
    each = max(1, MAX_IMAGES // len(demos))
    chosen = np.linspace(0, len(demos) - 1, min(len(demos), MAX_IMAGES)).astype(int)
    for demo in (demos[index] for index in chosen):
        steps = np.linspace(0, file.length(demo) - 1, min(each, file.length(demo))).astype(int)
        for step in steps:
            yield file.read(demo, f"obs/{key}", step, step + 1)


def image_range(chunks: Iterable[NDArray[Any]]) -> Range:
    """Compute statistics per channel, in [0, 1], of images (T, H, W, C): integers, or floats already in [0, 1]."""
    stats = image_statistics(
        chunk / 255.0 if chunk.dtype.kind in "iu" and chunk.dtype != np.uint8 else chunk
        for chunk in chunks
    )
    return Range(stats.mean, stats.std, stats.min, stats.max)


def range_of(chunks: Iterable[NDArray[Any]]) -> Range:
    """Compute statistics over the first axis of (n, ...) arrays."""
    stats = statistics_of(chunk.reshape(len(chunk), -1) for chunk in chunks if len(chunk))
    return Range(stats.mean, stats.std, stats.min, stats.max)


def training_of_schema(ranges: Mapping[str, Any], kinds: Mapping[str, str]) -> TrainingObservations:
    """Return the statistics in the schema of a server or bundle.

    Args:
        ranges: attribute ``ranges`` of :class:`imitate.deploy.schema.Schema`.
        kinds: modality of each observation.
    """
    known = recorded_ranges(ranges, kinds)
    return TrainingObservations(known, "the policy's description" if known else "")


def recorded_ranges(saved: Any, kinds: Mapping[str, str]) -> dict[str, Range]:
    """Read the training statistics in a checkpoint; malformed statistics are left out."""
    ranges = {}
    for key in kinds:
        try:
            names = ("mean", "std", "min", "max", *(_FIRST if _FIRST[0] in saved[key] else ()))
            numbers = [np.asarray(saved[key][name], dtype=np.float64).ravel() for name in names]
        except (TypeError, KeyError, ValueError):
            continue
        if len({part.shape for part in numbers}) == 1 and np.isfinite(numbers).all():
            first = (numbers[4], numbers[5]) if len(numbers) == 6 else None
            mean, std, low, high = numbers[:4]
            ranges[key] = Range(mean, std, low, high, first)
    return ranges


_FIRST = "first_min", "first_max"


def _of_normalization(ckpt: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Range]:
    """Compute mean and standard deviation from offset and scale of ``obs_normalization: mean_std``."""
    from imitate.policy.checkpoint import config_of

    train = config_of(ckpt).train
    if train.obs_normalization != "mean_std":
        return {}
    ranges = {}
    names = {own: given for given, own in ckpt.get("rename", {}).items()}
    for own, entry in ckpt["preprocess"]["obs"].items():
        key = names.get(own, own)
        offset = entry["offset"].double().numpy().ravel()
        scale = entry["scale"].double().numpy().ravel()
        if key in kinds and not ((offset == 0) & (scale == 1)).all():
            unknown = np.full(offset.shape, np.inf)
            ranges[key] = Range(offset, scale, -unknown, unknown)
    return ranges
