import fcntl
import os
import signal
from contextlib import contextmanager

import pytest

from imitate.data.file.journal import JournaledFile, is_being_written, journal_of, roll_back


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
        patch.setattr("imitate.data.file.journal._write_all", lambda *_: 1 / 0)
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
    file.close(roll_back=True)
