"""Parquet tables of a LeRobot dataset, read episode by episode."""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.encoded_frames import EncodedFrames
from imitate.data.file.hdf5_format import natural_key
from imitate.data.formats.base import extra
from imitate.data.formats.frames import as_encoded, decoded, stacked
from imitate.data.formats.lerobot_missing import NAMED, absence, check_there, few, is_there
from imitate.errors import DatasetError
from imitate.system.memory import gigabytes
from imitate.system.plain_files import MAX_TEXT, parsed_json, path_inside, read_bytes, read_text
from imitate.system.text import counted

_BATCH_ROWS, _BATCH_BYTES = 256, 2**28
_ROWS_PER_BYTE, _FREE_ROWS = 4, 10_000
_TIMES = 16
"""Largest size of an episode's rows, or of a table, as a multiple of the file's size."""
_FREE_BYTES = 2**30
"""Size in bytes that is allowed for any file."""
_PATTERN = re.compile(r"(?:[^{}]|\{\w{1,40}(?::0?\d{1,2}d?)?\}){1,500}")
"""Valid patterns of paths in ``meta/info.json``."""


class Tables:
    """Features, tasks, and the rows of each episode; keeps only one episode in memory.

    Args:
        path: the dataset's folder.
        info: content of ``meta/info.json``.
        skip: true to leave out episodes without rows; if false, such episodes are an error.

    Attributes:
        unread: names of columns with lists of strings, which are not read.
        skipped: numbers of the episodes that are left out.
    """

    def __init__(self, path: Path, info: dict[str, Any], *, skip: bool = False) -> None:
        self.path, self.info = path, info
        self.features: dict[str, Any] = info["features"]
        self.fps = float(info["fps"])
        self.count = int(info["total_episodes"])
        self.unread: set[str] = set()
        self._parquet = extra("pyarrow.parquet", "lerobot")
        self.is_v3 = info["codebase_version"] == "v3.0"
        self.rows_of_episodes = self._episode_rows() if self.is_v3 else {}
        self.skipped: list[int] = []
        self.numbers = self._listed(skip)
        self._tasks = self._task_names()

    def _episode_rows(self) -> dict[int, dict[str, Any]]:
        """Read the entries of all episodes in ``meta/episodes``."""
        files = _sorted(self.path / "meta" / "episodes", "*/*.parquet")
        found: dict[int, dict[str, Any]] = {}
        for file in files:
            for row in self._small_rows(file):
                found[int(row["episode_index"])] = row
        return found

    @property
    def _list(self) -> str:
        """Name of the file or folder that lists the episodes, for messages."""
        return "'meta/episodes'" if self.is_v3 else "'meta/episodes.jsonl'"

    def _listed(self, skip: bool) -> list[int]:
        """Return the numbers of the episodes; some may have been deleted."""
        file = self.path / "meta" / "episodes.jsonl"
        if self.is_v3:
            found = sorted(self.rows_of_episodes)
        elif file.exists():
            found = sorted({int(row["episode_index"]) for row in _json_lines(file)})
        else:
            return self._with_rows()
        if skip:
            self.skipped = [number for number in found if not is_there(self._file(number))]
            return sorted(set(found) - set(self.skipped))
        if len(found) != self.count:
            gaps = _gaps(found, self.count)
            raise DatasetError(
                f"{self.path}: {self._list} lists {counted(len(found), 'episode')}, 'meta/info.json' says {self.count}"
                + (f" ({_few(gaps, 'is', 'are')} missing)" if gaps else "")
                + f': if episodes were deleted by hand, write "total_episodes": {len(found)}; else download it again'
            )
        if not self.is_v3:
            self._compare(found)
        return found

    def skip(self, numbers: Collection[int]) -> None:
        """Leave out episodes."""
        self.skipped = sorted({*self.skipped, *numbers})
        self.numbers = [number for number in self.numbers if number not in numbers]

    def _with_rows(self) -> list[int]:
        """Return the episode numbers from 0 on; without a list of episodes, each must have a file of rows."""
        there = sum(1 for _ in (self.path / "data").rglob("*.parquet"))
        numbers = list(range(min(self.count, there + 1)))
        self._compare(numbers)
        return numbers

    def _compare(self, numbers: list[int]) -> None:
        """Refuse episode numbers without a file of rows, and files with another number."""
        files = {self._file(number): number for number in numbers}
        missing = [number for file, number in files.items() if not is_there(file)]
        form = re.sub(r"\\{episode_\w+(:\w+)?\\}", r"\\d+", re.escape(str(self.info["data_path"])))
        present = {
            path
            for path in (self.path / "data").rglob("*.parquet")
            if re.fullmatch(form, path.relative_to(self.path).as_posix())
        }
        others = sorted(str(file.relative_to(self.path)) for file in present - files.keys())
        if not missing and not others:
            return
        words = []
        if missing:
            why = absence(self._file(missing[0]), self.path).removesuffix(": download it again")
            words.append(f"{_few(missing, 'has', 'have')} no rows ({why})")
        if others:
            words.append(
                f"{', '.join(others[:5])} {'is' if len(others) == 1 else 'are'} not listed"
            )
        raise DatasetError(f"{self.path}: {' and '.join(words)}: {self._advice()}")

    def _advice(self) -> str:
        return (
            f"if episodes were deleted by hand, delete both their rows and their entries in {self._list}; else "
            f"download it again, or use the complete episodes: `imitate dataset convert {self.path} NEW.hdf5 "
            "--skip-incomplete`"
        )

    def _task_names(self) -> dict[int, str]:
        table = self.path / "meta" / "tasks.parquet"
        if table.exists():
            rows = self._small_rows(table)
            names = ("task", "__index_level_0__")
            return {
                int(row["task_index"]): str(next(row[name] for name in names if name in row))
                for row in rows
            }
        lines = self.path / "meta" / "tasks.jsonl"
        if not lines.exists():
            return {}
        return {int(row["task_index"]): str(row["task"]) for row in _json_lines(lines)}

    def task(self, index: NDArray[Any] | None, episode: int) -> str | None:
        """Return the only task of an episode, or None if it has none.

        Raises:
            DatasetError: the task changes within the episode, or its index is unknown.
        """
        if index is None or not self._tasks:
            return None
        numbers = np.ravel(index)
        changes = np.flatnonzero(numbers != numbers[0])
        if len(changes):
            first, then = (self._task(int(numbers[at])) for at in (0, changes[0]))
            raise DatasetError(
                f"{self.path}: the task of episode {episode} changes at row {changes[0]} from '{first}' to '{then}', "
                "but an episode has one instruction: split it there, or give one for all by `imitate dataset convert` "
                "with --language"
            )
        return self._task(int(numbers[0]))

    def _task(self, number: int) -> str:
        if number not in self._tasks:
            raise DatasetError(
                f"{self.path}: there is no task with index {number} (there are {sorted(self._tasks)}): "
                "'meta/tasks' is incomplete; download it again"
            )
        return self._tasks[number]

    # ---- rows ------------------------------------------------------------------------------------

    def _file(self, number: int) -> Path:
        """Return the file of an episode's rows."""
        if self.is_v3:
            row = self.rows_of_episodes[number]
            chunk, file = (row[f"data/{name}_index"] for name in ("chunk", "file"))
            return self.place("data_path", chunk_index=chunk, file_index=file)
        size = int(self.info.get("chunks_size", 1000))
        return self.place("data_path", episode_chunk=number // size, episode_index=number)

    def place(self, pattern: str, **values: Any) -> Path:
        """Return the path that results from a pattern in ``meta/info.json``.

        Raises:
            DatasetError: the pattern has fields of another form than ``{name}`` or ``{name:06d}``.
            FileError: the path is outside of the dataset's folder.
        """
        text = str(self.info[pattern])
        if not _PATTERN.fullmatch(text):
            raise DatasetError(
                f"{self.path}: '{pattern}' in 'meta/info.json' is '{text[:200]}'; expected a path with parts such as "
                "{episode_index:06d}: correct it"
            )
        return path_inside(self.path, text.format(**values))

    def _files(self) -> Iterable[Path]:
        if not self.is_v3:
            return [self._file(number) for number in self.numbers]
        places = {
            (row["data/chunk_index"], row["data/file_index"])
            for row in (self.rows_of_episodes[number] for number in self.numbers)
            if row.get("data/chunk_index") is not None
        }
        if not places:
            return _sorted(self.path / "data", "*/*.parquet")
        return [
            self.place("data_path", chunk_index=chunk, file_index=file)
            for chunk, file in sorted(places)
        ]

    def episodes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield number and columns (pyarrow arrays) of each episode.

        Raises:
            DatasetError: a file is missing, or rows are out of order.
        """
        arrow = extra("pyarrow", "lerobot")
        pending: list[Any] = []
        held = 0
        current, following = None, iter(self.numbers)
        for file in self._files():
            check_there(file, self.path)
            for batch in self._batches(file):
                numbers = np.asarray(batch.column("episode_index"))
                cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
                for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
                    if stop == start:
                        continue
                    if current is not None and pending and numbers[start] != current:
                        yield current, _columns(arrow.Table.from_batches(pending))
                        pending, held = [], 0
                    if numbers[start] in self.skipped:
                        continue
                    if current is None or numbers[start] != current:
                        current = int(numbers[start])
                        self._check_next(current, next(following, None), file)
                    pending.append(batch.slice(start, stop - start))
                    held += sum(map(_expanded, pending[-1].columns))
                    _check_repeats(file, held)
        if current is not None and pending:
            yield current, _columns(arrow.Table.from_batches(pending))
        left = list(following)
        if left or current is None:
            raise DatasetError(
                f"{self.path}: {_few(left, 'has', 'have') if left else 'no episode has'} no rows: {self._advice()}"
            )

    def _small_rows(self, file: Path) -> list[dict[str, Any]]:
        """Read a whole table of strings and numbers, without the statistics of episodes."""
        found: list[dict[str, Any]] = []
        held = 0
        for batch in self._batches(file, "stats/"):
            held += sum(map(_expanded, batch.columns))
            _check_repeats(file, held)
            found += batch.to_pylist()
        return found

    def _batches(self, file: Path, but: str | None = None) -> Iterator[Any]:
        """Yield the rows of a file, without columns whose names begin with ``but``, and without lists of strings.

        Parquet stores a repeated string once, so expanding strings could need any amount of memory. pyarrow does not
        store repeated images once, and only few images are read at a time.

        Raises:
            DatasetError: the file has more rows, according to its header, than its size allows.
        """
        if not file.is_file():
            raise DatasetError(f"{file}: is not a regular file: download it again")
        table, size = self._parquet.ParquetFile(file), file.stat().st_size
        if table.metadata.num_rows > _ROWS_PER_BYTE * size + _FREE_ROWS:
            raise DatasetError(
                f"{file}: claims {table.metadata.num_rows} rows in {size} bytes: it is damaged; download it again"
            )
        schema = table.schema_arrow
        images = {key for key in schema.names if self._holds_images(key)}
        lists = {f.name for f in schema if f.name not in images and _has_text(f.type, inside=True)}
        if but is None:
            self.unread |= lists
        names = [
            name
            for name in schema.names
            if name not in lists and not (but and name.startswith(but))
        ]
        texts = [field.name for field in schema if _has_text(field.type)]
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, size))) if images else _BATCH_ROWS
        yield from self._parquet.ParquetFile(file, read_dictionary=texts).iter_batches(
            batch_size=rows, columns=names
        )

    def _holds_images(self, key: str) -> bool:
        return bool(self.features.get(key, {}).get("dtype") == "image")

    def _check_next(self, number: int, expected: int | None, file: Path) -> None:
        """Refuse rows of an episode that is not the next one in the list of episodes."""
        if number == expected:
            return
        if number not in self.numbers:
            raise DatasetError(
                f"{file}: has rows of episode {number}, which {self._list} does not list: {self._advice()}"
            )
        if expected is not None and number > expected:
            missing = [other for other in self.numbers if expected <= other < number]
            raise DatasetError(f"{file}: {_few(missing, 'has', 'have')} no rows: {self._advice()}")
        raise DatasetError(
            f"{file}: rows of episode {number} come after rows of later episodes: the dataset is "
            "damaged; download it again"
        )

    def decoded(
        self, key: str, column: Any, *, encoded: bool = False
    ) -> NDArray[Any] | EncodedFrames | None:
        """Return the values (T, ...) of a column, or None if it has no numbers.

        Args:
            key: name of the feature.
            column: column of one episode.
            encoded: true to return compressed images if all have the same form.
        """
        feature = self.features.get(key, {})
        if self._holds_images(key):
            where = f"{self.path}: '{key}'"
            frames = [self._image_bytes(cell, where) for cell in column.to_pylist()]
            as_they_are = as_encoded(frames) if encoded else None
            if as_they_are is not None:
                return as_they_are
            return stacked((decoded(data, where) for data in frames), len(frames), where)
        kind = getattr(
            column.type, "value_type", column.type
        )  # the distinct texts of a dictionary column
        if feature.get("dtype") in ("string", "language") or _has_text(kind):
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
        path = path_inside(self.path, str(cell.get("path") if isinstance(cell, dict) else cell))
        if not path.is_file():
            raise DatasetError(f"{where}: has no image bytes and no file {path}: download it again")
        return read_bytes(path, MAX_TEXT)


def _has_text(kind: Any, *, inside: bool = False) -> bool:
    """Return true if a pyarrow type is text or bytes; with ``inside``, also if it contains text or bytes."""
    types = extra("pyarrow.types", "lerobot")
    if inside:
        parts = [kind.field(place).type for place in range(kind.num_fields)]
        return any(_has_text(part) or _has_text(part, inside=True) for part in parts)
    tests = (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    return any(test(kind) for test in tests)


def _expanded(array: Any) -> int:
    """Return the size in bytes that a pyarrow array would have if each row had its own copy of each string."""
    types, compute = (extra(f"pyarrow.{name}", "lerobot") for name in ("types", "compute"))
    if types.is_dictionary(array.type):
        sizes = compute.binary_length(array.dictionary)
        return compute.sum(sizes.take(array.indices)).as_py() or 0
    if types.is_struct(array.type):
        return sum(_expanded(array.field(place)) for place in range(array.type.num_fields))
    if types.is_list(array.type) or types.is_large_list(array.type):
        return _expanded(array.flatten())
    return int(array.nbytes)


def _check_repeats(file: Path, held: int) -> None:
    """Refuse rows that need many times the size of their file."""
    size = file.stat().st_size
    if held > max(_FREE_BYTES, _TIMES * size):
        raise DatasetError(
            f"{file}: has {gigabytes(size)}, but unpacks to more than {gigabytes(held)}: it is "
            "damaged; download it again"
        )


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [parsed_json(line, str(path)) for line in read_text(path).splitlines() if line.strip()]


def _gaps(numbers: list[int], count: int) -> list[int]:
    """Return the first missing numbers below ``count``."""
    there = set(numbers)
    return [number for number in range(min(count, len(numbers) + NAMED + 1)) if number not in there]


def _few(numbers: list[int], one: str, many: str) -> str:
    """Name a few of the episodes, with a verb that agrees."""
    return (
        f"episode {few(numbers)} {one}" if len(numbers) == 1 else f"episodes {few(numbers)} {many}"
    )


def _columns(table: Any) -> dict[str, Any]:
    return {name: table.column(name) for name in table.column_names}


def _sorted(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda file: natural_key(str(file)))
