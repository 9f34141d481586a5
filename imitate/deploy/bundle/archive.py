"""File of a bundle: a zip of ``bundle.json``, ``policy.onnx`` and ``arrays.bin``, none of them compressed.

``bundle.json`` has the SHA-256 of itself and of the other parts; ``arrays.bin`` contains the arrays that it refers to
by type, shape and offset. Sizes are checked before memory is allocated. A bundle contains no executable code.
"""

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.errors import BundleError
from imitate.system.plain_files import fresh, json_value, replaced

FORMAT = "imitate-bundle"
FORMAT_VERSION = 1
DESCRIPTION, NETWORK, ARRAYS = "bundle.json", "policy.onnx", "arrays.bin"
MOST_BYTES = {DESCRIPTION: 16 * 2**20, NETWORK: 2**31 - 1, ARRAYS: 2**30}
"""Largest size in bytes of each file in the zip; for the network it is protobuf's limit."""
_DTYPES = frozenset({"float32", "float64", "uint8", "int64", "bool"})
_MOST_DIMENSIONS = 8
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile)
"""Errors raised by zipfile if the file is no zip, damaged, encrypted or too new, and by json if nesting is too deep."""
_NO_DATE = (1980, 1, 1, 0, 0, 0)  # constant time stamp: the same policy gives the same bytes


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle.

    Attributes:
        description: the content of ``bundle.json``.
        network: an ONNX model.
        arrays: bytes of all arrays, to which references in the description point.
    """

    description: dict[str, Any]
    network: bytes
    arrays: bytes

    def array(self, reference: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array that a reference describes, read-only.

        Raises:
            BundleError: the array is outside the bytes, or is not numeric.
        """
        try:
            dtype, shape = str(reference["dtype"]), tuple(map(int, reference["shape"]))
            offset = int(reference["offset"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BundleError(
                f"{DESCRIPTION}: a reference to an array lacks {error}: export the bundle again"
            ) from error
        if dtype not in _DTYPES or len(shape) > _MOST_DIMENSIONS or min((*shape, offset)) < 0:
            raise BundleError(
                f"{DESCRIPTION}: invalid array of type {dtype} and shape {shape} at byte {offset}: "
                "export the bundle again"
            )
        count, size = math.prod(shape), np.dtype(dtype).itemsize
        # Each dimension is checked too, because the product would hide a large one beside a dimension of size 0.
        if max((offset + count * size, *shape)) > len(self.arrays):
            raise BundleError(
                f"{DESCRIPTION}: an array of shape {shape} reaches beyond the end of {ARRAYS}: export "
                "the bundle again"
            )
        return np.frombuffer(self.arrays, dtype, count, offset).reshape(shape)


class ArrayStore:
    """Collects the bytes of arrays to which a description refers."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, array: NDArray[Any]) -> dict[str, Any]:
        """Store an array and return the reference to it."""
        data = np.ascontiguousarray(array).tobytes()
        reference = {"dtype": array.dtype.name, "shape": list(array.shape), "offset": self._size}
        self._parts.append(data)
        self._size += len(data)
        return reference

    def to_bytes(self) -> bytes:
        """Return all arrays, one after the other."""
        return b"".join(self._parts)


def is_bundle(path: str | Path) -> bool:
    """Return True if the file is a zip that contains ``bundle.json``; False also if the file does not exist."""
    if not Path(path).is_file():  # reading a device or a pipe may never end
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return DESCRIPTION in archive.namelist()
    except _UNREADABLE:
        return False


def write_bundle(bundle: Bundle, path: Path) -> None:
    """Write a bundle to a new file, which appears only when it is complete."""
    parts = {NETWORK: bundle.network, ARRAYS: bundle.arrays}
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **bundle.description,
        "parts": {name: _identity(data) for name, data in parts.items()},
    }
    description["sha256"] = _digest(description)
    text = json.dumps(description, indent=1, allow_nan=False).encode()
    for name, data in {DESCRIPTION: text, **parts}.items():
        if len(data) > MOST_BYTES[name]:
            raise BundleError(
                f"{name} would have {len(data)} bytes, but a bundle allows at most {MOST_BYTES[name]}: export a "
                "smaller policy"
            )
    try:
        with (
            replaced(path) as part,
            fresh(part) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        ):
            for name, data in {DESCRIPTION: text, **parts}.items():
                archive.writestr(zipfile.ZipInfo(name, _NO_DATE), data)
    except OSError as error:
        raise BundleError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_bundle(path: str | Path) -> Bundle:
    """Read a bundle and compare its parts with their checksums.

    Raises:
        BundleError: the file is not a bundle, is damaged, or was written by another version.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise BundleError(f"{path}: cannot be read as a bundle: it is not a regular file")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_entries(path, archive)
            description = _description(path, archive.read(DESCRIPTION))
            network, arrays = archive.read(NETWORK), archive.read(ARRAYS)
    except _UNREADABLE as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BundleError(f"{path}: cannot be read as a bundle: {words}") from error
    for name, data in ((NETWORK, network), (ARRAYS, arrays)):
        if (description.get("parts") or {}).get(name) != _identity(data):
            raise BundleError(f"{path}: {name} does not match {DESCRIPTION}: export it again")
    return Bundle(description, network, arrays)


def _check_entries(path: str | Path, archive: zipfile.ZipFile) -> None:
    """Raise BundleError for a zip with other, compressed or too large files, before reading any of them."""
    entries = archive.infolist()
    if sorted(entry.filename for entry in entries) != sorted(MOST_BYTES):
        names = ", ".join(ascii(entry.filename)[1:-1] for entry in entries[:5])
        raise BundleError(
            f"{path}: contains {names or 'nothing'}, but a bundle contains {', '.join(MOST_BYTES)}: name a file of "
            "imitate export"
        )
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise BundleError(
                f"{path}: {entry.filename} is compressed, which is not allowed in a bundle: export it again"
            )
        if entry.file_size > min(MOST_BYTES[entry.filename], Path(path).stat().st_size):
            raise BundleError(
                f"{path}: {entry.filename} has {entry.file_size} bytes, more than a bundle may have: export it again"
            )


def _description(path: str | Path, text: bytes) -> dict[str, Any]:
    try:
        description = json_value(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: {DESCRIPTION} is not JSON: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise BundleError(
            f"{path}: {DESCRIPTION} does not describe a bundle of imitate: name a file of imitate export"
        )
    version = description.get("format_version")
    if version != FORMAT_VERSION:
        raise BundleError(
            f"{path}: has format version {version}; this imitate reads version {FORMAT_VERSION}: "
            "export the checkpoint with the version that runs it"
        )
    if description.pop("sha256", None) != _digest(description):
        raise BundleError(
            f"{path}: {DESCRIPTION} was changed after it was written: export it again"
        )
    return description


def _identity(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _digest(description: Mapping[str, Any]) -> str:
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
