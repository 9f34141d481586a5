"""Diffusion Policy's zarr: ``data/<key>`` with all episodes one after the other, and ``meta/episode_ends``.

``data/action`` contains the actions; all other arrays below ``data`` are observations. ``episode_ends[i]`` is the index
after episode i's last row. The dataset is a folder, or a ``.zarr.zip``. When this format is written, data that it
cannot store are stored in a sidecar (:mod:`imitate.data.formats.sidecar`). Frames stored as floats with whole numbers
from 0 to 255 become uint8. Frames in JPEG 2000 or JPEG XL, as in the caches of real recordings and in UMI's data, need
the package ``imagecodecs``.
"""

import bz2
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.formats.base import (
    UNKNOWN_ENV,
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    extra,
    files_below,
    robot_meta,
    stored_bytes,
)
from imitate.data.formats.sidecar import (
    NAME,
    Sidecar,
    SidecarWriter,
    arrays_to_write,
    beside,
    plain_episode,
)
from imitate.errors import DatasetError
from imitate.system.memory import ALWAYS_BYTES, check_claim, gigabytes
from imitate.system.plain_files import MAX_TEXT

_ENDS = "meta/episode_ends"
_CHUNK_BYTES = 2**20


def _recognises(path: Path) -> bool:
    if path.is_dir():
        return (path / "meta" / "episode_ends").is_dir() and (path / "data").is_dir()
    return path.name.endswith(".zarr.zip")


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    zarr = extra("zarr", "zarr")
    stored = stored_bytes(path)
    files = StoredFiles(path)
    store = zarr.storage.ZipStore(path, mode="r") if path.is_file() else str(path)
    root = zarr.open_group(store, mode="r")
    if _ENDS not in root or "data/action" not in root:
        raise DatasetError(
            f"{path}: has no '{_ENDS}' or no 'data/action', so it is not a dataset of Diffusion Policy"
        )
    if root[_ENDS].size > root["data/action"].shape[0]:
        raise DatasetError(
            f"{path}: '{_ENDS}' claims more episodes than there are rows: it is damaged"
        )
    arrays = _arrays(root, path)
    _check_sizes({_ENDS: root[_ENDS]}, root[_ENDS].shape[0], path, stored)
    files.check_chunks({_ENDS: root[_ENDS]})
    ends = np.asarray(root[_ENDS][:], dtype=np.int64)
    bounds = np.concatenate([[0], ends])
    for name, array in arrays.items():
        if (np.diff(bounds) <= 0).any() or bounds[-1] != array.shape[0]:
            raise DatasetError(
                f"{path}: '{_ENDS}' does not divide the {array.shape[0]} rows of 'data/{name}' into "
                f"episodes: its values must increase and end with {array.shape[0]}; the dataset is damaged"
            )
    _check_sizes(arrays, int(np.diff(bounds).max(initial=0)), path, stored)
    files.check_chunks({f"data/{name}": array for name, array in arrays.items()})
    with beside(path, len(ends)) as sidecar:
        source = OpenedDataset(
            env_meta=robot_meta(UNKNOWN_ENV),
            demos=_demos(arrays, bounds, sidecar, options, report),
            count=len(ends),
            control_freq=options.fps,
        )
        report.synthesised["env_args"] = "a real robot: the dataset names no environment"
        if sidecar is not None:
            sidecar.complete(source, report)
        yield source


def _check_sizes(arrays: dict[str, Any], rows: int, path: Path, stored: int) -> None:
    """Refuse arrays of which ``rows`` rows, or a chunk, would be larger by the metadata than the dataset can contain.

    Missing chunks are no fault.
    """
    for name, array in arrays.items():
        values = max(rows * math.prod(array.shape[1:]), math.prod(array.chunks))
        check_claim(f"{path}: '{name}'", values * array.dtype.itemsize, stored)


def _arrays(root: Any, path: Path) -> dict[str, Any]:
    """Return the arrays below ``data`` by name. The codecs for JPEG 2000 and JPEG XL come from imagecodecs."""
    try:
        return _arrays_below(root)
    except ValueError as error:
        if "codec not available" not in str(error):
            raise
        try:
            codecs = import_module("imagecodecs.numcodecs")
        except ImportError as reason:
            raise DatasetError(
                f"{path}: its frames are compressed by a codec of imagecodecs ({error}): "
                "pip install imagecodecs, and try again"
            ) from reason
        codecs.register_codecs(verbose=False)
        return _arrays_below(root)


def _arrays_below(root: Any) -> dict[str, Any]:
    return dict(
        sorted(root["data"].arrays())
    )  # sorted, because file systems list files in any order


def _demos(
    arrays: dict[str, Any],
    bounds: NDArray[np.int64],
    sidecar: Sidecar | None,
    options: Options,
    report: ConversionReport,
) -> Iterator[NamedDemo]:
    as_frames = {name for name, array in arrays.items() if _holds_frames(array)}
    report.renamed["action"] = "actions"
    for name in sorted(set(arrays) - {"action"}):
        report.renamed[name] = f"obs/{name}"
    attrs = {} if options.language is None else {"language": options.language}
    for number, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        values = {name: np.asarray(array[start:stop]) for name, array in arrays.items()}
        actions = values.pop("action")
        if sidecar is not None:
            found = {f"obs/{name}": value for name, value in values.items()}
            yield sidecar.demo(number, {"actions": actions, **found}, report)
            continue
        obs = {
            name: _frames(value, name, report) if name in as_frames else value
            for name, value in values.items()
        }
        yield NamedDemo(
            f"demo_{number}",
            plain_episode(obs, actions.reshape(stop - start, -1), attrs, report),
        )


def _holds_frames(array: Any) -> bool:
    """Return true for float images with integers from 0 to 255, as in Push-T."""
    if len(array.shape) != 4 or array.shape[-1] not in (1, 3) or array.dtype.kind != "f":
        return False
    first = np.asarray(array[:1])
    return bool((first == first.astype(np.uint8)).all() and first.max(initial=0) > 1)


def _frames(values: NDArray[Any], name: str, report: ConversionReport) -> NDArray[Any]:
    frames: NDArray[Any] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    rounded = "" if (frames == values).all() else ", rounded"
    report.changed[f"obs/{name}"] = f"{values.dtype} frames -> uint8{rounded}"
    return frames


@contextmanager
def _write(
    path: Path, source: OpenedDataset, options: Options, report: ConversionReport
) -> Iterator[Callable[[NamedDemo], None]]:
    zarr = extra("zarr", "zarr")
    root = zarr.open_group(str(path), mode="w", zarr_format=2)
    data, meta = root.create_group("data"), root.create_group("meta")
    sidecar = SidecarWriter(path / NAME, source)
    made: dict[str, Any] = {}
    ends: list[int] = []

    def append(demo: NamedDemo) -> None:
        arrays = arrays_to_write(demo, path)
        chosen = {"action": arrays.pop("actions")}
        for key in [key for key in arrays if _has_a_place(key)]:
            chosen[key.removeprefix("obs/")] = arrays.pop(key)
        if made and set(chosen) != set(made):
            odd = sorted(set(chosen) ^ set(made))[0]
            raise DatasetError(
                f"{path}: demo '{demo.name}': not every demo has 'obs/{odd}': give it in each or in none"
            )
        for key, values in chosen.items():
            made[key] = made.get(key) or _empty(data, key, values)
            if values.shape[1:] != made[key].shape[1:]:
                raise DatasetError(
                    f"{path}: demo '{demo.name}': a step of '{key}' has shape {values.shape[1:]}, but "
                    f"{made[key].shape[1:]} in earlier demos; see imitate dataset doctor"
                )
            made[key].append(values)
        sidecar.append(demo, arrays)
        ends.append((ends[-1] if ends else 0) + len(chosen["action"]))
        report.note(
            f"rewards, ends, states and attributes are kept in {NAME}, from which imitate reads them again"
        )

    try:
        yield append
        meta.create_array("episode_ends", data=np.array(ends, dtype=np.int64))
        sidecar.finish()
    finally:
        sidecar.close()


def _has_a_place(key: str) -> bool:
    name = key.removeprefix("obs/")
    return key.startswith("obs/") and "/" not in name and name != "action"


def _empty(data: Any, key: str, values: NDArray[Any]) -> Any:
    step = values[0].nbytes
    rows = max(1, min(4096, _CHUNK_BYTES // max(1, step)))
    return data.create_array(
        key, shape=(0, *values.shape[1:]), chunks=(rows, *values.shape[1:]), dtype=values.dtype
    )


FORMAT = Format(
    name="diffusion-policy",
    summary="Diffusion Policy's zarr (needs the extra 'zarr')",
    recognises=_recognises,
    read=_read,
    write=_write,
    options=frozenset({"fps", "language"}),
    endings=(".zarr",),
)


_PART = 2**20
_WIDER = 8
"""Largest factor by which a filter may change the size of a value."""
_METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
_SAME_SIZE = frozenset(
    {
        *("bytes", "transpose", "crc32c"),  # codecs in zarr format 3
        *("delta", "shuffle", "bitround", "quantize", "crc32", "adler32", "fletcher32"),
        *("imagecodecs_jpeg2k", "imagecodecs_jpegxl"),
    }
)
"""Codecs that do not change the size, or decode a single image."""


class StoredFiles:
    """The files of a dataset, which is a folder or a zip archive.

    Args:
        path: path of the dataset.

    Raises:
        DatasetError: a metadata file is larger than in any intact dataset.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._packed = path, {}
        if path.is_dir():
            return  # metadata files are not compressed
        with zipfile.ZipFile(path) as archive:
            self._packed = {entry.filename: entry.file_size for entry in archive.infolist()}
        for name, size in self._packed.items():
            if name.rpartition("/")[2] in _METADATA:
                self._refuse_above(name, size, MAX_TEXT)

    def _chunks(self, array: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of each file below an array."""
        named: Iterable[tuple[str, int]] = self._packed.items()
        if self._path.is_dir():
            files = filter(Path.is_file, files_below(self._path / array))
            named = ((f.relative_to(self._path).as_posix(), f.stat().st_size) for f in files)
        for name, size in named:
            last = name.rpartition("/")[2]
            if name.startswith(f"{array}/") and last and last not in _METADATA:
                yield name, size

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        if self._path.is_dir():
            with (self._path / name).open("rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self._path) as archive, archive.open(name) as file:
                yield file

    def check_chunks(self, arrays: Mapping[str, Any]) -> None:
        """Check the chunks of zarr arrays, by their paths in the dataset.

        Raises:
            DatasetError: a chunk is larger than its array's metadata allow, or compressed by a codec whose unpacked
                size cannot be determined.
        """
        for path, array in arrays.items():
            limit = max(ALWAYS_BYTES, _WIDER * math.prod(array.chunks) * array.dtype.itemsize)
            measure = self._measure(path, array)
            for name, size in self._chunks(path):
                self._refuse_above(name, size, limit)
                if measure is not None:
                    with self._opened(name) as file:
                        self._refuse_above(name, measure(file, limit), limit)

    def _measure(self, path: str, array: Any) -> Callable[[IO[bytes], int], int] | None:
        """Return the function that measures the unpacked size of an array's chunks; None if they are not compressed."""
        codecs = list(_codecs(array.metadata.to_dict()))
        packing = [name for name in codecs if name in _MEASURES]
        odd = [name for name in codecs if name not in _SAME_SIZE and name not in _MEASURES]
        if odd or len(packing) > 1:
            raise DatasetError(
                f"{self._path}: '{path}' is packed by {' and '.join(odd or packing)[:200]}, which is not read: store "
                "it with one of blosc, zstd, lz4, gzip, zlib, bz2, lzma, or uncompressed"
            )
        return _MEASURES[packing[0]] if packing else None

    def _refuse_above(self, name: str, size: int, limit: int) -> None:
        if size > limit:
            raise DatasetError(
                f"{self._path}: {name} takes {gigabytes(size)} or more, at most {gigabytes(limit)} are expected: the "
                "dataset is damaged; copy it again"
            )


def _codecs(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of an array's codecs, in zarr's format 2 or 3."""
    found = metadata.get("codecs")
    if found is None:
        found = [*(metadata.get("filters") or ()), metadata.get("compressor")]
    for codec in filter(None, found):
        yield str(codec.get("id") or codec.get("name"))


def _streamed(make: Callable[[], Any]) -> Callable[[IO[bytes], int], int]:
    """Return a function that counts the unpacked bytes of a compressed file, and stops above a limit."""

    def size_of(file: IO[bytes], limit: int) -> int:
        size, unpacker, data = 0, make(), b""
        while size <= limit:
            data = data or file.read(_PART)
            if unpacker.eof:  # several streams may follow each other
                unpacker = make()
            if not data and getattr(unpacker, "needs_input", True):
                break
            size += len(unpacker.decompress(data, _PART))
            data = (
                unpacker.unused_data if unpacker.eof else getattr(unpacker, "unconsumed_tail", b"")
            )
        return size

    return size_of


def _headed(form: str, at: int) -> Callable[[IO[bytes], int], int]:
    """Return a function that reads the unpacked size from the header of a compressed file."""

    def size_of(file: IO[bytes], limit: int) -> int:
        size: int = struct.unpack_from(form, file.read(at + struct.calcsize(form)), at)[0]
        return size

    return size_of


def _zstd(file: IO[bytes], limit: int) -> int:
    """Return the unpacked size in the header of a zstd frame (RFC 8878), or more than ``limit`` if it has none."""
    head = file.read(14)
    flags = head[4]
    single, form = bool(flags & 0x20), ("<B", "<H", "<I", "<Q")[flags >> 6]
    if form == "<B" and not single:
        return limit + 1
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    size: int = struct.unpack_from(form, head + file.read(8), at)[0]
    return size + 256 if form == "<H" else size


_MEASURES: dict[str, Callable[[IO[bytes], int], int]] = {
    "zlib": _streamed(zlib.decompressobj),
    "gzip": _streamed(lambda: zlib.decompressobj(31)),
    "bz2": _streamed(bz2.BZ2Decompressor),
    "lzma": _streamed(lzma.LZMADecompressor),
    "zstd": _zstd,
    "lz4": _headed("<I", 0),
    "blosc": _headed("<I", 4),
}
"""Functions that measure the unpacked size of a compressed chunk; above a limit the size need not be exact."""
