"""``index.json``: demos, lengths, filter keys and statistics of a folder of demonstration files.

A folder of shards contains ``000.hdf5``, ``001.hdf5`` ..., each a complete demonstration file, and ``index.json``,
which is written last: if there is an index, all shards are complete. The names of demos are unique in the folder. The
index contains everything that a training would otherwise read from all files, so that it only needs the files whose
demos it currently trains on.

The statistics of an array are count, mean, sum of squared deviations, minimum and maximum of its rows, which can be
merged exactly.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from typing_extensions import Self

from imitate.data.dataset_file import DatasetFile
from imitate.data.download.download import sha256_of
from imitate.data.file.extents import Extents
from imitate.data.file.faults import check_finite, check_length
from imitate.data.file.hdf5_format import wrong_env_args
from imitate.errors import DatasetError, nearest
from imitate.system.instructions import TASK_ATTRS, instruction_of
from imitate.system.plain_files import check_depth, json_value, write_text
from imitate.system.recognition import INDEX_NAME

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of rows.

    Attributes:
        count: number of rows.
        mean: (D,) average.
        m2: (D,) sum of squared differences from the mean.
        min: (D,) smallest values.
        max: (D,) largest values.
    """

    count: int
    mean: Values
    m2: Values
    min: Values
    max: Values

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Compute the moments of rows.

        Args:
            rows: (n, D) with at least one row.
        """
        values = rows.astype(np.float64)
        mean = values.mean(axis=0)
        return cls(
            len(values),
            mean,
            ((values - mean) ** 2).sum(axis=0),
            values.min(axis=0),
            values.max(axis=0),
        )

    @classmethod
    def merged(cls, parts: Sequence[Moments]) -> Moments:
        """Compute the moments of all rows from the moments of their parts (Chan, Golub, LeVeque 1983).

        Args:
            parts: moments of each part; at least one.
        """
        counts = np.array([part.count for part in parts], dtype=np.float64)[:, None]
        means = np.stack([part.mean for part in parts])
        total = counts.sum()
        mean = (counts * means).sum(axis=0) / total
        between = (counts * (means - mean) ** 2).sum(axis=0)
        return cls(
            int(total),
            mean,
            np.sum([part.m2 for part in parts], axis=0) + between,
            np.min([part.min for part in parts], axis=0),
            np.max([part.max for part in parts], axis=0),
        )


FORMAT = "imitate-shards"
VERSION = 1
ALL = ""
"""Name of the statistics over all demos; statistics of a filter key have the key's name."""
_Count = Annotated[int, Field(ge=0, lt=2**40)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
MAX_BYTES = 2**27
"""Largest size of an index in bytes."""
_MOST_VALUES = 2**23
"""Largest number of values in an index; each takes about 100 bytes of memory."""


def _described(env_args: dict[str, Any]) -> dict[str, Any]:
    for key, words in wrong_env_args(env_args):
        raise ValueError(f"'{key}' {words}")
    return env_args


def _type_of_numpy(name: str) -> str:
    if not name.startswith(("[", "{")):  # a structured type, of which only the name is kept
        try:
            np.dtype(name)
        except (TypeError, ValueError, SyntaxError, OverflowError):
            raise ValueError(f"'{name}' is not the name of a numpy type") from None
    return name


_EnvArgs = Annotated[dict[str, Any], AfterValidator(_described)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class ArrayForm(_Record):
    """Shape and type of an array, which are equal in all demos.

    Attributes:
        shape: shape of one step.
        dtype: numpy's name of the dtype.
    """

    shape: list[_Count]
    dtype: Annotated[str, AfterValidator(_type_of_numpy)]

    @property
    def type(self) -> np.dtype[Any]:
        """The dtype; bytes for structured types."""
        return np.dtype("V") if self.dtype.startswith(("[", "{")) else np.dtype(self.dtype)

    def fits(self, other: ArrayForm) -> bool:
        """Return true if arrays of both forms can be trained on together."""
        return self.shape == other.shape and (self.dtype == "uint8") == (other.dtype == "uint8")


class Statistics(_Record):
    """Statistics in ``index.json``, as in :class:`Moments`; for images per channel, in [0, 1], of some frames."""

    count: Annotated[int, Field(ge=1)]
    mean: list[_Finite]
    m2: list[_Finite]
    min: list[_Finite]
    max: list[_Finite]

    @model_validator(mode="after")
    def _same_sizes(self) -> Self:
        if len({len(self.mean), len(self.m2), len(self.min), len(self.max)}) != 1:
            raise ValueError("mean, m2, min and max differ in length")
        return self

    @classmethod
    def of(cls, moments: Moments) -> Self:
        """Convert moments to statistics."""
        return cls(
            count=moments.count,
            mean=moments.mean.tolist(),
            m2=moments.m2.tolist(),
            min=moments.min.tolist(),
            max=moments.max.tolist(),
        )

    @property
    def moments(self) -> Moments:
        """Convert statistics to moments."""
        return Moments(
            self.count,
            *(np.array(values) for values in (self.mean, self.m2, self.min, self.max)),
        )


class Shard(_Record):
    """One demonstration file of the folder.

    Attributes:
        file: file name in the folder.
        bytes: size of the file.
        sha256: checksum of the content, in hexadecimal.
        demos: names of the demos, in natural order.
        lengths: number of steps of each demo.
        success: attribute ``success`` of each demo; None if a demo does not have it.
        language: instruction of each demo; None if a demo has no instruction.
        filter_keys: demos of each mask of the file, by name.
        statistics: statistics by filter key (:data:`ALL` for all demos) and array.
    """

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.(hdf5|h5)$")]
    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    demos: list[str]
    lengths: list[_Count]
    success: list[bool | None]
    language: list[str | None]
    filter_keys: dict[str, list[str]]
    statistics: dict[str, dict[str, Statistics]]

    @model_validator(mode="after")
    def _one_entry_per_demo(self) -> Self:
        for name in ("lengths", "success", "language"):
            if len(getattr(self, name)) != len(self.demos):
                raise ValueError(f"{self.file}: {name} has another number of entries than demos")
        known = set(self.demos)
        for key, demos in self.filter_keys.items():
            if not known.issuperset(demos):
                raise ValueError(
                    f"{self.file}: filter key '{key}' names demos that the file does not have"
                )
        return self

    def steps_of(self, demos: list[str]) -> NDArray[np.int64]:
        """Return the numbers of steps (n,) of demos."""
        known = dict(zip(self.demos, self.lengths, strict=True))
        return np.array([known[demo] for demo in demos], dtype=np.int64)

    def chosen(self, filter_key: str | None) -> list[str]:
        """Return the demos of a mask in natural order; all demos for None."""
        if filter_key is None:
            return list(self.demos)
        wanted = set(self.filter_keys.get(filter_key, ()))
        return [demo for demo in self.demos if demo in wanted]


class DescribedShard(_Record):
    """Entry of a shard, and the properties that all shards must share, see :class:`ShardIndex`."""

    shard: Shard
    arrays: dict[str, ArrayForm]
    env_args: _EnvArgs
    control_freq: float | None


class ShardIndex(_Record):
    """Content of ``index.json``.

    Attributes:
        env_args: environment of the demos.
        control_freq: control rate in Hz; None if the files do not record it.
        arrays: shape and type of arrays that all demos have, by path below the demo.
        shards: the files, in the order of their demos.
    """

    env_args: _EnvArgs
    control_freq: float | None
    arrays: dict[str, ArrayForm]
    shards: Annotated[list[Shard], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        for what, names in (
            ("file", [shard.file for shard in self.shards]),
            ("demo", [demo for shard in self.shards for demo in shard.demos]),
        ):
            twice, count = Counter(names).most_common(1)[0] if names else ("", 0)
            if count > 1:
                raise ValueError(f"{what} '{twice}' occurs twice")
        return self

    @model_validator(mode="after")
    def _mergeable(self) -> Self:
        sizes: dict[str, int] = {}
        for shard in self.shards:
            for known in shard.statistics.values():
                for key, stats in known.items():
                    if sizes.setdefault(key, len(stats.mean)) != len(stats.mean):
                        raise ValueError(f"statistics of '{key}' differ in length")
        return self

    @classmethod
    def parse(cls, text: str | bytes, place: str) -> Self:
        """Read an index.

        Args:
            text: JSON text.
            place: path or URL of the index, for error messages.

        Raises:
            DatasetError: the text is not an index, or was written by a later version.
        """
        try:
            tree = json_value(text, _MOST_VALUES) if len(text) <= MAX_BYTES else None
        except (ValueError, RecursionError) as error:
            raise DatasetError(
                f"{place}: is cut short or not JSON ({error}): copy it again"
            ) from None
        check_depth(tree, place, _MOST_VALUES)
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise DatasetError(
                f"{place}: is not an index of shards: write one with `imitate dataset shard FILE --out FOLDER`"
            )
        if tree.get("version") != VERSION:
            raise DatasetError(
                f"{place}: is an index of version {tree.get('version')!r}, but version {VERSION} is read: "
                "update imitate, or write "
                "the shards again with `imitate dataset shard`"
            )
        try:
            return cls.model_validate(tree)
        except UnicodeError:  # pydantic raises this error for a lone surrogate
            raise DatasetError(
                f"{place}: contains text that is not Unicode: the index is damaged, write it again with "
                "`imitate dataset shard`"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the index"
            raise DatasetError(
                f"{place}: {where}: {first['msg']}: the index is damaged, write it again with `imitate dataset shard`"
            ) from None

    def to_json(self) -> str:
        """Return the text of ``index.json``."""
        return json.dumps({"format": FORMAT, "version": VERSION, **self.model_dump()})

    # ---- queries ------------------------------------------------------------------------------------

    @property
    def observations(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape of one step and type of each observation."""
        return {
            key.removeprefix("obs/"): (tuple(form.shape), form.type)
            for key, form in self.arrays.items()
            if key.startswith("obs/") and "/" not in key.removeprefix("obs/")
        }

    @cached_property
    def filter_keys(self) -> dict[str, int]:
        """Number of demos of each mask."""
        counts: dict[str, int] = {}
        for shard in self.shards:
            for key, demos in shard.filter_keys.items():
                counts[key] = counts.get(key, 0) + len(demos)
        return counts

    def check_filter_key(self, filter_key: str, place: str) -> None:
        """Refuse a mask that does not exist in any shard.

        Raises:
            DatasetError: the mask does not exist; the message names the nearest one.
        """
        if filter_key not in self.filter_keys:
            raise DatasetError(
                f"{place}: there is no filter key '{filter_key}'; {nearest(filter_key, self.filter_keys)}"
            )

    def statistics(self, filter_key: str | None = None) -> Mapping[str, Moments]:
        """Compute the statistics of each measured array over the demos of a mask, or over all demos for None."""
        found: dict[str, list[Moments]] = {}
        for shard in self.shards:
            for key, stats in shard.statistics.get(filter_key or ALL, {}).items():
                if key in self.arrays:
                    found.setdefault(key, []).append(stats.moments)
        return {key: Moments.merged(parts) for key, parts in found.items()}

    def lengths(self, filter_key: str | None = None) -> Iterator[int]:
        """Yield the number of steps of each demo of a mask, or of all demos for None, in order."""
        for shard in self.shards:
            yield from shard.steps_of(shard.chosen(filter_key)).tolist()


_FRAMES = 64
"""Number of evenly spread frames of a shard for the statistics of images."""


def describe_shard(path: Path) -> DescribedShard:
    """Read a demonstration file and return its entry.

    Raises:
        DatasetError: the file is damaged, has no demo, or contains NaN or infinity.
    """
    with DatasetFile(path) as file, Extents(file) as extents:
        demos = file.demos()
        if not demos:
            raise DatasetError(f"{path}: holds no demo: a shard needs one")
        masks = file.filter_keys()
        forms = _common_forms(extents, demos)
        entry = {
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
            "demos": demos,
            "lengths": [check_length(file, demo) for demo in demos],
            "success": [file.success(demo) for demo in demos],
            "language": [instruction_of(file.attrs(demo, TASK_ATTRS)) for demo in demos],
            "filter_keys": masks,
            "statistics": _statistics(extents, demos, masks, forms),
        }
        try:
            shard = Shard.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DatasetError(f"{path}: cannot be a shard: {where}: {first['msg']}") from None
        return DescribedShard(
            shard=shard, arrays=forms, env_args=file.env_meta, control_freq=file.control_freq
        )


def index_of(described: Sequence[DescribedShard]) -> ShardIndex:
    """Make the index of a folder of shards.

    Args:
        described: entries of the shards, in the order of their demos.

    Raises:
        DatasetError: an array differs in shape or type between shards, or two demos have the same name.
    """
    first = described[0]
    for other in described[1:]:
        for key in sorted(first.arrays.keys() & other.arrays.keys()):
            if not first.arrays[key].fits(other.arrays[key]):
                forms = (other.arrays[key], first.arrays[key])
                here, there = (f"{form.shape} {form.dtype}" for form in forms)
                raise DatasetError(
                    f"{other.shard.file}: a step of '{key}' is {here}, but {there} in {first.shard.file}: "
                    "give it the same shape and type in all files"
                )
    common = set.intersection(*(set(part.arrays) for part in described))
    try:
        return ShardIndex(
            env_args=first.env_args,
            control_freq=first.control_freq,
            arrays={key: form for key, form in first.arrays.items() if key in common},
            shards=[part.shard for part in described],
        )
    except ValidationError as error:
        words = error.errors()[0]["msg"]
        raise DatasetError(f"the shards do not fit together: {words}") from None


def write_index(folder: Path, files: Sequence[Path] | None = None) -> ShardIndex:
    """Write ``index.json`` of a folder of finished demonstration files, atomically.

    Args:
        folder: folder of the shards.
        files: shards in the order of their demos; None for all HDF5 files of the folder, sorted by name.

    Raises:
        DatasetError: there is no shard, or the shards do not fit together.
    """
    files = sorted(folder.glob("*.hdf5")) if files is None else files
    if not files:
        raise DatasetError(f"{folder}: there is no .hdf5 file to index")
    index = index_of([describe_shard(file) for file in files])
    write_text(folder / INDEX_NAME, index.to_json())
    return index


def _common_forms(extents: Extents, demos: Sequence[str]) -> dict[str, ArrayForm]:
    """Return the shape and type of each array that all demos have in compatible forms."""
    common: dict[str, ArrayForm] | None = None
    for demo in demos:
        forms = {
            key: ArrayForm(shape=list(extent.shape[1:]), dtype=str(extent.dtype))
            for key, extent in extents.of(demo).items()
        }
        common = (
            forms
            if common is None
            else {
                key: form for key, form in common.items() if key in forms and form.fits(forms[key])
            }
        )
    return common or {}


def _statistics(
    extents: Extents,
    demos: Sequence[str],
    masks: dict[str, list[str]],
    forms: dict[str, ArrayForm],
) -> dict[str, dict[str, Statistics]]:
    """Compute the statistics of actions, rewards and observations, over all demos and over the demos of each mask."""
    found: dict[str, dict[str, Statistics]] = {name: {} for name in (ALL, *masks)}
    for key, form in forms.items():
        if not _is_measured(key, form):
            continue
        rows = _frames if len(form.shape) == 3 else _vectors
        of_demo = {demo: Moments.of(values) for demo, values in rows(extents, demos, key)}
        for name, members in ((ALL, demos), *masks.items()):
            parts = [of_demo[demo] for demo in members if demo in of_demo]
            if parts:
                found[name][key] = Statistics.of(Moments.merged(parts))
    return found


def _is_measured(key: str, form: ArrayForm) -> bool:
    dtype = form.type
    if key.startswith("obs/") and len(form.shape) == 3:
        return dtype == np.uint8
    known = key in ("actions", "rewards") or key.startswith(("obs/", "action_dict/"))
    return known and len(form.shape) <= 1 and dtype.kind in "fiub" and 0 not in form.shape


def _vectors(
    extents: Extents, demos: Sequence[str], key: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each demo with its values (T, D)."""
    for demo in demos:
        length = extents.of(demo)[key].shape[0]
        if not length:
            continue
        values = extents.read(demo, key, 0, length)
        check_finite(values, extents.file, demo, key, 0)
        yield demo, values.reshape(length, -1)


def _frames(extents: Extents, demos: Sequence[str], key: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield demos with the pixels (n, C) of some of their frames, in [0, 1]."""
    lengths = [extents.of(demo)[key].shape[0] for demo in demos]
    ends = np.cumsum(lengths)
    steps = np.linspace(0, ends[-1] - 1, min(_FRAMES, int(ends[-1]))).round().astype(np.int64)
    for demo, length, end in zip(demos, lengths, ends.tolist(), strict=True):
        own = steps[(steps >= end - length) & (steps < end)] - (end - length)
        if len(own):
            frames = np.concatenate([extents.read(demo, key, int(i), int(i) + 1) for i in own])
            yield demo, frames.reshape(-1, math.prod(frames.shape[3:])) / 255.0
