"""The parquet tables of a LeRobot dataset, episode by episode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.encoded_frames import EncodedFrames
from imitate.data.file.hdf5_format import natural_key
from imitate.data.formats.extras import extra
from imitate.data.formats.frames import as_encoded, decoded
from imitate.errors import DatasetError
from imitate.plain_files import parsed_json, read_text
from imitate.wording import counted

_BATCH_ROWS = 256


class Tables:
    """Features, tasks, and the rows of each episode; holds one episode in memory.

    Args:
        path: the dataset's folder.
        info: content of its ``meta/info.json``.
    """

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path, self.info = path, info
        self.features: dict[str, Any] = info["features"]
        self.fps = float(info["fps"])
        self.count = int(info["total_episodes"])
        self._parquet = extra("pyarrow.parquet", "lerobot")
        self.is_v3 = info["codebase_version"] == "v3.0"
        self.rows_of_episodes = self._episode_rows() if self.is_v3 else {}
        self._tasks = self._task_names()

    def _episode_rows(self) -> dict[int, dict[str, Any]]:
        """Read the entry of each episode in ``meta/episodes``."""
        files = _sorted(self.path / "meta" / "episodes", "*/*.parquet")
        found: dict[int, dict[str, Any]] = {}
        for file in files:
            schema = self._parquet.read_schema(file)
            columns = [name for name in schema.names if not name.startswith("stats/")]
            for row in self._parquet.read_table(file, columns=columns).to_pylist():
                found[int(row["episode_index"])] = row
        if len(found) != self.count or any(number >= self.count for number in found):
            raise DatasetError(
                f"{self.path}: 'meta/episodes' lists {counted(len(found), 'episode')}, 'meta/info.json' "
                f"says {self.count}: "
                "the dataset is incomplete; download it again"
            )
        return found

    def _task_names(self) -> dict[int, str]:
        table = self.path / "meta" / "tasks.parquet"
        if table.exists():
            rows = self._parquet.read_table(table).to_pylist()
            names = ("task", "__index_level_0__")
            return {
                int(row["task_index"]): str(next(row[name] for name in names if name in row))
                for row in rows
            }
        lines = self.path / "meta" / "tasks.jsonl"
        if not lines.exists():
            return {}
        rows = [
            parsed_json(line, str(lines)) for line in read_text(lines).splitlines() if line.strip()
        ]
        return {int(row["task_index"]): str(row["task"]) for row in rows}

    def task(self, index: NDArray[Any] | None) -> str | None:
        """Return the task of an episode: that of its first row; None: none is named."""
        if index is None or not self._tasks:
            return None
        number = int(np.ravel(index)[0])
        if number not in self._tasks:
            raise DatasetError(
                f"{self.path}: there is no task with index {number} (there are {sorted(self._tasks)}): "
                "'meta/tasks' is incomplete; download it again"
            )
        return self._tasks[number]

    # ---- rows ------------------------------------------------------------------------------------

    def _files(self) -> Iterable[Path]:
        pattern = str(self.info["data_path"])
        if not self.is_v3:
            size = int(self.info.get("chunks_size", 1000))
            return (
                self.path / pattern.format(episode_chunk=number // size, episode_index=number)
                for number in range(self.count)
            )
        places = {
            (row["data/chunk_index"], row["data/file_index"])
            for row in self.rows_of_episodes.values()
            if row.get("data/chunk_index") is not None
        }
        if not places:
            return _sorted(self.path / "data", "*/*.parquet")
        return [
            self.path / pattern.format(chunk_index=chunk, file_index=file)
            for chunk, file in sorted(places)
        ]

    def episodes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield number and columns of each episode, as pyarrow's arrays.

        Raises:
            DatasetError: a file is missing, or rows are out of order.
        """
        arrow = extra("pyarrow", "lerobot")
        pending: list[Any] = []
        current, expected = None, 0
        for file in self._files():
            if not file.is_file():
                raise DatasetError(
                    f"{file}: is missing: the dataset is incomplete; download it again"
                )
            for batch in self._parquet.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS):
                numbers = np.asarray(batch.column("episode_index"))
                cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
                for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
                    if stop == start:
                        continue
                    if current is not None and numbers[start] != current:
                        yield current, _columns(arrow.Table.from_batches(pending))
                        pending, expected = [], expected + 1
                    current = int(numbers[start])
                    if current != expected:
                        raise DatasetError(
                            f"{file}: episode {current} where {expected} should be: the dataset is damaged"
                        )
                    pending.append(batch.slice(start, stop - start))
        if current is not None:
            yield current, _columns(arrow.Table.from_batches(pending))
        if current is None or current + 1 != self.count:
            found = 0 if current is None else current + 1
            raise DatasetError(
                f"{self.path}: has the rows of {counted(found, 'episode')}, 'meta/info.json' says {self.count}: "
                "download it again"
            )

    def decoded(
        self, key: str, column: Any, *, encoded: bool = False
    ) -> NDArray[Any] | EncodedFrames | None:
        """Return the values of a column, (T, ...); None for one without numbers.

        Args:
            key: of the feature.
            column: of one episode.
            encoded: leave images compressed where they are alike.
        """
        feature = self.features.get(key, {})
        if feature.get("dtype") == "image":
            where = f"{self.path}: '{key}'"
            frames = [self._image_bytes(cell, where) for cell in column.to_pylist()]
            as_they_are = as_encoded(frames) if encoded else None
            if as_they_are is not None:
                return as_they_are
            images: NDArray[Any] = np.stack([decoded(data, where) for data in frames])
            return images
        if feature.get("dtype") in ("string", "language"):
            return None
        values: NDArray[Any] = np.asarray(column.to_pylist())
        if values.dtype.kind not in "fiub":
            return None
        shape = tuple(feature.get("shape", ()))
        if shape and shape != (1,):
            values = values.reshape(len(values), *shape)
        typed: NDArray[Any] = (
            values.astype(np.dtype(feature["dtype"])) if "dtype" in feature else values
        )
        return typed

    def _image_bytes(self, cell: Any, where: str) -> bytes:
        if isinstance(cell, dict) and cell.get("bytes"):
            return bytes(cell["bytes"])
        path = self.path / str(cell.get("path") if isinstance(cell, dict) else cell)
        if not path.is_file():
            raise DatasetError(f"{where}: has no image bytes and no file {path}: download it again")
        return path.read_bytes()


def _columns(table: Any) -> dict[str, Any]:
    return {name: table.column(name) for name in table.column_names}


def _sorted(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda file: natural_key(str(file)))
