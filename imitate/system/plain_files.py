"""Safe writing of files, reading of whole small files, and locks.

Files are opened for writing without following links, and only if they are regular files, because a folder from another
person may contain a link with the name of a lock, a log, a journal or a temporary file. Files that are read whole have
a size limit and may not be pipes or devices. The operating system releases a lock when the process ends in any way.
"""

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from imitate.errors import FileError

MAX_TEXT = 2**26
"""Largest size in bytes of a text file that is read whole."""
_LONGEST_SKIPPED = 2**24
MAX_DEPTH = 100
"""Largest nesting depth of JSON."""
MAX_VALUES = 2**21
"""Largest number of values of a JSON text, because a value takes up to a hundred times its bytes in memory."""
MAX_SETTINGS = 2**17
"""Largest number of values of a JSON text with settings, such as a configuration."""
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def open_plain(path: Path, flags: int, *, single: bool = False) -> int:
    """Return a descriptor of a regular file.

    Args:
        path: path of the file; its folder may be a link.
        flags: flags of ``os.open``, without O_TRUNC, because the file must not be emptied before it is checked.
        single: true to refuse a file with a second hard link, whose content would change too.

    Raises:
        OSError: the path is a link, a folder, a pipe or a device, or ``os.open`` failed; the error has the path.
    """
    try:
        descriptor = os.open(path, flags | _SAFE | _BINARY, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise _not_plain(path, "is a link, a pipe or a device") from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise _not_plain(path, "is not a regular file")
    if single and status.st_nlink > 1:
        os.close(descriptor)
        raise _not_plain(path, "has a second name (a hard link)")
    return descriptor


def _not_plain(path: Path, words: str) -> OSError:
    return OSError(errno.ELOOP, f"it {words}, which is not written to: remove it", str(path))


def appended(path: Path, *, text: bool = True, reads: bool = False) -> Any:
    """Open a log to append to it, and also to read it if ``reads``; create it if it is missing."""
    access = os.O_RDWR if reads else os.O_WRONLY
    descriptor = open_plain(path, access | os.O_APPEND | os.O_CREAT, single=True)
    mode = "a+" if reads else "a"
    if text:
        return os.fdopen(descriptor, mode, encoding="utf-8")
    return os.fdopen(descriptor, f"{mode}b", buffering=0 if reads else -1)


def edited(path: Path) -> IO[bytes]:
    """Open an existing file to change it in place."""
    return os.fdopen(open_plain(path, os.O_RDWR, single=True), "r+b", buffering=0)


def fresh(path: Path, mode: str = "wb", buffering: int = -1) -> IO[Any]:
    """Create a new file in place of any file of this name; a link is replaced, and its target is kept."""
    with suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    descriptor = os.open(path, flags | _SAFE | _BINARY, 0o644)
    if "b" in mode:
        return os.fdopen(descriptor, mode, buffering)
    return os.fdopen(descriptor, mode, buffering, encoding="utf-8")


def cleared(path: Path) -> Path:
    """Replace the file at a path by an empty regular one, so that a library may open it by name; return the path."""
    fresh(path).close()
    return path


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically: readers see either the old or the new text."""
    with replaced(path) as temporary, fresh(temporary, "w") as handle:
        handle.write(text)


@contextmanager
def replaced(path: Path, suffix: str = "") -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces ``path`` if the body succeeds.

    See :func:`give_name`. The file is called ``.NAME.PID.partial`` plus the suffix, by which libraries choose a format;
    a killed process leaves this file.

    Raises:
        OSError: the file cannot be written; the error always names ``path``, not the temporary file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial{suffix}")
    try:
        yield temporary
        give_name(temporary, path)
    except OSError as error:
        if error.filename in (None, str(temporary), temporary):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def give_name(finished: Path, path: Path) -> None:
    """Move a finished file, or a folder of finished files, to ``path`` atomically; a file there is replaced.

    The content is flushed to disk before the file gets its name, and then the name is flushed to disk.
    """
    sync(finished)
    os.replace(finished, path)
    with suppress(OSError):  # not every file system supports this
        sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk, so that they survive a power failure."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # not every system can open folders
    descriptor = os.open(path, os.O_RDONLY | _BINARY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(source: Path, target: Path) -> None:
    """Make ``target`` atomically a hard link to ``source``, or a copy if the file system has no links."""
    with replaced(target) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            shutil.copyfile(source, temporary)


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a name found in a file, which must be inside the folder.

    Raises:
        FileError: the path is outside of the folder.
    """
    path = Path(name)
    if path.is_absolute() or path.drive or ".." in path.parts:
        raise FileError(
            f"{folder}: a file in this folder names '{name[:200]}', which is outside of the folder and is not read"
        )
    return folder / path


def check_not_linked(path: Path) -> None:
    """Refuse a folder for writing and removing files if it is a link.

    Raises:
        OSError: the folder is a link.
    """
    if path.is_symlink():
        raise OSError(
            errno.ELOOP,
            "it is a link, and files are not written through links: copy the folder",
            str(path),
        )


def _opened(path: Path) -> IO[bytes]:
    """Open a regular file to read it, or raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def lines_of(path: Path, longest: int) -> Iterator[bytes]:
    """Yield the lines of a regular file of any size; skip lines of more than ``longest`` bytes.

    Raises:
        FileError: the file cannot be read, or has a line of more than 16 MiB.
    """
    try:
        with _opened(path) as file:
            skipped = 0
            while piece := file.readline(longest):
                ends = piece.endswith(b"\n")
                if not skipped and (ends or len(piece) < longest):
                    yield piece
                skipped = 0 if ends else skipped + len(piece)
                if skipped > _LONGEST_SKIPPED:
                    raise FileError(f"{path}: is not a text file: a line has more than 16 MiB")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a regular file, which may be reached through links.

    Raises:
        OSError: the file is a pipe or a device, or has more than ``limit`` bytes.
    """
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        content = file.read(limit + 1) if status.st_size <= limit else b""
        if status.st_size > limit or len(content) > limit:
            size = max(status.st_size, limit + 1)
            raise OSError(
                errno.EFBIG, f"it has {size} bytes, and at most {limit} are read", str(path)
            )
    return content


def read_text(path: Path, limit: int = MAX_TEXT) -> str:
    """Return the text of a regular file of at most ``limit`` bytes.

    Raises:
        FileNotFoundError: the file does not exist.
        FileError: the file cannot be read, is larger than ``limit``, or is not UTF-8.
    """
    try:
        return read_bytes(path, limit).decode("utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise FileError(f"{path}: cannot be read as text: {reason}") from error


def read_json(path: Path, limit: int = MAX_TEXT) -> Any:
    """Return the content of a JSON file, with the checks of :func:`read_text`; raise FileError if it is not JSON."""
    return parsed_json(read_text(path, limit), str(path))


def parsed_json(text: str | bytes, name: str, most: int = MAX_VALUES) -> Any:
    """Return the content of JSON text of at most ``most`` values.

    Raises:
        FileError: the text is not JSON, is nested too deeply, has more than ``most`` values, or has a number with too
            many digits; the message begins with ``name``.
    """
    try:
        value = json_value(text, most)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{name}: {json_fault(error)}") from error
    check_depth(value, name, most)
    return value


def json_value(text: str | bytes, most: int = MAX_VALUES, **options: Any) -> Any:
    """Return ``json.loads`` of a text; raise ValueError for more than ``most`` commas and brackets."""
    marks: Any = ",[{" if isinstance(text, str) else (b",", b"[", b"{")
    if len(text) > most and sum(map(text.count, marks)) > most:
        raise ValueError(f"more than {most} values")
    return json.loads(text, **options)


def json_fault(error: Exception) -> str:
    """Describe an error of ``json.loads`` in one line."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
    if isinstance(error, RecursionError):
        return f"is nested deeper than {MAX_DEPTH} levels"
    return f"not JSON that can be read ({str(error).partition(';')[0]})"


def check_depth(value: Any, name: str, most: int = MAX_VALUES) -> None:
    """Raise FileError if lists and dicts are nested deeper than ``MAX_DEPTH``, or have more than ``most`` values."""
    level, depth, count = [value], 0, 0
    while level:
        if depth > MAX_DEPTH:
            raise FileError(f"{name}: is nested deeper than {MAX_DEPTH} levels")
        depth += 1
        parts = [
            x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)
        ]
        count += sum(map(len, parts))
        if count > most:
            raise FileError(f"{name}: has more than {most} values")
        level = [part for values in parts for part in values if isinstance(part, dict | list)]


# ---- locks ---------------------------------------------------------------------------------------


def lock(
    file: Any,
    *,
    wait: bool = False,
    shared: bool = False,
    by_process: bool = False,
    needed: bool = True,
) -> None:
    """Lock an open file for this process until it is closed.

    Args:
        file: the file, or its descriptor.
        wait: true to wait until other processes release the lock.
        shared: true to take a shared lock.
        by_process: true to take a lock that forked processes do not hold; this process releases the lock by closing
            the file anywhere.
        needed: false to continue without a lock if the file system or the operating system has no locks.

    Raises:
        BlockingIOError: another process has the lock, and ``wait`` is false.
        OSError: the system has no locks, and ``needed`` is true.
    """
    try:
        import fcntl
    except ImportError as error:  # Windows
        if needed:
            raise OSError(errno.ENOLCK, "this system has no locks on files") from error
        return
    take = fcntl.lockf if by_process else fcntl.flock
    try:
        take(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError) as error:
        raise BlockingIOError(error.errno, error.strerror) from error
    except OSError:
        if needed:
            raise


def locked(
    path: Path,
    *,
    wait: bool = True,
    shared: bool = False,
    make: bool = True,
    by_process: bool = False,
    needed: bool = True,
) -> IO[bytes]:
    """Open a file and lock it for this process until it is closed.

    Args:
        path: path of the lock file.
        wait: true to wait until other processes release the lock.
        shared: true to take a shared lock.
        make: true to open the file for appending, and to create it if needed; if false, the file must exist.
        by_process: as in :func:`lock`.
        needed: as in :func:`lock`.

    Raises:
        BlockingIOError: another process has the lock, and ``wait`` is false.
        FileNotFoundError: the file does not exist, and ``make`` is false.
        OSError: the file is not a regular file, or the system has no locks and ``needed`` is true.
    """
    # network file systems give an exclusive lock only on a file that is open for writing
    access = os.O_RDWR | os.O_APPEND | os.O_CREAT if make else os.O_RDONLY if shared else os.O_RDWR
    while True:
        file = open(  # noqa: SIM115 - the caller closes it
            path, "a+b" if make else "rb", opener=lambda *_: open_plain(path, access)
        )
        try:
            lock(file, wait=wait, shared=shared, by_process=by_process, needed=needed)
        except OSError:
            file.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the former owner of the lock has renamed or removed the file
