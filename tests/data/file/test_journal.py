"""Files whose changes are atomic: the journal's bytes, what is taken back, and whose journal it is."""

import fcntl
import hashlib
import os
import signal
import struct
import zlib
from contextlib import contextmanager

import numpy as np
import pytest

from imitate.data.file import journal as module
from imitate.data.file.journal import (
    JournaledFile,
    changing,
    is_being_written,
    journal_of,
    partial_of,
    refuse_interrupted,
    roll_back,
    unfinished_words,
)
from tests.refusals import refused


@contextmanager
def writer(path, data, *changes):
    """A process that commits data, makes some changes, and is killed in the end."""
    ready, done = os.pipe()
    process = os.fork()
    if process == 0:
        file = JournaledFile(path)
        file.write(data)
        file.commit()
        for offset, data in changes:
            file.seek(offset)
            if data is None:
                file.commit()
            else:
                file.write(data)
        os.write(done, b".")
        signal.pause()
    try:
        os.read(ready, 1)
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(ready)
        os.close(done)


def written(path, *changes):
    """A file whose writer made some changes after a commit of b"0123456789" and then died."""
    with writer(path, b"0123456789", *changes):
        return path


def test_changes_since_the_commit_are_taken_back(tmp_path):
    path = written(tmp_path / "a", (2, b"ab"), (3, b"xyz"), (8, b"HEADER"))
    assert path.read_bytes() == b"01axyz67HEADER"
    roll_back(path)
    assert path.read_bytes()[:10] == b"0123456789"
    assert not journal_of(path).exists()
    roll_back(path)
    assert path.read_bytes()[:10] == b"0123456789"


@pytest.mark.parametrize("lost", [1, 2, 20, 21])
def test_a_record_cut_short_was_never_acted_on(tmp_path, lost):
    path = written(tmp_path / "a", (0, b"ab"))
    path.write_bytes(b"0123456789")  # its record came first, so the change itself had not begun
    journal = journal_of(path)
    journal.write_bytes(journal.read_bytes()[:-lost])
    roll_back(path)
    assert path.read_bytes() == b"0123456789"


def test_after_a_commit_nothing_is_taken_back(tmp_path):
    path = tmp_path / "a"
    with writer(path, b"0123", (0, b"ab"), (0, None)):
        assert is_being_written(path)
    assert not is_being_written(path)
    roll_back(path)
    assert path.read_bytes() == b"ab23"


def test_a_failed_write_is_told_at_the_commit_and_rolled_back(tmp_path, monkeypatch):
    path = tmp_path / "a"
    file = JournaledFile(path)
    file.write(b"0123")
    file.commit()
    file.seek(0)
    file.write(b"abcdef")
    with monkeypatch.context() as patch:
        patch.setattr("imitate.data.file.journal.write_all", lambda *_: 1 / 0)
        assert file.write(b"lost") == 4
    with pytest.raises(ZeroDivisionError):
        file.commit()
    file.close(roll_back=True)
    assert path.read_bytes() == b"0123"
    assert not journal_of(path).exists()


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    file = JournaledFile(tmp_path / "a")
    file.write(b"0123")
    file.commit()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"0123"


def test_reading_and_writing_go_on_where_the_last_call_ended(tmp_path):
    file, buffer = JournaledFile(tmp_path / "a"), bytearray(2)
    file.write(b"0123456789")
    file.seek(2)
    assert (file.read(3), file.tell()) == (b"234", 5)
    assert (file.readinto(buffer), bytes(buffer), file.tell()) == (2, b"56", 7)
    file.write(b"x")
    assert (file.read(9), file.tell()) == (b"89", 10)  # no more than there is
    assert (file.read(9), file.tell()) == (b"", 10)
    file.close(roll_back=True)


# ---- the journal itself --------------------------------------------------------------------------


def committed(path, content, **options):
    """A file of this content, which is committed twice."""
    file = JournaledFile(path, **options)
    file.write(content)
    file.commit()
    file.seek(0)
    file.write(content)
    file.commit()
    return file


def record(offset, old):
    return struct.pack("<QQI", offset, len(old), zlib.crc32(old)) + old


@pytest.mark.parametrize("size", [0, 10, 4095, 100_003])
def test_the_bytes_of_a_journal(tmp_path, size):
    """Records are offset, length, checksum and old bytes; first those of the owner and of the size."""
    path, content = tmp_path / "a", np.random.default_rng(0).bytes(size)
    journal_of(path).write_bytes(bytes(1000))  # left by another one
    file = JournaledFile(path)
    assert len(journal_of(path).read_bytes()) == 20 + 48 + 20 + 8
    file.close()
    file = committed(path, content)
    digest, status = hashlib.sha256(struct.pack("<Q", size) + content[:4096]), path.stat()
    for number in range(65):
        at = max(0, size - 512) * number // 64
        digest.update(content[at : at + 512])
    owner = struct.pack("<QQ32s", status.st_dev, status.st_ino, digest.digest())
    wanted = record(2**64 - 2, owner) + record(2**64 - 1, struct.pack("<Q", size))
    assert journal_of(path).read_bytes() == wanted
    file.seek(size)
    file.write(b"more")  # after the end of what is committed: nothing has to be kept
    assert journal_of(path).read_bytes() == wanted
    file.seek(size // 2)
    file.write(bytes(size))
    if size:
        wanted += record(size // 2, content[size // 2 :])
    assert journal_of(path).read_bytes() == wanted
    file.close(roll_back=True)
    assert path.read_bytes() == content and not journal_of(path).exists()
    file.close()  # a second time


def test_one_byte_is_put_back(tmp_path):
    file = committed(tmp_path / "a", b"0123")
    file.seek(3)
    file.write(b"x")
    file.close(roll_back=True)
    assert (tmp_path / "a").read_bytes() == b"0123"


def test_files_are_closed_although_their_journal_is_gone(tmp_path):
    path = tmp_path / "a"
    file = committed(path, b"0123")
    with pytest.raises(BlockingIOError):
        JournaledFile(path, keep=True)
    file.lock()
    journal_of(path).unlink()
    file.close()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no lock is left


def test_long_records_are_put_back(tmp_path):
    path, content = tmp_path / "a", np.random.default_rng(0).bytes(5 * 2**19)
    file = committed(path, content)
    file.seek(1)
    file.write(bytes(len(content)))
    file.close(roll_back=True)
    assert path.read_bytes() == content


def test_positions_and_sizes(tmp_path):
    path = tmp_path / "a"
    file = committed(path, b"0123456789")
    assert (file.seek(3), file.seek(2, os.SEEK_CUR), file.tell()) == (3, 5, 5)
    assert (file.seek(-4, os.SEEK_END), file.read(9)) == (6, b"6789")
    file.write(b"abcdef")
    for size, kept in ((14, 14), (13, 13), (10, 10), (9, 10)):
        assert (file.truncate(size), path.stat().st_size) == (size, kept)
    file.seek(12)
    assert (file.truncate(), path.stat().st_size) == (12, 12)
    file.commit()
    file.close()
    assert path.read_bytes() == b"0123456789\0\0"


@pytest.mark.parametrize(
    "call", [lambda file: file.readinto(b"constant"), lambda file: file.truncate("x")]
)
def test_errors_wait_for_the_commit(tmp_path, call):
    file = committed(tmp_path / "a", b"0123456789")
    file.seek(0)
    call(file)
    assert (file.tell(), file.write(b"ab"), file.truncate(20), file.tell()) == (0, 2, 20, 2)
    with pytest.raises(TypeError):
        file.commit()
    file.close(roll_back=True)
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_after_a_stop_nothing_is_written(tmp_path):
    file = committed(tmp_path / "a", b"0123")
    file.stop()
    file.seek(0)
    file.write(b"ab")
    with pytest.raises(OSError, match="stopped"):
        file.commit()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"0123"


@pytest.mark.parametrize(("durable", "synced"), [({}, 0), ({"durable": True}, 8)])
def test_records_reach_the_disk_before_the_change(tmp_path, monkeypatch, durable, synced):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    file = committed(tmp_path / "a", b"0123456789", **durable)
    file.seek(0)
    file.write(b"ab")
    assert len(sizes) == synced  # owner and size at the beginning and at each commit, and old bytes
    file.close()
    assert len(sizes) == synced + 1


@pytest.mark.parametrize(("before", "left"), [(None, False), (b"", False), (b"x", True)])
def test_a_file_that_cannot_be_opened_leaves_the_journal_as_it_was(tmp_path, before, left):
    path = tmp_path / "a"
    if before is not None:
        journal_of(path).write_bytes(before)
    with pytest.raises(FileNotFoundError):
        JournaledFile(path, keep=True)
    assert journal_of(path).exists() == left
    assert not left or journal_of(path).read_bytes() == before


def test_a_full_disk_at_the_first_record(tmp_path, monkeypatch):
    def full(data):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a"
    path.write_bytes(b"0123")
    monkeypatch.setattr(zlib, "crc32", full)
    with pytest.raises(OSError, match="No space"):
        JournaledFile(path, keep=True)
    assert path.read_bytes() == b"0123" and not journal_of(path).exists()


# ---- interrupted writers -------------------------------------------------------------------------


def test_an_interrupted_change_is_refused_until_it_is_taken_back(tmp_path, monkeypatch):
    path = written(tmp_path / "a b", (0, b"xy"))
    interrupted = f"{path}: has an interrupted change: run `imitate dataset recover '{path}'`"
    with refused(interrupted):
        refuse_interrupted(path)
    with refused(interrupted), changing(path):
        pass
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    assert roll_back(path) is True
    assert synced == [path.stat().st_ino]
    refuse_interrupted(path)
    assert roll_back(path) is False
    assert path.read_bytes() == b"0123456789"
    assert not journal_of(path).exists()


def test_bytes_that_were_appended_alone_are_taken_back(tmp_path):
    path = written(tmp_path / "a", (10, b"more"))
    assert path.read_bytes() == b"0123456789more"
    assert roll_back(path) is True and path.read_bytes() == b"0123456789"


def test_changes_of_a_long_file_are_taken_back(tmp_path):
    """The digest is compared at the head, the end and samples, which the changes cover in part."""
    path, content = tmp_path / "a", np.random.default_rng(0).bytes(6000)
    changes = ((0, bytes(10)), (4300, bytes(100)), (4350, b"x" * 100), (5990, bytes(20)))
    with writer(path, content, *changes):
        pass
    with refused("an interrupted change"):
        refuse_interrupted(path)
    assert roll_back(path) is True and path.read_bytes() == content


def test_a_journal_of_another_user_or_file_is_not_used(tmp_path, monkeypatch):
    path = written(tmp_path / "a", (0, b"xy"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        refuse_interrupted(path)
    with journal_of(path).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # another reader
        assert not is_being_written(path)
        with refused("an interrupted change"):
            refuse_interrupted(path)
    same = tmp_path / "b"
    same.write_bytes(path.read_bytes())
    same.replace(path)  # another file with the same bytes
    refuse_interrupted(path)
    with changing(path) as file:
        file.write(b"ab")
    assert path.read_bytes() == b"ab23456789"
    assert (tmp_path / "a.journal.stale").exists() and not journal_of(path).exists()


@pytest.mark.parametrize(
    ("change", "refuses"),
    [
        (lambda path: path.write_bytes(b"xy2345678"), False),  # shorter than what was committed
        (lambda path: path.write_bytes(b"xy23456789"), True),
        (lambda path: path.write_bytes(b"xy2345678?"), False),
        (lambda path: path.write_bytes(b"??23456789more"), True),  # only what can be put back
    ],
)
def test_a_journal_belongs_to_a_content(tmp_path, caplog, change, refuses):
    path = written(tmp_path / "a", (0, b"xy"))
    change(path)
    if refuses:
        with refused("an interrupted change"):
            refuse_interrupted(path)
    else:
        refuse_interrupted(path)
    assert roll_back(path) is refuses
    assert (path.read_bytes() == b"0123456789") is refuses
    aside = [file.name for file in tmp_path.iterdir() if file != path]
    assert aside == ([] if refuses else ["a.journal.stale"])
    assert ("belongs to another file" in caplog.text) is not refuses


def test_journals_without_an_owner_are_moved_aside_under_free_names(tmp_path, caplog):
    path = tmp_path / "a"
    path.write_bytes(b"0123")
    for number, name in enumerate(("a.journal.stale", "a.journal.stale1", "a.journal.stale2")):
        content = record(0, b"%d" % number)
        journal_of(path).write_bytes(content)
        refuse_interrupted(path)
        assert roll_back(path) is False
        assert (tmp_path / name).read_bytes() == content
        assert f"does not say which file it belongs to: it was moved to {name}" in caplog.text
    for content in (b"", b"torn"):  # the writer died before it had changed anything
        journal_of(path).write_bytes(content)
        refuse_interrupted(path)
        assert roll_back(path) is False
        assert not journal_of(path).exists()
    assert path.read_bytes() == b"0123"


def test_the_words_for_what_is_left_of_a_missing_file(tmp_path):
    path = tmp_path / "a b"
    assert (journal_of(path).name, partial_of(path).name) == ("a b.journal", "a b.partial")
    assert unfinished_words(path) == ""
    file = JournaledFile(partial_of(path))
    assert unfinished_words(path) == (
        "it is being recorded; until that is finished, its data are in a b.partial"
    )
    file.close()
    assert unfinished_words(path) == (
        f"an interrupted recording left a b.partial: make the file of it with imitate dataset finish '{path}'"
    )


@pytest.mark.parametrize(("error", "writes"), [(PermissionError, True), (IsADirectoryError, False)])
def test_a_journal_that_cannot_be_opened(tmp_path, monkeypatch, error, writes):
    path = tmp_path / "a"
    assert not is_being_written(path) and list(tmp_path.iterdir()) == []

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(module, "open_plain", refuse)
    assert is_being_written(path) is writes


# ---- changes in place ----------------------------------------------------------------------------


def test_a_change_in_place_is_whole_or_none(tmp_path, monkeypatch):
    path, synced = tmp_path / "a", []
    path.write_bytes(b"0123456789")
    with monkeypatch.context() as patch, changing(path) as file:
        patch.setattr(os, "fsync", synced.append)
        file.write(b"ab")
        assert len(synced) == 1  # before the change
    assert path.read_bytes() == b"ab23456789"
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks")))
        with changing(path) as file:
            file.write(b"ab")
    with pytest.raises(ZeroDivisionError), changing(path) as file:
        file.write(b"xyz")
        raise ZeroDivisionError
    with refused(f"{path}: cannot be written (No space left): make room"), changing(path) as file:
        file.write(b"xyz")
        raise OSError(28, "No space left")
    with refused(f"{path}: cannot be written (torn): make room"), changing(path) as file:
        raise OSError("torn")
    assert path.read_bytes() == b"ab23456789"
    missing = tmp_path / "b"
    with refused(f"{missing}: cannot be written (No such file or directory)"), changing(missing):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_file_in_use_is_not_changed_in_place(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    in_use = f"{path}: another process reads or writes it: wait for it, or write a new file with"
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        with refused(in_use), changing(path):
            pass
    with changing(path), refused(in_use), changing(path):
        pass
    assert not journal_of(path).exists()


@pytest.mark.parametrize("offset", [8, 2**40, 2**63 - 1, 2**64 - 3])
def test_a_journal_of_bytes_beyond_the_file_is_moved_aside(tmp_path, offset):
    path = written(tmp_path / "a", (0, b"xy"))
    with journal_of(path).open("ab") as journal:
        journal.write(record(offset, b"abc"))
    refuse_interrupted(path)
    assert roll_back(path) is False
    assert path.read_bytes() == b"xy23456789"
    assert (tmp_path / "a.journal.stale").exists()


def test_a_hole_in_a_journal_holds_no_records(tmp_path):
    """Read as records, the 2 GB of zeros would be a hundred million."""
    path = written(tmp_path / "a", (0, b"xy"))
    with journal_of(path).open("r+b") as journal:
        journal.truncate(2**31)
    with refused("an interrupted change"):
        refuse_interrupted(path)
    assert roll_back(path) is True
    assert path.read_bytes() == b"0123456789"
