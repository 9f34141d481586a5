"""Writing of LeRobot datasets, version 3.0.

* Data that came from LeRobot get their original features; for other datasets see
  :mod:`imitate.data.formats.lerobot_layout`. RGB frames are PNGs in the tables, which are lossless, unlike videos; with
  ``--video`` they are videos.
* ``actions`` -> ``action``; ``rewards`` -> ``next.reward``; the end of an episode -> ``next.done``, and for a timeout
  also ``next.truncated``; the attribute ``success`` -> ``next.success`` at the last step; ``language`` -> the task.
* ``meta/stats.json`` has exact statistics of all values.
* Arrays without a feature, and arrays whose type differs from the feature's type, are stored in ``meta/imitate.hdf5``
  and restored by the reader.

The statistics are exact even if the dataset does not fit into memory. Vectors are written to a temporary file and read
back one dimension at a time, so that quantiles include all values. Frames are counted in a histogram of 256 values per
channel, which is equally exact.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.features import features_of
from imitate.data.file.hdf5_format import rate_of
from imitate.data.formats.base import ConversionReport, NamedDemo, OpenedDataset, Options, extra
from imitate.data.formats.frames import as_png
from imitate.data.formats.lerobot_layout import (
    ENDS,
    described,
    described_image,
    is_image,
    layout_of,
    to_features,
)
from imitate.data.formats.lerobot_video import FILE_MB, VIDEO_PATH, VideoEncoder, check_codec
from imitate.data.formats.sidecar import NAME, SidecarWriter, arrays_to_write
from imitate.errors import DatasetError
from imitate.system.plain_files import write_text

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Stats = dict[str, NDArray[np.float64]]


def stats_of(values: NDArray[Any]) -> Stats:
    """Return statistics of (T, D) values per dimension: min, max, mean, std, count, quantiles."""
    exact = values.astype(np.float64)
    return {
        "min": exact.min(axis=0),
        "max": exact.max(axis=0),
        "mean": exact.mean(axis=0),
        "std": exact.std(axis=0),
        "count": np.array([len(exact)], dtype=np.float64),
        **{name: np.quantile(exact, level, axis=0) for name, level in QUANTILES.items()},
    }


def stats_of_frames(counts: NDArray[np.int64], frames: int) -> Stats:
    """Return statistics of a histogram (C, 256) of pixel values in [0, 1], like :func:`stats_of` but (C, 1, 1)."""
    levels = np.arange(256) / 255.0
    total = counts.sum(axis=1)
    mean = (counts * levels).sum(axis=1) / total
    variance = (counts * (levels[None] - mean[:, None]) ** 2).sum(axis=1) / total
    seen = counts > 0
    found = {
        "min": levels[seen.argmax(axis=1)],
        "max": levels[255 - seen[:, ::-1].argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt(variance),
        **{name: _quantile(counts, total, level) / 255.0 for name, level in QUANTILES.items()},
    }
    shaped = {key: value.reshape(-1, 1, 1) for key, value in found.items()}
    return {**shaped, "count": np.array([frames], dtype=np.float64)}


def _quantile(
    counts: NDArray[np.int64], total: NDArray[np.int64], level: float
) -> NDArray[np.float64]:
    """Return the quantile at a level: the value at position (n - 1) * level, linearly interpolated as in numpy."""
    cumulated = counts.cumsum(axis=1)
    position = (total - 1) * level
    below, above = np.floor(position), np.ceil(position)
    low = np.array(
        [np.searchsorted(row, at, side="right") for row, at in zip(cumulated, below, strict=True)]
    )
    high = np.array(
        [np.searchsorted(row, at, side="right") for row, at in zip(cumulated, above, strict=True)]
    )
    return np.asarray(low + (high - low) * (position - below), dtype=np.float64)


def histogram(frames: NDArray[Any]) -> NDArray[np.int64]:
    """Return the counts (C, 256) of each value per channel of uint8 images (T, H, W, C)."""
    return np.stack(
        [
            np.bincount(frames[..., channel].ravel(), minlength=256)
            for channel in range(frames.shape[-1])
        ]
    )


class RunningStats:
    """Statistics of one feature over all episodes."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by result()
        self._counts: NDArray[np.int64] | None = None
        self._dims = self._rows = 0

    def add(self, values: NDArray[Any]) -> Stats:
        """Add the next episode, (T, D) numbers or (T, H, W, C) frames; return this episode's statistics."""
        self._rows += len(values)
        if values.ndim == 4:
            counts = histogram(values)
            self._counts = counts if self._counts is None else self._counts + counts
            return stats_of_frames(counts, len(values))
        self._dims = values.shape[1]
        self._file.write(np.ascontiguousarray(values, dtype=np.float32).tobytes())
        return stats_of(values)

    def result(self) -> Stats:
        """Return the statistics of all episodes."""
        with self._file as file:
            if self._counts is not None:
                return stats_of_frames(self._counts, self._rows)
            file.flush()
            rows: Any = np.memmap(file, dtype=np.float32, mode="r", shape=(self._rows, self._dims))
            columns = [stats_of(np.asarray(rows[:, [dim]])) for dim in range(self._dims)]
        merged = {key: np.concatenate([column[key] for column in columns]) for key in columns[0]}
        return {**merged, "count": np.array([self._rows], dtype=np.float64)}


LAYOUT = "lerobot_layout"
_DEFAULT_FPS = 20
_DATA_MB, _CHUNK_FILES = 100, 1000
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_EPISODES = "meta/episodes/chunk-000/file-000.parquet"


@contextmanager
def write(
    path: Path, source: OpenedDataset, options: Options, report: ConversionReport
) -> Iterator[Callable[[NamedDemo], None]]:
    """Write the dataset's folder, as described in the module."""
    if options.video is not None:
        check_codec(options.video)
    writer = _Writer(path, source, options.video, report)
    try:
        yield writer.append
        writer.finish()
    finally:
        writer.close()


class _Writer:
    def __init__(
        self, path: Path, source: OpenedDataset, video: str | None, report: ConversionReport
    ) -> None:
        self._path, self._source, self._report = path, source, report
        self._video = video
        self._encoders: dict[str, VideoEncoder] = {}
        (path / "meta").mkdir(parents=True)
        self._arrow = extra("pyarrow", "lerobot")
        self._parquet = extra("pyarrow.parquet", "lerobot")
        self._fps = _fps_of(source, report)
        self._known = features_of(source.attrs, report.source)
        self._entries = {str(entry["feature"]): entry for entry in self._known.values()}
        self._layout: dict[str, Any] = {}
        self._features: dict[str, Any] = {}
        self._stats: dict[str, RunningStats] = {}
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._frames = 0
        self._file: Any = None
        self._number = -1
        self._schema: Any = None
        self._sidecar: SidecarWriter | None = None

    # ---- an episode ------------------------------------------------------------------------------

    def append(self, demo: NamedDemo) -> None:
        arrays = arrays_to_write(demo, self._path)
        if not self._layout:
            self._begin(arrays)
        missing = sorted(set(self._layout) - set(arrays))
        if missing:
            raise DatasetError(
                f"{self._path}: demo '{demo.name}' has no '{missing[0]}', which the first demo has: give "
                "it in each demo"
            )
        timeouts = arrays["timeouts"].astype(bool)
        try:
            rows = to_features(arrays, self._layout, self._known)
        except ValueError as error:
            raise DatasetError(
                f"{self._path}: demo '{demo.name}' has arrays of other dimensions than the first demo "
                f"({error}): give the same dimensions in each demo"
            ) from error
        length = len(timeouts)
        rows.update(self._ends(timeouts, demo.episode.attrs.get("success")))
        task = str(demo.episode.attrs.get("language", self._source.env_meta.get("env_name", "")))
        index = self._tasks.setdefault(task, len(self._tasks))
        numbers = np.arange(length)
        rows["timestamp"] = (numbers / self._fps).astype(np.float32)
        rows["frame_index"] = numbers
        rows["episode_index"] = np.full(length, len(self._episodes))
        rows["index"] = numbers + self._frames
        rows["task_index"] = np.full(length, index)
        self._describe(rows)
        stats = {key: self._add_stats(key, values) for key, values in rows.items()}
        places = self._encode(rows)
        self._write_rows(rows)
        self._note_episode(task, length, places, stats)
        assert self._sidecar is not None
        self._sidecar.append(demo, arrays)

    def _ends(self, timeouts: NDArray[np.bool_], success: Any) -> dict[str, NDArray[Any]]:
        """Return the columns that describe the end of an episode; for a dataset from LeRobot, the original columns.

        ``next.success`` is left out if the success of the first episode is unknown (None).
        """
        last = np.arange(len(timeouts)) == len(timeouts) - 1
        found = dict(zip(ENDS, (last, last & timeouts, last & bool(success)), strict=True))
        wanted = self._known or self._features or ENDS[: 2 if success is None else 3]
        return {key: values[:, None] for key, values in found.items() if key in wanted}

    def _begin(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._layout = layout_of(arrays, self._known)
        self._source.attrs[LAYOUT] = json.dumps(self._layout)
        self._sidecar = SidecarWriter(self._path / "meta" / NAME, self._source)
        del self._source.attrs[LAYOUT]
        for key, (feature, *_) in self._layout.items():
            self._report.renamed[key] = feature
        self._report.note(
            f"data that LeRobot's format cannot store are in meta/{NAME}, from which imitate reads them again"
        )

    def _describe(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Define the features by the first episode; refuse an episode with other features."""
        found = {key: self._feature(key, values) for key, values in rows.items()}
        if not self._features:
            self._features = found
        for key, feature in found.items():
            if feature["shape"] != self._features[key]["shape"]:
                raise DatasetError(
                    f"{self._path}: '{key}' has shape {feature['shape']} in one demo and "
                    f"{self._features[key]['shape']} in another: give the same shape in each demo"
                )
            kinds = [one["dtype"] for one in (feature, self._features[key])]
            if kinds[0] != kinds[1] and {"image", "video"} & set(kinds):
                raise DatasetError(
                    f"{self._path}: '{key}' has type {kinds[0]} in one demo and {kinds[1]} in another: give "
                    "the same type in each demo"
                )

    def _feature(self, key: str, values: NDArray[Any]) -> dict[str, Any]:
        entry = self._entries.get(key)
        if is_image(values):
            return described_image(values, entry, video=self._video is not None)
        return described(key, values, self._layout, entry)

    def _add_stats(self, key: str, values: NDArray[Any]) -> Stats:
        flat = values if is_image(values) else values.reshape(len(values), -1)
        return self._stats.setdefault(key, RunningStats()).add(flat)

    def _encode(self, rows: dict[str, NDArray[Any]]) -> dict[str, int | float]:
        """Encode frames as videos, remove them from ``rows``, and return their location in the videos."""
        places: dict[str, int | float] = {}
        if self._video is None:
            return places
        for key in [key for key, values in rows.items() if is_image(values)]:
            if key not in self._encoders:
                encoder = VideoEncoder(self._path, key, self._video, self._fps, _CHUNK_FILES)
                self._encoders[key] = encoder
                self._report.changed[key] = f"{self._video} video: pixel values change a little"
            places.update(self._encoders[key].append(rows.pop(key)))
            self._features[key].setdefault("info", self._encoders[key].info())
        return places

    def _write_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        columns = {key: self._column(key, values) for key, values in rows.items()}
        table = self._arrow.table(columns)
        if self._file is None or self._size() > _DATA_MB * 2**20:
            self._next_file(table.schema)
        self._file.write_table(table, row_group_size=len(table))

    def _size(self) -> int:
        return (self._path / self._place()).stat().st_size

    def _place(self) -> str:
        chunk, file = divmod(self._number, _CHUNK_FILES)
        return _DATA.format(chunk_index=chunk, file_index=file)

    def _next_file(self, schema: Any) -> None:
        if self._file is not None:
            self._file.close()
        self._number += 1
        place = self._path / self._place()
        place.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._parquet.ParquetWriter(place, schema)

    def _column(self, key: str, values: NDArray[Any]) -> Any:
        arrow = self._arrow
        if is_image(values):
            kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
            cells = [{"bytes": as_png(frame), "path": None} for frame in values]
            return arrow.array(cells, type=kind)
        kind = arrow.from_numpy_dtype(np.dtype(self._features[key]["dtype"]))
        flat = arrow.array(np.ascontiguousarray(values).reshape(-1), type=kind)
        if values.ndim == 1 or values.shape[1:] == (1,):
            return flat
        for size in values.shape[:0:-1]:
            flat = arrow.FixedSizeListArray.from_arrays(flat, size)
        return flat

    def _note_episode(
        self,
        task: str,
        length: int,
        places: Mapping[str, int | float],
        stats: Mapping[str, Stats],
    ) -> None:
        chunk, file = divmod(self._number, _CHUNK_FILES)
        self._episodes.append(
            {
                "episode_index": len(self._episodes),
                "tasks": [task],
                "length": length,
                "data/chunk_index": chunk,
                "data/file_index": file,
                "dataset_from_index": self._frames,
                "dataset_to_index": self._frames + length,
                **places,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
                **{
                    f"stats/{key}/{name}": value.tolist()
                    for key, found in stats.items()
                    for name, value in found.items()
                },
            }
        )
        self._frames += length

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Write the files that need all episodes."""
        if self._sidecar is not None:
            self._sidecar.finish()
        for encoder in self._encoders.values():
            encoder.finish()
        place = self._path / _EPISODES
        place.parent.mkdir(parents=True)
        self._parquet.write_table(self._arrow.Table.from_pylist(self._episodes), place)
        self._write_tasks()
        stats = {key: running.result() for key, running in self._stats.items()}
        as_lists = {
            key: {name: value.tolist() for name, value in found.items()}
            for key, found in stats.items()
        }
        for found in as_lists.values():
            found["count"] = [int(found["count"][0])]
        write_text(self._path / "meta" / "stats.json", json.dumps(as_lists, indent=2))
        write_text(self._path / "meta" / "info.json", json.dumps(self._info(), indent=2))

    def _write_tasks(self) -> None:
        """Write the tasks with the task as pandas' index, because readers look up tasks there."""
        table = self._arrow.table(
            {"task_index": list(self._tasks.values()), "task": list(self._tasks)}
        )
        kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
        described = {
            "index_columns": ["task"],
            "column_indexes": [],
            "columns": [
                {
                    "name": name,
                    "field_name": name,
                    "pandas_type": kind,
                    "numpy_type": numpy,
                    "metadata": None,
                }
                for name, (kind, numpy) in kinds.items()
            ],
            "creator": {"library": "pyarrow", "version": self._arrow.__version__},
            "pandas_version": "2.0.0",
        }
        table = table.replace_schema_metadata({b"pandas": json.dumps(described).encode()})
        self._parquet.write_table(table, self._path / "meta" / "tasks.parquet")

    def _info(self) -> dict[str, Any]:
        return {
            "codebase_version": "v3.0",
            "robot_type": str(self._source.env_meta.get("env_name", "unknown")),
            "total_episodes": len(self._episodes),
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _CHUNK_FILES,
            "data_files_size_in_mb": _DATA_MB,
            "video_files_size_in_mb": FILE_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": _DATA,
            "video_path": VIDEO_PATH if self._encoders else None,
            "features": self._in_order(),
        }

    def _in_order(self) -> dict[str, Any]:
        """Return the features, beginning with those of the original dataset in their order."""
        first = [name for name in self._entries if name in self._features]
        return {name: self._features[name] for name in dict.fromkeys([*first, *self._features])}

    def close(self) -> None:
        """Close all files, even if closing one fails, because HDF5 crashes at exit if a file is left open."""
        with ExitStack() as stack:
            if self._sidecar is not None:
                stack.callback(self._sidecar.close)
            if self._file is not None:
                stack.callback(self._file.close)
            for encoder in self._encoders.values():
                stack.callback(encoder.close)


def _fps_of(source: OpenedDataset, report: ConversionReport) -> int:
    """Return the number of frames per second as an integer."""
    known = rate_of(source.control_freq, source.env_meta)
    if known is None:
        report.synthesised["fps"] = f"{_DEFAULT_FPS}: the dataset does not record its rate"
        return _DEFAULT_FPS
    fps = max(1, round(known))
    if fps != known:
        report.changed["fps"] = f"{known} -> {fps}: LeRobot needs a whole number"
    return fps
