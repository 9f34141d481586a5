"""Download of a URL to a path: resumed, retried and verified; the file appears only when it is complete.

Reading can start at any byte of a file. The standard library reads HTTP, fsspec other protocols.
"""

import errno
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from imitate.errors import DatasetError
from imitate.system.extras import missing
from imitate.system.plain_files import appended, fresh, give_name, read_json

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
    """Error for a server that cannot be reached or ends the connection; the same request may succeed later.

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
        tag: identifier of the content (an ETag or a modification time); '' if the server has none. A tag that begins
            with 'W/' does not guarantee equal bytes.
        blocks: the bytes, perhaps fewer than announced. Reading them may raise UnreachableError; the bytes before the
            error are correct.
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
        tag: expected tag; content with another tag is read from 0. '' to read any content from ``start``.
        head_only: true to request only size and tag.

    Raises:
        UnreachableError: the server cannot be reached; the request may be repeated later.
        DatasetError: the file does not exist or cannot be read, or a package is missing; the message names the package.
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
            total = _whole(length)
            yield Content(0, total, tag, _blocks(url, answer))
        elif (
            answer.status == 416 and part == f"bytes */{start}"
        ):  # the file has no bytes from ``start`` on
            yield Content(start, start, tag, iter(()))
        elif answer.status == 206 and part.startswith(f"bytes {start}-"):
            _, _, size = part.rpartition("/")
            total = _whole(size)
            yield Content(start, total, tag, _blocks(url, answer))
        elif start:
            with _over_http(url, 0, "", method) as whole:
                yield whole
        else:
            raise UnreachableError(f"the server answers {answer.status} without sending the file")


def _whole(text: str) -> int | None:
    """Return the number in a header of a server, or None if the text is not a number or has too many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


class WebRedirects(HTTPRedirectHandler):
    """Follows redirects only to HTTP and HTTPS addresses, and never from HTTPS to HTTP."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the request for the new address, or raise HTTPError if the address is not allowed."""
        safe = ("https://",) if req.type == "https" else ("http://", "https://")
        if not newurl.lower().startswith(safe):
            raise HTTPError(newurl, code, f"with the address '{newurl[:200]}'", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@cache
def _opener() -> OpenerDirector:
    return build_opener(WebRedirects)


def urlopen(request: Request, timeout: float) -> Any:
    """Open a request like :func:`urllib.request.urlopen`, but follow redirects as WebRedirects does."""
    return _opener().open(request, timeout=timeout)


def _answer(request: Request) -> Any:
    try:
        return urlopen(request, timeout=_TIMEOUT_S)
    except HTTPError as error:
        if error.code == 416:  # the file has no such range
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
            raise UnreachableError(words, _whole(wait_s)) from None
        advice = "correct the address (--url of a download), or look at the publisher's page"
        if error.code in (401, 403):
            advice = "it requires a login: download it with a browser"
        raise DatasetError(f"{url}: the server answers {words}: {advice}") from None
    except FileNotFoundError:
        raise DatasetError(f"{url}: there is no such file: correct the address") from None
    except PermissionError as error:
        raise DatasetError(
            f"{url}: access is denied ({_line(error)}): check the credentials of its store"
        ) from None
    except Exception as error:  # each store's package has its own exceptions
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


RETRIES = 5
"""Number of successive attempts without a byte after which a download fails."""
WAIT_S = 1.0
"""Pause before the first retry, doubled each time."""
_MAX_WAIT_S = 60.0
_SPARE_BYTES = 64 * 2**20
_MOST_UNANNOUNCED = 2**36
"""Largest number of bytes that are accepted from a server that does not announce the size."""
ELSEWHERE = "choose another folder (--out of a download, IMITATE_CACHE for the cache)"
"""Advice for a full disk."""
OnBytes = Callable[[int, "int | None"], None]
"""Function that is called with the number of new bytes, and the total number of bytes or None if unknown.

The first call reports the bytes of an earlier attempt. The number of new bytes is negative if these must be downloaded
again.
"""


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def wait(failures: int, pause_s: float | None = None) -> None:
    """Sleep ``pause_s`` seconds, or by default longer with each successive failure; at most a minute."""
    time.sleep(min(WAIT_S * 2 ** (failures - 1) if pause_s is None else pause_s, _MAX_WAIT_S))


@dataclass
class Download:
    """Download of a URL to a path, which is resumed, retried and verified.

    Until the file is complete and verified, its name is ``<target>.part``; a later call resumes the download if the
    server still has the same file. Proxies are taken from the environment (``https_proxy`` ...).

    Attributes:
        url: address of the file.
        target: path of the file; an existing file is replaced when the download is complete.
        size_bytes: exact size, or None if unknown.
        about_bytes: rounded size, if the exact size is unknown.
        sha256: checksum, or None if unknown.
        identified: true if the path identifies the content, so that a partial file is always resumed.
        check: function that raises DatasetError if the content of the complete file is wrong; the file is then removed.
        retries: number of successive attempts without a byte after which the download fails.
        on_bytes: function for a progress bar; if it raises InterruptedError, the download stops and the received bytes
            are kept.
        resumed_at: number of bytes from an earlier attempt.
        received: number of bytes downloaded now.
    """

    url: str
    target: Path
    size_bytes: int | None = None
    about_bytes: int | None = None
    sha256: str | None = None
    identified: bool = False
    check: Callable[[Path], None] = lambda path: None
    retries: int = RETRIES
    on_bytes: OnBytes = lambda count, total: None
    resumed_at: int = 0
    received: int = 0
    _tag: str = ""

    def run(self) -> None:
        """Download the file.

        Raises:
            DatasetError: the server has no such file or cannot be reached, the disk is too small, or the content
                differs from the expected one.
        """
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            if not self.identified:
                self._find_tag()
            self.resumed_at = self._size()
            self.on_bytes(self.resumed_at, self.size_bytes)
            self._complete()
            self._verify()
            give_name(self._part, self.target)
            self._forget()
        except InterruptedError:  # raised by ``on_bytes``
            raise
        except OSError as error:
            words = f"cannot be written ({error.strerror}): "
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                words = (
                    f"the disk is full; {self._size()} bytes are kept: free some space: the same command continues "
                    "from there; or "
                )
            raise DatasetError(f"{self._part}: {words}{ELSEWHERE}") from error

    @property
    def _part(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def _notes(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    def _size(self) -> int:
        return self._part.stat().st_size if self._part.is_file() else 0

    def _find_tag(self) -> None:
        """Read the tag of an earlier attempt at this URL; without a tag, remove the bytes of that attempt."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            notes = read_json(self._notes)
            if notes["url"] == self.url:
                self._tag = str(notes["validator"])
        if not self._tag:
            self._forget()

    def _forget(self) -> None:
        self._tag = ""
        self._part.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def _complete(self) -> None:
        """Request missing bytes until the file is complete."""
        failures = 0
        while self.size_bytes is None or not self._part.is_file() or self._size() < self.size_bytes:
            before, pause_s, reason = self.received, None, "the connection ended early"
            try:
                if self._request():
                    return
            except UnreachableError as error:
                pause_s, reason = error.wait_s, str(error)
            failures = 1 if self.received > before else failures + 1
            if failures > self.retries:
                raise DatasetError(
                    f"{self.url}: given up after {self.retries} retries ({reason}); {self._size()} bytes are "
                    f"kept in {self._part}: the same command continues from there"
                )
            wait(failures, pause_s)

    def _request(self) -> bool:
        """Write the received bytes, at most one block beyond the known size; return true if the file is complete."""
        start = self._size() if self.identified or self._tag else 0
        with opened(self.url, start, self._tag) as content:
            total = self.size_bytes if content.total is None else content.total
            if content.start == 0:
                self._restart(content.tag, total)
            self._check_space((total or self.about_bytes or 0) - self._size())
            most = total if self.size_bytes is None else self.size_bytes
            for block in content.blocks:
                with appended(self._part, text=False) as file:
                    file.write(block)
                self.received += len(block)
                self.on_bytes(len(block), total)
                if most is not None and self._size() > most:
                    return True
                if most is None and self._size() > _MOST_UNANNOUNCED:
                    self._forget()
                    raise DatasetError(
                        f"{self.url}: sends more than {_MOST_UNANNOUNCED} bytes without announcing the size: correct "
                        "the address, or download it with another program and inspect the file"
                    )
        return total is None or self._size() == total

    def _restart(self, tag: str, total: int | None) -> None:
        """Begin with an empty file, and record the tag of the server's file."""
        self.on_bytes(-self._size(), total)
        self._forget()
        self.resumed_at = 0
        fresh(self._part).close()
        if tag and not tag.startswith("W/") and not self.identified:
            self._tag = tag
            with fresh(self._notes, "w") as file:
                json.dump({"url": self.url, "validator": tag}, file)

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self._part.parent).free
        if needed > 0 and free < needed + _SPARE_BYTES:
            raise DatasetError(
                f"{self._part.parent}: has {free / 1e9:.2f} GB free, but '{self.target.name}' needs "
                f"{needed / 1e9:.2f} GB more: free some space, or {ELSEWHERE}"
            )

    def _verify(self) -> None:
        """Remove a complete file if its content is not the expected one, and raise DatasetError."""
        try:
            size, words = self._size(), ""
            if self.size_bytes not in (None, size):
                words = f"has {size} bytes, expected {self.size_bytes}"
            elif self.sha256 is not None and (digest := sha256_of(self._part)) != self.sha256:
                words = f"its SHA-256 is {digest}, expected {self.sha256}"
            if words:
                raise DatasetError(
                    f"{self.url}: {words}; the downloaded file was removed: try again; if it happens again, a proxy "
                    "changes it, or another file was published under this name after the index or catalogue was written"
                )
            self.check(self._part)
        except DatasetError:
            self._forget()
            raise
