"""Atomic changes of a file, even if the process is killed (kill -9) or the disk is full."""

import hashlib
import logging
import os
import shlex
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from imitate.errors import DatasetError
from imitate.system.plain_files import edited, fresh, give_name, lock, open_plain

LOG = logging.getLogger(__name__)
_RECORD = struct.Struct("<QQI")  # offset, length and checksum of the original bytes
# Markers in place of an offset, for the records of the original size and of the identity of the journal's file.
_SIZE, _OWNER = 2**64 - 1, 2**64 - 2
_IDENTITY = struct.Struct("<QQ32s")  # device, inode, digest of the file's content
_PIECE = 2**20
_HEAD, _SAMPLE, _SAMPLES = 4096, 512, 64


def journal_of(path: Path) -> Path:
    """Return the path of the journal of a file."""
    return path.with_name(path.name + ".journal")


def partial_of(path: Path) -> Path:
    """Return the path at which the data of an unfinished file are stored."""
    return path.with_name(path.name + ".partial")


def unfinished_words(path: Path) -> str:
    """Describe the partial file of a running or interrupted recording of a missing file; '' if there is none."""
    partial = partial_of(path)
    if not partial.is_file():
        return ""
    if is_being_written(partial):
        return f"it is being recorded; until that is finished, its data are in {partial.name}"
    return (
        f"an interrupted recording left {partial.name}: make the file of it with "
        f"{shlex.join(['imitate', 'dataset', 'finish', str(path)])}"
    )


class JournaledFile:
    """Binary file whose changes since the last commit can be undone; h5py writes through it.

    Before bytes of the committed part are overwritten, they are copied to a journal beside the file. If the writer
    died, the next process restores these bytes (:func:`roll_back`). Appended bytes are ignored, because they are after
    the end that the HDF5 header records. A running writer has a lock on the journal.

    The journal begins with the identity of the file: its device and inode, and a digest of parts of its content at the
    last commit. The journal of another file is never applied.

    Args:
        path: the new file.
        keep: true to keep the content of an existing file; call :func:`roll_back` first if the writer of the file died.
        durable: true to flush each record of the journal to disk before the change, in case of a power failure.
    """

    def __init__(self, path: Path, *, keep: bool = False, durable: bool = False) -> None:
        self.path = path
        self._journal = _locked(journal_of(path))
        try:
            self._file: Any = edited(path) if keep else fresh(path, "w+b", buffering=0)
        except BaseException:
            if not os.fstat(self._journal.fileno()).st_size:
                journal_of(path).unlink(missing_ok=True)
            self._journal.close()
            raise
        self._journal.truncate(0)
        self._position = 0
        self._committed = self._size()
        self._journaled = 0
        self._error: BaseException | None = None
        self._durable = durable
        try:
            self._note_owner()
        except BaseException:  # the disk is full, but the file itself is unchanged
            self._file.close()
            journal_of(path).unlink(missing_ok=True)
            self._journal.close()
            raise

    # ---- methods for h5py, which must not raise exceptions: they would end the process --------------

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position in the file, in bytes."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size()}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position in the file, in bytes."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the current position."""
        count = 0
        try:
            self._file.seek(self._position)
            count = self._file.readinto(buffer) or 0
        except BaseException as error:
            self._fail(error)
        self._position += count
        return count

    def read(self, size: int) -> bytes:
        """Read bytes from the current position; h5py recognizes a file by this method."""
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(buffer)])

    def write(self, data: Any) -> int:
        """Write all bytes at the position; after a failure, nothing is written."""
        view = memoryview(data).cast("B")
        try:
            if self._error is None:
                self._keep_old(self._position, len(view))
                write_all(self._file, self._position, view)
        except BaseException as error:
            self._fail(error)
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size; the committed part is never truncated."""
        size = self._position if size is None else size
        try:
            if self._error is None:
                self._file.truncate(max(size, self._committed))
        except BaseException as error:
            self._fail(error)
        return size

    def flush(self) -> None:
        """Do nothing, because there is no buffer."""

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error

    # ---- commit and roll back --------------------------------------------------------------------

    def commit(self) -> None:
        """Make the current content the state that a roll-back restores.

        Raises:
            OSError: a write since the last commit failed, for example on a full disk, or was interrupted.
        """
        if self._error is not None:
            raise self._error
        self._journal.truncate(0)
        self._journaled = 0
        self._committed = self._size()
        self._note_owner()

    def close(self, *, roll_back: bool = False) -> None:
        """Close the file, and remove the journal.

        Args:
            roll_back: true to undo all changes since the last commit first.
        """
        if self._file.closed:
            return
        if roll_back:
            records = list(_records(self._journal))
            if len(records) >= 2:  # else the disk was full before any change
                _put_back(self._journal, records, self._file)
            self._file.truncate(self._committed)
        os.fsync(self._file.fileno())
        self._file.close()
        journal_of(self.path).unlink(missing_ok=True)
        self._journal.close()

    def lock(self) -> None:
        """Lock the file against other processes that open it with HDF5.

        Raises:
            BlockingIOError: another process has opened the file.
        """
        lock(self._file, needed=False)

    def stop(self) -> None:
        """Ignore further writes, so that HDF5 can close the file before a roll-back."""
        self._fail(OSError("stopped"))

    def _keep_old(self, offset: int, length: int) -> None:
        length = min(length, self._committed - offset)
        if length <= 0:
            return
        self._file.seek(offset)
        old = self._file.read(length) or b""
        self._note(offset, old)

    def _note_owner(self) -> None:
        status = os.fstat(self._file.fileno())
        digest = _digest(partial(_read_at, self._file), self._committed)
        self._note(_OWNER, _IDENTITY.pack(status.st_dev, status.st_ino, digest))
        self._note(_SIZE, struct.pack("<Q", self._committed))

    def _note(self, offset: int, old: bytes) -> None:
        record = _RECORD.pack(offset, len(old), zlib.crc32(old)) + old
        write_all(self._journal, self._journaled, memoryview(record))
        self._journaled += len(record)
        if self._durable:
            os.fsync(self._journal.fileno())

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def roll_back(path: Path) -> bool:
    """Restore a file whose writer died to its last commit; other files are not changed.

    A journal that belongs to another file, for example because the changed file was replaced, is moved aside.

    Returns:
        true if something was restored.

    Raises:
        BlockingIOError: the writer is still running.
        OSError: the file or the journal is not a regular file.
    """
    journal_path = journal_of(path)
    if not journal_path.exists():
        return False
    with _locked(journal_path) as journal:
        records = list(_records(journal))
        if not _names_owner(records):
            _move_aside(journal_path, "does not say which file it belongs to")
            return False
        if len(records) < 2:  # the writer died before its first change
            journal_path.unlink(missing_ok=True)
            return False
        with edited(path) as file:
            if not _is_owner(journal, records, file):
                _move_aside(journal_path, f"belongs to another file than {path}")
                return False
            _put_back(journal, records, file)
            os.fsync(file.fileno())
        journal_path.unlink(missing_ok=True)
    return True


def refuse_interrupted(path: Path) -> None:
    """Refuse to read a file whose writer died during a change; nothing is written.

    Raises:
        DatasetError: the change was interrupted.
    """
    if _is_interrupted(path):
        raise DatasetError(
            f"{path}: has an interrupted change: run "
            f"`{shlex.join(['imitate', 'dataset', 'recover', str(path)])}`"
        )


def _is_interrupted(path: Path) -> bool:
    """Return true if a journal of a dead writer is beside the file and belongs to it."""
    try:
        with _locked(journal_of(path), writes=False) as journal, path.open("rb") as file:
            # the owner is checked first, because the journal of another file may be large
            head = list(islice(_records(journal), 2))
            if len(head) < 2 or not _names_owner(head) or not _same_inode(journal, head, file):
                return False
            return _is_owner(journal, list(_records(journal)), file)
    except OSError:  # no journal, a running writer, or not a regular file
        return False


def _move_aside(journal: Path, why: str) -> None:
    number = 0
    while (aside := journal.with_name(f"{journal.name}.stale{number or ''}")).exists():
        number += 1
    give_name(journal, aside)
    LOG.warning("%s %s: it was moved to %s", journal, why, aside.name)


@contextmanager
def changing(path: Path) -> Iterator[JournaledFile]:
    """Open a finished file for a small change in place; the changes take effect atomically at the end of the body.

    Raises:
        DatasetError: another process has opened the file, or the file cannot be written.
    """
    try:
        refuse_interrupted(path)
        roll_back(path)  # a journal of another file is moved aside
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
    """Return true if a running process writes the file, or another user's process may do so."""
    try:
        with _locked(journal_of(path), writes=False):
            return False
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # no journal, or not a regular file
        return False


def write_all(file: Any, offset: int, data: memoryview) -> None:
    """Write all bytes of ``data`` at an offset of an unbuffered file, in as many writes as it takes."""
    file.seek(offset)
    while len(data):
        data = data[file.write(data) :]


def _locked(path: Path, writes: bool = True) -> Any:
    """Open the journal and lock it.

    Args:
        path: path of the journal.
        writes: true to create the journal if it does not exist; false to open it only for reading.

    Raises:
        BlockingIOError: another process has locked the journal.
        OSError: the journal is not a regular file.
    """
    access = os.O_RDWR | os.O_CREAT if writes else os.O_RDONLY
    descriptor = open_plain(path, access, single=writes)
    file = os.fdopen(descriptor, "r+b" if writes else "rb", buffering=0)
    try:
        lock(file, shared=not writes, needed=False)
    except BlockingIOError:
        file.close()
        raise
    return file


class _Record(NamedTuple):
    """Original bytes of a file, stored in its journal.

    Attributes:
        offset: offset in the file, or one of the markers _SIZE and _OWNER.
        length: number of bytes.
        at: position of the bytes in the journal.
    """

    offset: int
    length: int
    at: int


def _records(journal: Any) -> Iterator[_Record]:
    """Return the complete records. An incomplete record means that the writer died before it changed the file."""
    size, at = os.fstat(journal.fileno()).st_size, 0
    while at + _RECORD.size <= size:
        offset, length, checksum = _RECORD.unpack(_read_at(journal, at, _RECORD.size))
        at += _RECORD.size
        if not length or at + length > size:  # a record of length 0 is a hole in a damaged journal
            return
        found = 0
        for start in range(at, at + length, _PIECE):
            found = zlib.crc32(_read_at(journal, start, min(_PIECE, at + length - start)), found)
        if found != checksum:
            return
        yield _Record(offset, length, at)
        at += length


def _names_owner(records: Sequence[_Record]) -> bool:
    """Return true if the journal begins with the identity and size of a file, or is empty."""
    begins = [(_OWNER, _IDENTITY.size), (_SIZE, 8)]
    return all(
        (record.offset, record.length) == wanted
        for record, wanted in zip(records, begins, strict=False)
    )


def _same_inode(journal: Any, records: Sequence[_Record], file: Any) -> bool:
    """Compare inode and owner, but not the device number, which may change when the machine is restarted."""
    _, inode, _ = _identity(journal, records)
    status = os.fstat(file.fileno())
    is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return is_own and status.st_ino == inode


def _identity(journal: Any, records: Sequence[_Record]) -> tuple[int, int, bytes]:
    device, inode, digest = _IDENTITY.unpack(_read_at(journal, records[0].at, _IDENTITY.size))
    return device, inode, digest


def _committed_size(journal: Any, records: Sequence[_Record]) -> int:
    size: int = struct.unpack("<Q", _read_at(journal, records[1].at, 8))[0]
    return size


def _is_owner(journal: Any, records: Sequence[_Record], file: Any) -> bool:
    """Return true if restoring the records would give the file to which the journal belongs."""
    if not _same_inode(journal, records, file):
        return False
    size = _committed_size(journal, records)
    ends = [record.offset + record.length for record in records[2:]]
    if os.fstat(file.fileno()).st_size < size or max(ends, default=0) > size:
        return False

    def put_back(offset: int, length: int) -> bytes:
        piece = bytearray(_read_at(file, offset, length))
        for record in reversed(records[2:]):
            first, last = (
                max(offset, record.offset),
                min(offset + length, record.offset + record.length),
            )
            if first < last:
                old = _read_at(journal, record.at + first - record.offset, last - first)
                piece[first - offset : last - offset] = old
        return bytes(piece)

    return _digest(put_back, size) == _identity(journal, records)[2]


def _digest(read: Callable[[int, int], bytes], size: int) -> bytes:
    """Compute a digest of the size, the beginning, the end and samples between them."""
    digest = hashlib.sha256(struct.pack("<Q", size))
    digest.update(read(0, min(_HEAD, size)))
    for number in range(_SAMPLES + 1):
        at = max(0, size - _SAMPLE) * number // _SAMPLES
        digest.update(read(at, min(_SAMPLE, size)))
    return digest.digest()


def _read_at(file: Any, offset: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, offset)


def _put_back(journal: Any, records: Sequence[_Record], file: Any) -> None:
    for record in reversed(records[2:]):
        for start in range(0, record.length, _PIECE):
            old = _read_at(journal, record.at + start, min(_PIECE, record.length - start))
            write_all(file, record.offset + start, memoryview(old))
    file.truncate(_committed_size(journal, records))
