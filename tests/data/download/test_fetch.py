"""Fetching into the cache over HTTP and from fsspec's file systems; the bound of the cache."""

import io
import os
import shutil
import signal
import sys
from urllib.error import HTTPError
from urllib.request import Request

import fsspec
import pytest

from imitate.data.download import download
from imitate.data.download import fetch as store
from imitate.data.download.download import WebRedirects
from imitate.data.download.fetch import (
    cached_path,
    fetch,
    fetch_file,
    fetch_small,
    hold,
    make_room,
    release,
    remote_folder,
    writing,
)
from tests.forked import Forked
from tests.refusals import refused

CONTENT = bytes(range(256)) * 40_000  # 10 MB, ten blocks
KEY = "abc"


@pytest.fixture
def server(monkeypatch, file_server):
    monkeypatch.setattr(download, "WAIT_S", 0.001)
    with file_server() as server:
        server.files["/a.hdf5"] = CONTENT
        yield server


@pytest.mark.parametrize("size", [len(CONTENT), None])
@pytest.mark.parametrize("place", ["SERVER", "memory://bucket", "file://FOLDER"])
def test_the_key_of_a_known_size_is_enough_to_resume(server, tmp_path, place, size):
    server.etag, came = "", []
    (tmp_path / "a.hdf5").write_bytes(CONTENT)
    fsspec.filesystem("memory").pipe("/bucket/a.hdf5", CONTENT)
    place = place.replace("SERVER", server.url).replace("FOLDER", str(tmp_path))
    path = cached_path(f"{place}/a.hdf5", KEY)
    path.parent.mkdir(parents=True)
    path.with_name("a.hdf5.part").write_bytes(CONTENT[:5_000_000])

    found = fetch(f"{place}/a.hdf5", KEY, size, on_bytes=lambda count, total: came.append(count))
    assert found.read_bytes() == CONTENT
    assert came[0] == (5_000_000 if size else 0)
    assert sum(came) == len(CONTENT)


@pytest.mark.parametrize(
    ("url", "missing", "words"),
    [
        ("SERVER/b.hdf5", "nothing", "b.hdf5:|correct the address"),
        ("memory://nowhere/b.hdf5", "nothing", "b.hdf5:|correct the address"),
        ("s3://bucket/a.hdf5", "s3fs", "s3:// needs the package 's3fs': do: pip install s3fs"),
        ("gs://bucket/a.hdf5", "fsspec", "'fsspec' is not installed; do: pip install"),
        ("nowhere://x", "nothing", "nowhere://x: is not an address that can be read"),
    ],
)
def test_what_cannot_be_fetched_is_told_at_once(server, monkeypatch, url, missing, words):
    monkeypatch.setitem(sys.modules, missing, None)
    with refused(words):
        fetch(url.replace("SERVER", server.url), KEY, 10)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/a.hdf5", None),
        ("ftp://127.0.0.1:1/a.hdf5", "302 with the address 'ftp://127.0.0.1:1/a.hdf5'"),
        ("file:///etc/passwd", "302 "),
    ],
)
def test_redirects_are_followed_to_the_web_alone(server, monkeypatch, address, words):
    answer = server.answer

    def redirect(request, with_body):
        if request.path == "/a.hdf5":
            return answer(request, with_body)
        request.send_response(302)
        request.send_header("Location", address)
        request.end_headers()

    monkeypatch.setattr(server, "answer", redirect)
    url = f"{server.url}/moved"
    if words is None:
        assert fetch(url, KEY, len(CONTENT)).read_bytes() == CONTENT
    else:
        with refused(f"{url}: the server answers {words}|correct the address"):
            fetch(url, KEY, 10)


@pytest.mark.parametrize(
    ("old", "new", "followed"),
    [
        ("https", "https", True),
        ("http", "https", True),
        ("http", "http", True),
        ("https", "http", False),
    ],
)
def test_no_redirect_gives_up_encryption(old, new, followed):
    arguments = (Request(f"{old}://host/a"), None, 302, "Found", {}, f"{new}://other/b")
    if followed:
        assert WebRedirects().redirect_request(*arguments).full_url == f"{new}://other/b"
    else:
        with pytest.raises(HTTPError, match="with the address 'http://other/b'"):
            WebRedirects().redirect_request(*arguments)


def test_a_small_file_is_read_anew_and_from_its_copy_when_the_server_is_away(server, caplog):
    url = f"{server.url}/index.json"
    server.cut["/index.json"] = [3]  # cut short, it is asked for again
    for content in (b"the first", b"the second"):
        server.files["/index.json"] = content
        assert fetch_small(url) == content
    server.cut["/index.json"] = [3]  # one failure is no reason for an old copy
    assert fetch_small(url) == b"the second"
    assert "the copy in the cache is used" not in caplog.text
    server.files["/index.json"], server.cut["/index.json"] = b"the third", [3, 3]
    assert fetch_small(url) == b"the second"
    assert "the copy in the cache is used" in caplog.text
    server.down = True
    assert fetch_small(url) == b"the second"
    server.asked.clear()
    with refused(f"{server.url}/other.json: cannot be reached (503"):
        fetch_small(f"{server.url}/other.json")
    assert server.asked == ["GET /other.json"] * 6


def test_an_index_has_a_largest_size(server, monkeypatch):
    monkeypatch.setattr(store, "_MAX_SMALL", 5)
    for size in (5, 6):
        server.files[f"/{size}"] = bytes(size)
    assert fetch_small(f"{server.url}/5") == bytes(5)
    with refused(f"{server.url}/6: is larger than an index can be: correct the address"):
        fetch_small(f"{server.url}/6")


def test_where_the_cache_cannot_be_written(server, monkeypatch, tmp_path):
    server.files["/index.json"] = b"x"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "file"))
    assert fetch_small(f"{server.url}/index.json") == b"x"  # there is just no copy
    with refused("/remote/abc: cannot be written (Not a directory): choose another folder (--out"):
        fetch(f"{server.url}/a.hdf5", KEY, 10)


def test_a_file_without_an_index_is_fetched_again_when_it_changes(server):
    url = f"{server.url}/a.hdf5"
    first = fetch_file(url)
    assert fetch_file(url) == first
    assert server.asked == ["HEAD /a.hdf5", "GET /a.hdf5", "HEAD /a.hdf5"]
    server.files["/a.hdf5"] = b"other"
    second = fetch_file(url)
    assert second.read_bytes() == b"other"
    assert first.read_bytes() == CONTENT
    server.down = True
    assert fetch_file(url) == second
    for path in (first, second):
        release(path)


# ---- the bound of the cache, and files in use ----------------------------------------------------

MB = 10**6


@pytest.fixture
def put(monkeypatch):
    """Fetches a file of so many megabytes under a key, used at a time in seconds."""
    monkeypatch.setenv("IMITATE_CACHE_GB", "0.01")

    def make(key, megabytes, used_at=None, held=False):
        url = f"memory://{key}/x.hdf5"
        fsspec.filesystem("memory").pipe(f"/{key}/x.hdf5", bytes(megabytes * MB))
        path = fetch(url, key, megabytes * MB)
        if used_at is not None:
            os.utime(path, (used_at, used_at))
        if not held:
            release(path)
        return path

    yield make
    for folder in remote_folder().iterdir():
        release(folder / "x.hdf5")


def test_files_that_were_not_read_for_longest_go(put):
    old, older, new = put("old", 4, 2000), put("older", 3, 1000), put("new", 2, 3000)
    last = put("last", 4)
    assert [path.exists() for path in (older, old, new, last)] == [False, True, True, True]


@pytest.mark.parametrize(
    ("keys", "more", "left"),
    [
        ({"x"}, 3 * MB, ["new", "old", "older"]),  # 2 + 4 + 1 of 10 MB
        ({"x"}, 3 * MB + 1, ["new", "old"]),
        ({"x"}, 4 * MB + 1, ["new"]),
        ({"x"}, 8 * MB + 1, []),
        ({"old"}, 7 * MB, ["new", "old", "older"]),  # its own part is replaced
        ({"x"}, 0, ["new", "old", "older"]),
    ],
)
def test_room_to_the_byte(put, keys, more, left):
    for key, size, used_at in (("old", 4, 2000), ("older", 1, 1000), ("new", 2, 3000)):
        put(key, size, used_at)
    make_room(keys, more)
    assert sorted(path.name for path in remote_folder().iterdir() if path.is_dir()) == left
    assert {path.stem for path in remote_folder().glob("*.lock")} == set(left)


def test_what_is_in_use_counts_to_the_byte(put):
    put("used", 4, held=True)
    make_room({"x"}, 6 * MB)
    with refused("limited to 0.01 GB, of which 0.004 GB are in use, but 0.006 GB are to be down"):
        make_room({"x"}, 6 * MB + 1)


def test_a_file_that_is_held_was_used_last(put):
    old, new = put("old", 4, 1000), put("new", 4, 2000)
    assert hold(old)
    release(old)
    make_room({"x"}, 5 * MB)
    assert old.exists() and not new.exists()


def test_files_that_vanish_or_cannot_be_locked(put, monkeypatch):
    make_room({"x"}, MB)  # where there is no folder yet
    path = put("a", 1)

    def vanished(lock, **how):
        shutil.rmtree(path.parent)
        return locked(lock, **how)

    def refuse(*_, **__):
        raise OSError("no locks")

    locked = store.locked
    with monkeypatch.context() as patch:
        patch.setattr(store, "locked", refuse)
        assert hold(path)  # nobody can remove it
        path.unlink()
        assert not hold(path)
    path = put("a", 1)
    with monkeypatch.context() as patch:
        patch.setattr(store, "locked", vanished)
        assert not hold(path)
        path.parent.mkdir()
        with writing(path):
            assert path.parent.is_dir() and not path.exists()


def test_several_processes_make_room_at_once(put, monkeypatch):
    """Another process removes what this one has just found."""
    put("old", 4, 2000), put("older", 3, 1000)
    size = store.size_of

    def late(folder):
        shutil.rmtree(remote_folder() / "old", ignore_errors=True)
        shutil.rmtree(remote_folder() / "older", ignore_errors=True)
        return size(folder)

    monkeypatch.setattr(store, "size_of", late)
    make_room({"new"}, 9 * MB)


def test_a_file_in_use_stays(put):
    used, old = put("used", 4, 1000, held=True), put("old", 4, 2000)
    put("new", 6)
    assert (used.exists(), old.exists()) == (True, False)


def test_a_file_that_another_process_uses_stays(put):
    path = put("theirs", 4, 1000)

    def use(say):
        say(hold(path))
        signal.pause()

    with Forked(use) as other:
        assert other.line() == "True"
        assert hold(path)  # both may read it
        release(path)
        with refused("of which 0.004 GB are in use, but 0.008 GB"):
            make_room({"x"}, 8 * MB)
        assert path.exists()
    make_room({"x"}, 8 * MB)
    assert not path.exists()
    assert not hold(path)


def test_what_does_not_fit_is_refused_before_it_is_fetched(put):
    with refused("limited to 0.01 GB|raise IMITATE_CACHE_GB, or lower train.shard_window"):
        put("large", 11)
    assert not (remote_folder() / "large" / "x.hdf5").exists()


def test_a_file_that_is_held_twice_is_released_twice(put):
    path = put("twice", 4, held=True)
    assert hold(path)
    release(path)
    with refused("in use"):
        make_room({"x"}, 8 * MB)
    release(path)
    make_room({"x"}, 8 * MB)
    assert not path.exists()


@pytest.mark.parametrize("size", ["\xb2", "9" * 5000, "-5"])
def test_a_size_that_is_no_number_counts_as_unannounced(monkeypatch, size):
    answer = io.BytesIO(b"abc")
    answer.status, answer.headers = 200, {"Content-Length": size}
    monkeypatch.setattr(download, "urlopen", lambda request, timeout: answer)
    with download.opened("http://127.0.0.1/a") as content:
        assert (content.total, b"".join(content.blocks)) == (None, b"abc")
