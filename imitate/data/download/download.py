"""Downloads over HTTP that can be resumed and are verified; the file appears only when it is complete."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from imitate.data.dataset_file import DatasetFile
from imitate.data.download.catalogue import PublicFile
from imitate.errors import DatasetError
from imitate.system.plain_files import appended, fresh, give_name, read_json

_BLOCK = 2**20
_SPARE_BYTES = 64 * 2**20
_MOST_UNANNOUNCED = 2**36
"""Largest number of bytes that are accepted from a server that does not announce the size."""
_MAX_WAIT_S = 60.0
_TIMEOUT_S = 60.0
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP status codes after which the same request may succeed."""


@dataclass(frozen=True)
class Downloaded:
    """Result of a download.

    Attributes:
        verified: check that was made: 'sha256'; or 'size' or 'structure' if no checksum is known.
        resumed_at: number of bytes from an earlier attempt.
        fetched_bytes: number of bytes downloaded now; 0 for an existing file.
    """

    name: str
    path: str
    size_bytes: int
    sha256: str
    verified: str
    resumed_at: int
    fetched_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


OnBytes = Callable[[int, "int | None"], None]
"""Called with the current number of bytes, and the final number if it is known."""


def download(
    wanted: PublicFile,
    target: Path,
    *,
    overwrite: bool = False,
    retries: int = 5,
    wait_s: float = 1.0,
    on_bytes: OnBytes | None = None,
) -> Downloaded:
    """Download a demonstration file.

    Until the file is complete and verified, its name is ``<target>.part``; a later call resumes the download if the
    server still has the same file. Proxies are taken from the environment (``https_proxy`` ...).

    Args:
        wanted: name and address, and size and checksum if known.
        target: the file to write.
        overwrite: replace another file of this name when the download is complete.
        retries: number of successive attempts without a byte after which the download fails.
        wait_s: pause before the first retry, doubled each time.
        on_bytes: called for a progress bar.

    Raises:
        DatasetError: the server has no such file or cannot be reached, the disk is too small, the content differs from
            the catalogue's, or ``target`` exists with other content.
    """
    if urlsplit(wanted.url).scheme not in ("http", "https"):
        raise DatasetError(f"{wanted.url}: not an address that begins with http:// or https://")
    if target.exists() and not overwrite:
        return _there_already(wanted, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(target, wanted.url)
    resumed_at = part.size
    fetched = _fetch(wanted, part, retries, wait_s, on_bytes)
    digest = sha256_of(part.path)
    verified = _verified(wanted, part, digest)
    give_name(part.path, target)
    part.forget()
    size = target.stat().st_size
    return Downloaded(wanted.name, str(target), size, digest, verified, resumed_at, fetched)


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


class _Part:
    """A download in progress: its bytes, and next to them the identifiers of the server's file."""

    def __init__(self, target: Path, url: str) -> None:
        self.path = target.with_name(target.name + ".part")
        self._notes = target.with_name(target.name + ".part.json")
        self._url = url
        self.validator: str | None = None
        with suppress(OSError, ValueError, LookupError, TypeError):
            notes = read_json(self._notes)
            if notes["url"] == url:
                self.validator = notes["validator"]
        if self.validator is None:
            self.forget()

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def restart(self, headers: Message) -> None:
        """Empty the partial file, for the server's file of this response."""
        self.forget()
        # a weak ETag does not guarantee equal bytes
        etag = headers.get("ETag")
        self.validator = (
            etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
        )
        if self.validator:
            notes = {"url": self._url, "validator": self.validator}
            with fresh(self._notes, "w") as file:
                json.dump(notes, file)

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)


def _there_already(wanted: PublicFile, target: Path) -> Downloaded:
    digest, size = sha256_of(target), target.stat().st_size
    if wanted.sha256 is not None and digest != wanted.sha256:
        raise DatasetError(
            f"{target}: exists already, with other content (SHA-256 {digest}) than '{wanted.name}' "
            f"({wanted.sha256}): move it away, or replace it with --overwrite"
        )
    verified = "sha256" if wanted.sha256 is not None else "structure"
    _check_structure(target, str(target))
    return Downloaded(wanted.name, str(target), size, digest, verified, 0, 0)


def _fetch(
    wanted: PublicFile, part: _Part, retries: int, wait_s: float, on_bytes: OnBytes | None
) -> int:
    """Complete the partial file; return the number of downloaded bytes."""
    fetched, failures = 0, 0
    while True:
        before = part.size
        reason, pause_s = "", None
        try:
            whole = _one_request(wanted, part, on_bytes)
        except HTTPError as error:
            if error.code not in _PASSING:
                raise DatasetError(
                    f"{wanted.url}: the server answers {error.code} {error.reason}: {_advice(error.code)}"
                ) from None
            whole, reason = False, f"{error.code} {error.reason}"
            pause_s = _seconds(error.headers.get("Retry-After"))
        except (URLError, OSError, http.client.HTTPException) as error:
            _raise_if_disk_is_full(error, part)
            whole, reason = False, str(getattr(error, "reason", error)) or type(error).__name__
        gained = max(part.size - before, 0)
        fetched += gained
        if whole:
            return fetched
        failures = 1 if gained else failures + 1
        if failures > retries:
            raise DatasetError(
                f"{wanted.url}: given up after {retries} retries ({reason or 'the connection ended early'}); "
                f"{part.size} bytes are kept in {part.path}: the same command continues from there"
            )
        time.sleep(min(wait_s * 2 ** (failures - 1) if pause_s is None else pause_s, _MAX_WAIT_S))


def _one_request(wanted: PublicFile, part: _Part, on_bytes: OnBytes | None) -> bool:
    """Request the missing bytes and write them; return true if the file is now complete."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "imitate"}
    start = part.size
    if start and part.validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": part.validator}
    try:
        answer = urlopen(Request(wanted.url, headers=headers), timeout=_TIMEOUT_S)
    except HTTPError as error:
        if error.code != 416:
            raise
        total = _total(error.headers, 0)
        if total == start:
            return True
        part.forget()
        return False
    with answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(
            f"bytes {start}-"
        ):
            # The server supports no ranges, or has another file by now, so it sends the whole file.
            if answer.status == 206:
                part.forget()
                return False
            start = 0
            part.restart(answer.headers)
        total = _total(answer.headers, start) or wanted.size_bytes
        _check_space(wanted, part, total)
        most = wanted.size_bytes or total
        if _written(
            answer, wanted, part, start, most, lambda done: on_bytes and on_bytes(done, total)
        ):
            # differs from the catalogue's size, or from the size that the server announced
            return True
    return total is None or part.size == total


def _written(
    answer: Any,
    wanted: PublicFile,
    part: _Part,
    start: int,
    most: int | None,
    told: Callable[[int], Any],
) -> bool:
    """Write the received bytes, at most one block beyond the known size; return true if all bytes were received.

    Raises:
        DatasetError: the size is not known, and the response does not end.
    """
    with appended(part.path, text=False) as file:
        while block := answer.read(_BLOCK):
            file.write(block)
            start += len(block)
            told(start)
            if start <= (_MOST_UNANNOUNCED if most is None else most):
                continue
            if most is not None:
                return True
            part.forget()
            raise DatasetError(
                f"{wanted.url}: sends more than {_MOST_UNANNOUNCED} bytes without announcing the "
                "size: download it with another program, and inspect the file"
            )
    return False


def _total(headers: Message, start: int) -> int | None:
    """Return the size of the whole file from the headers of a response."""
    _, _, total = headers.get("Content-Range", "").rpartition("/")
    if total.isdigit():
        return int(total)
    length = headers.get("Content-Length", "")
    return start + int(length) if length.isdigit() else None


def _check_space(wanted: PublicFile, part: _Part, total: int | None) -> None:
    needed = (total or wanted.about_bytes or 0) - part.size
    free = shutil.disk_usage(part.path.parent).free
    if needed > 0 and free < needed + _SPARE_BYTES:
        raise DatasetError(
            f"{part.path.parent}: has {free / 1e9:.2f} GB free, but '{wanted.name}' needs {needed / 1e9:.2f} GB more: "
            "free some space, or choose another folder with --out"
        )


def _raise_if_disk_is_full(error: Exception, part: _Part) -> None:
    if isinstance(error, OSError) and error.filename is not None:
        raise DatasetError(
            f"{part.path}: cannot be written ({error.strerror}): choose another folder with --out"
        ) from error
    if isinstance(error, OSError) and error.errno in (28, 122):
        raise DatasetError(
            f"{part.path}: the disk is full; {part.size} bytes are kept: free some space; the same "
            "command then continues from there"
        ) from error


def _verified(wanted: PublicFile, part: _Part, digest: str) -> str:
    """Check the content and return the kind of check; remove a partial file with wrong content."""
    size = part.size
    if wanted.size_bytes is not None and size != wanted.size_bytes:
        part.forget()
        raise DatasetError(
            f"{wanted.url}: has {size} bytes, but {wanted.size_bytes} in the catalogue; the "
            "downloaded file was removed: another file was published under this name, or a proxy "
            "changed it"
        )
    if wanted.sha256 is not None and digest != wanted.sha256:
        part.forget()
        raise DatasetError(
            f"{wanted.url}: its SHA-256 is {digest}, but {wanted.sha256} in the catalogue; the "
            "downloaded file was removed: try again; if it happens again, another file was "
            "published under this name"
        )
    try:
        _check_structure(part.path, wanted.url)
    except DatasetError:
        part.forget()
        raise
    if wanted.sha256 is not None:
        return "sha256"
    return "size" if wanted.size_bytes is not None else "structure"


def _check_structure(path: Path, shown: str) -> None:
    """Refuse a file that is not an HDF5 file with a demo that has actions."""
    with DatasetFile(path) as file:
        demos = file.demos()
        if not demos:
            raise DatasetError(f"{shown}: holds no demo")
        file.length(demos[0])


def _advice(code: int) -> str:
    if code in (404, 410):
        return "the file is not there (any more): look at the publisher's page, or name another server with --url"
    if code in (401, 403):
        return "it requires a login: download it with a browser"
    return "try later"


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdigit() else None
