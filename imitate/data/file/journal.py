"""A file that a kill -9 or a full disk cannot leave half changed."""

from __future__ import annotations

import fcntl
import os
import shlex
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imitate.errors import DatasetError

_RECORD = struct.Struct("<QQI")  # offset, length, checksum of the bytes that were there
_SIZE = (
    2**64 - 1
)  # in place of an offset: the eight bytes that follow are the size that the file had


def journal_of(path: Path) -> Path:
    """Return the path of the journal of a file."""
    return path.with_name(path.name + ".journal")


def partial_of(path: Path) -> Path:
    """Return the path of the data of an unfinished file."""
    return path.with_name(path.name + ".partial")


def unfinished_words(path: Path) -> str:
    """Describe what a recording left of a file that is not there; empty where it left nothing."""
    partial = partial_of(path)
    if not partial.is_file():
        return ""
    if is_being_written(partial):
        return f"it is being recorded, and lies in {partial.name} until then"
    return (
        f"an interrupted recording left {partial.name}: make the file of it with "
        f"{shlex.join(['imitate', 'dataset', 'finish', str(path)])}"
    )


class JournaledFile:
    """A binary file whose changes since the last commit can be taken back; h5py writes through it.

    Before bytes of the committed part are overwritten, they go to a journal beside the file. Whoever finds the journal
    of a dead writer puts them back (:func:`roll_back`); what was appended since is behind the end that the HDF5 header
    names, and so is ignored. While the writer lives it holds a lock on the journal.

    Args:
        path: made anew.
        keep: it exists, and what is in it stays; of a dead writer's file see :func:`roll_back` first.
        durable: have each record of the journal on the disk before what it undoes is done, for the machine may go down.
    """

    def __init__(self, path: Path, *, keep: bool = False, durable: bool = False) -> None:
        self.path = path
        self._journal = _locked(journal_of(path))
        self._journal.truncate(0)
        self._file = path.open("r+b" if keep else "w+b", buffering=0)
        self._position = 0
        self._committed = self._size()
        self._journaled = 0
        self._error: BaseException | None = None
        self._durable = durable
        try:
            self._note_size()
        except BaseException:  # a full disk: nothing has been written to the file itself
            self._file.close()
            journal_of(path).unlink(missing_ok=True)
            self._journal.close()
            raise

    # ---- what h5py calls: an exception in here would take the process down -----------------------

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size()}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the position on."""
        count = 0
        try:
            self._file.seek(self._position)
            count = self._file.readinto(buffer) or 0
        except BaseException as error:
            self._fail(error)
        self._position += count
        return count

    def read(self, size: int) -> bytes:
        """Read bytes from the position on; h5py takes an object with this method for a file."""
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(buffer)])

    def write(self, data: Any) -> int:
        """Write all bytes at the position; none after a failure."""
        view = memoryview(data).cast("B")
        try:
            if self._error is None:
                self._keep_old(self._position, len(view))
                _write_all(self._file, self._position, view)
        except BaseException as error:
            self._fail(error)
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size; the committed part is never cut."""
        size = self._position if size is None else size
        try:
            if self._error is None:
                self._file.truncate(max(size, self._committed))
        except BaseException as error:
            self._fail(error)
        return size

    def flush(self) -> None:
        """Do nothing: nothing is buffered here."""

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error

    # ---- commit and back -------------------------------------------------------------------------

    def commit(self) -> None:
        """Make the present content the one that a roll-back restores.

        Raises:
            OSError: a write since the last commit failed, as on a full disk; or whatever else interrupted it.
        """
        if self._error is not None:
            raise self._error
        self._journal.truncate(0)
        self._journaled = 0
        self._committed = self._size()
        self._note_size()

    def close(self, *, roll_back: bool = False) -> None:
        """Close, and remove the journal.

        Args:
            roll_back: first undo what was written since the last commit.
        """
        if self._file.closed:
            return
        if roll_back:
            _put_back(self._journal, self._file)
            self._file.truncate(self._committed)
        os.fsync(self._file.fileno())
        self._file.close()
        journal_of(self.path).unlink(missing_ok=True)
        self._journal.close()

    def lock(self) -> None:
        """Lock the file against other processes that open it with HDF5.

        Raises:
            BlockingIOError: somebody has it open.
        """
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks

    def stop(self) -> None:
        """Take no more writes, so that HDF5 can close the file before a roll-back."""
        self._fail(OSError("stopped"))

    def _keep_old(self, offset: int, length: int) -> None:
        length = min(length, self._committed - offset)
        if length <= 0:
            return
        self._file.seek(offset)
        old = self._file.read(length) or b""
        self._note(offset, old)

    def _note_size(self) -> None:
        self._note(_SIZE, struct.pack("<Q", self._committed))

    def _note(self, offset: int, old: bytes) -> None:
        record = _RECORD.pack(offset, len(old), zlib.crc32(old)) + old
        _write_all(self._journal, self._journaled, memoryview(record))
        self._journaled += len(record)
        if self._durable:
            os.fsync(self._journal.fileno())

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def roll_back(path: Path) -> None:
    """Bring a file whose writer died back to its last commit; nothing happens to others."""
    journal_path = journal_of(path)
    if not journal_path.exists():
        return
    with _locked(journal_path) as journal, path.open("r+b") as file:
        _put_back(journal, file)
        os.fsync(file.fileno())
        journal_path.unlink(missing_ok=True)


def take_up(path: Path) -> None:
    """Bring a file whose writer died back to its last commit, if one died; called before a file is opened."""
    if journal_of(path).exists() and not is_being_written(path):
        roll_back(path)


@contextmanager
def changing(path: Path) -> Iterator[JournaledFile]:
    """Open a finished file to change a little of it in place: all changes are made when the block ends, or none.

    Raises:
        DatasetError: another process has it open, or it cannot be written.
    """
    try:
        take_up(path)
        file = JournaledFile(path, keep=True, durable=True)
    except BlockingIOError as error:
        raise _in_use(path) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        file.lock()
        yield file
        file.commit()
    except BaseException as error:
        file.stop()
        file.close(roll_back=True)
        if isinstance(error, BlockingIOError):
            raise _in_use(path) from error
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise
    file.close()


def _in_use(path: Path) -> DatasetError:
    return DatasetError(
        f"{path}: another process reads or writes it: wait for it, or write a new file with --out"
    )


def _unwritable(path: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"{path}: cannot be written ({error.strerror or error}): make room, change its permissions, "
        "or write a new file with --out"
    )


def is_being_written(path: Path) -> bool:
    """Return true if a living process writes the file, or may do so as another user."""
    try:
        with _locked(journal_of(path), create=False):
            return False
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True


def _write_all(file: Any, offset: int, data: memoryview) -> None:
    file.seek(offset)
    while len(data):
        data = data[file.write(data) :]


def _locked(path: Path, create: bool = True) -> Any:
    """Open the journal and lock it.

    Raises:
        BlockingIOError: another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError:
        pass  # a file system without locks: other processes are not kept out
    return file


def _put_back(journal: Any, file: Any) -> None:
    journal.seek(0)
    content = journal.read()
    records, at = [], 0
    while at + _RECORD.size <= len(content):
        offset, length, checksum = _RECORD.unpack_from(content, at)
        old = content[at + _RECORD.size : at + _RECORD.size + length]
        if len(old) < length or zlib.crc32(old) != checksum:
            break  # the writer died while it wrote this record, so before it changed the file
        records.append((offset, old))
        at += _RECORD.size + length
    for offset, old in reversed(records):
        if offset == _SIZE:
            file.truncate(struct.unpack("<Q", old)[0])
            continue
        file.seek(offset)
        file.write(old)
