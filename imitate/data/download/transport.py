"""Reading of a file behind a URL from any byte on: HTTP by the standard library, other protocols by fsspec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.error import HTTPError
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
    """Error: a server cannot be reached, or ends the connection; the same request may succeed later.

    Attributes:
        wait_s: pause in seconds that the server demands, or None.
    """

    def __init__(self, words: str, wait_s: float | None = None) -> None:
        super().__init__(words)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Content:
    """Content of a file, from some byte on.

    Attributes:
        start: offset of the first byte: the requested one, or 0.
        total: size of the whole file in bytes; None if the server does not announce it.
        tag: differs for different content (an ETag, a modification time); '' if the server has none. A tag that begins
            with 'W/' does not guarantee equal bytes.
        blocks: the bytes, perhaps fewer than announced. Reading them may raise UnreachableError; the bytes up to then
            are correct.
    """

    start: int
    total: int | None
    tag: str
    blocks: Iterator[bytes]


def opened(
    url: str, start: int = 0, tag: str = "", *, head_only: bool = False
) -> AbstractContextManager[Content]:
    """Open the content of a URL from ``start`` on, or from 0 if that is impossible.

    Args:
        url: URL of the file.
        start: offset of the first byte.
        tag: expected tag: other content is read from 0; '': any content is read from ``start``.
        head_only: request size and tag only.

    Raises:
        UnreachableError: the request may be repeated later.
        DatasetError: the file does not exist, or may not be read, or a package is missing, which the message names.
    """
    if url.startswith(("http://", "https://")):
        return _over_http(url, start, tag, "HEAD" if head_only else "GET")
    return _by_fsspec(url, start, tag)


@contextmanager
def _over_http(url: str, start: int, tag: str, method: str) -> Iterator[Content]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "imitate"}
    if start:
        headers |= {"Range": f"bytes={start}-"} | ({"If-Range": tag} if tag else {})
    with _guarded(url):
        answer = _answer(Request(url, headers=headers, method=method))
    with answer:
        etag, changed, part, length = (
            answer.headers.get(name, "")
            for name in ("ETag", "Last-Modified", "Content-Range", "Content-Length")
        )
        tag = changed or etag if etag.startswith("W/") else etag or changed
        if answer.status == 200:
            total = int(length) if length.isdigit() else None
            yield Content(0, total, tag, _blocks(url, answer))
        elif answer.status == 416 and part == f"bytes */{start}":  # no bytes are left
            yield Content(start, start, tag, iter(()))
        elif answer.status == 206 and part.startswith(f"bytes {start}-"):
            _, _, size = part.rpartition("/")
            total = int(size) if size.isdigit() else None
            yield Content(start, total, tag, _blocks(url, answer))
        elif start:
            with _over_http(url, 0, "", method) as whole:
                yield whole
        else:
            raise UnreachableError(f"the server answers {answer.status}, without the file")


def _answer(request: Request) -> Any:
    try:
        return urlopen(request, timeout=_TIMEOUT_S)
    except HTTPError as error:
        if error.code == 416:  # the requested range does not exist
            return error
        raise


@contextmanager
def _by_fsspec(url: str, start: int, tag: str) -> Iterator[Content]:
    fs, path = filesystem(url)
    with _guarded(url):
        info = fs.info(path)
        file = fs.open(path, "rb")
    tags = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
    found = next((str(info[key]) for key in tags if info.get(key)), "")
    with file:
        start = start if tag in ("", found) else 0
        if start:
            file.seek(start)
        yield Content(start, info.get("size"), found, _blocks(url, file))


def _blocks(url: str, file: Any) -> Iterator[bytes]:
    with _guarded(url):
        while block := file.read(BLOCK):
            yield block


@contextmanager
def _guarded(url: str) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        words, wait_s = f"{error.code} {error.reason}", error.headers.get("Retry-After", "")
        if error.code in _PASSING:
            raise UnreachableError(words, float(wait_s) if wait_s.isdigit() else None) from None
        advice = "correct the address (--url of a download), or look at the publisher's page"
        if error.code in (401, 403):
            advice = "it requires a login: download it with a browser"
        raise DatasetError(f"{url}: the server answers {words}: {advice}") from None
    except FileNotFoundError:
        raise DatasetError(f"{url}: there is no such file: correct the address") from None
    except PermissionError as error:
        raise DatasetError(
            f"{url}: may not be read ({_line(error)}): check the credentials of its store"
        ) from None
    except Exception as error:  # the package of each store has its own exceptions
        raise UnreachableError(_line(getattr(error, "reason", error))) from error


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


def _line(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0] or type(error).__name__
