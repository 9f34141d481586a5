"""Reading of a file behind a URL from any byte on: HTTP by the standard library, other protocols by fsspec."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from imitate.errors import DatasetError
from imitate.system.extras import missing

BLOCK = 2**20
_TIMEOUT_S = 60.0
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP status codes after which the same request may succeed."""
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "az": "adlfs",
    "abfs": "adlfs",
}
"""Package that fsspec needs for each protocol."""


class UnreachableError(Exception):
    """Error: a server cannot be reached, or ends the connection; the same request may succeed later."""


@dataclass(frozen=True)
class Head:
    """Size and tag of a file, without its content.

    Attributes:
        size: size in bytes; None if the server does not announce it.
        tag: differs for different content (an ETag, a modification time); '' if the server has none.
    """

    size: int | None
    tag: str


class RemoteFile(Protocol):
    """A file behind a URL."""

    def head(self) -> Head:
        """Return size and tag of the file.

        Raises:
            UnreachableError: the request may be repeated later.
            DatasetError: the file does not exist, or may not be read.
        """

    def blocks(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield pieces of the content with their offsets, from ``start`` on, or from 0 if that is impossible.

        Raises:
            UnreachableError: the request may be repeated; pieces yielded so far are correct.
            DatasetError: the file does not exist, or may not be read.
        """


def remote_file(url: str) -> RemoteFile:
    """Return the file behind a URL.

    Raises:
        DatasetError: no package supports the protocol; the message names the one to install.
    """
    if url.startswith(("http://", "https://")):
        return HttpFile(url)
    return FsspecFile(url)


class HttpFile:
    """File behind ``http://`` or ``https://``."""

    def __init__(self, url: str) -> None:
        self._url = url

    def head(self) -> Head:
        """Return size and tag of the file."""
        with self._answer("HEAD", {}) as answer:
            length = answer.headers.get("Content-Length", "")
            tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            return Head(int(length) if length.isdigit() else None, tag)

    def blocks(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield pieces of the content with their offsets."""
        with self._answer("GET", {"Range": f"bytes={start}-"} if start else {}) as answer:
            whole = not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            at = 0 if whole else start
            while block := answer.read(BLOCK):
                yield at, block
                at += len(block)
            if answer.length:  # the announced bytes are missing; reading in pieces raises no error
                raise UnreachableError("the connection ended early")

    @contextmanager
    def _answer(self, method: str, headers: dict[str, str]) -> Iterator[Any]:
        asked = {"Accept-Encoding": "identity", "User-Agent": "imitate", **headers}
        try:
            with urlopen(
                Request(self._url, headers=asked, method=method), timeout=_TIMEOUT_S
            ) as answer:
                yield answer
        except HTTPError as error:
            words = f"{error.code} {error.reason}"
            if error.code in _PASSING:
                raise UnreachableError(words) from None
            raise DatasetError(f"{self._url}: {_refusal(words, error.code)}") from None
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise UnreachableError(reason) from None


def _refusal(words: str, code: int) -> str:
    if code in (401, 403):
        return f"the server answers {words}: it requires a login"
    return f"the server answers {words}: correct the address"


class FsspecFile:
    """File of any file system that fsspec supports: ``s3://``, ``gs://``, ``hf://``, ``file://``, ``memory://``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, self._path = filesystem(url)

    def head(self) -> Head:
        """Return size and tag of the file."""
        with self._reading():
            info = self._fs.info(self._path)
        tags = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
        tag = next((str(info[key]) for key in tags if info.get(key)), "")
        size = info.get("size")
        return Head(None if size is None else int(size), tag)

    def blocks(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield pieces of the content with their offsets."""
        with self._reading(), self._fs.open(self._path, "rb") as file:
            if start:
                file.seek(start)
            at = start
            while block := file.read(BLOCK):
                yield at, block
                at += len(block)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise DatasetError(f"{self._url}: there is no such file: correct the address") from None
        except PermissionError as error:
            raise DatasetError(
                f"{self._url}: may not be read ({_line(error)}): check the credentials of its store"
            ) from None
        except Exception as error:  # the package of each store has its own exceptions
            raise UnreachableError(_line(error)) from error


def filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        DatasetError: a package is missing, or no package supports the protocol.
    """
    protocol = url.partition("://")[0]
    try:
        return _fsspec().core.url_to_fs(url)  # type: ignore[no-any-return]
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        if package is None:
            raise DatasetError(f"{url}: {protocol}:// cannot be read: {_line(error)}") from None
        raise DatasetError(
            f"{url}: {protocol}:// needs the package '{package}': do: pip install {package}"
        ) from None
    except ValueError as error:
        raise DatasetError(
            f"{url}: is not an address that can be read ({_line(error)}): expected https://, s3://, gs://, hf:// or file://"
        ) from None


def _fsspec() -> ModuleType:
    try:
        import fsspec
        import fsspec.core
    except ImportError as error:
        raise DatasetError(f"data behind a URL: {missing('remote', error)}") from None
    return fsspec  # type: ignore[no-any-return]


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0] or type(error).__name__
