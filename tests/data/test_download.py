"""Downloads from a server on this machine that behaves well, and badly."""

import errno
import hashlib
import io
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import PurePosixPath
from shlex import quote
from types import SimpleNamespace
from urllib.error import HTTPError, URLError

import fsspec
import h5py
import pytest

from imitate.data.download import download
from imitate.data.download import download as module
from imitate.data.download.catalogue import PublicFile, download_public
from imitate.data.download.download import Download, UnreachableError, opened, sha256_of, wait
from tests.calling import call
from tests.refusals import refused

PATH = "/lift.hdf5"


@pytest.fixture(scope="module")
def content(tmp_path_factory, make_demo_file):
    path = tmp_path_factory.mktemp("served") / "demos.hdf5"
    return make_demo_file(path, num_demos=20, length=60).read_bytes()


@pytest.fixture
def server(content, monkeypatch, file_server):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(module, "WAIT_S", 0.001)
    with file_server() as server:
        server.files[PATH] = content
        yield server


@pytest.fixture
def file(server, content):
    digest, place = hashlib.sha256(content).hexdigest(), PurePosixPath("toy/lift.hdf5")
    url = f"{server.url}{PATH}"
    return PublicFile("toy/lift", url, place, "MIT", len(content), None, digest, horizon=400)


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "out" / "toy" / "lift.hdf5"
    path.parent.mkdir(parents=True)
    return path


def left(target):
    return sorted(path.name for path in target.parent.iterdir())


def asked(server):
    """Return the first byte of each request since the last call."""
    starts = [int(entry.partition("bytes=")[2].rstrip("-") or 0) for entry in server.asked]
    server.asked.clear()
    return starts


@pytest.mark.parametrize(
    ("unknown", "verified"),
    [((), "sha256"), (["sha256"], "size"), (["sha256", "size_bytes"], "structure")],
)
def test_a_file_arrives_whole_and_is_not_fetched_again(
    file, target, content, server, unknown, verified
):
    shutil.rmtree(target.parent)
    told, wanted = [], replace(file, **dict.fromkeys(unknown))
    first = download_public(wanted, target, on_bytes=lambda *counts: told.append(counts))
    assert target.read_bytes() == content
    assert left(target) == ["lift.hdf5"]
    assert told[-1] == (len(content), len(content))
    again = download_public(wanted, target)
    assert asked(server) == [0]
    for result, fetched in ((first, len(content)), (again, 0)):
        assert (result.verified, result.sha256) == (verified, file.sha256)
        assert (result.size_bytes, result.fetched_bytes) == (len(content), fetched)
        assert result.resumed_at == 0


def test_progress_starts_the_count_of_retries_anew(file, target, content, server):
    server.cut[PATH] = [100] * 6
    result = download_public(file, target, retries=1)
    assert target.read_bytes() == content
    assert asked(server) == [*range(0, 700, 100)]
    assert result.fetched_bytes == len(content)


def test_a_second_call_goes_on_with_what_the_first_left(file, target, content, server):
    server.cut[PATH] = [1000, 0]
    with refused("given up after 1 retries| 1000 bytes are kept"):
        download_public(file, target, retries=1)
    assert left(target) == ["lift.hdf5.part", "lift.hdf5.part.json"]
    asked(server)
    result = download_public(file, target)
    assert asked(server) == [1000]
    assert (result.resumed_at, result.fetched_bytes) == (1000, len(content) - 1000)
    assert target.read_bytes() == content
    assert left(target) == ["lift.hdf5"]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_part_that_was_complete_needs_no_byte(
    file, target, content, server, monkeypatch, is_known
):
    file = file if is_known else replace(file, size_bytes=None)
    with monkeypatch.context() as patch:
        patch.delattr(module, "give_name")  # killed before the file gets its name
        with pytest.raises(NameError):
            download_public(file, target)
    assert left(target) == ["lift.hdf5.part", "lift.hdf5.part.json"]
    result = download_public(file, target)
    assert asked(server) == ([0] if is_known else [0, len(content)])
    assert (result.fetched_bytes, target.read_bytes()) == (0, content)


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({"ranges": False}, [0, 1000]),
        ({"etag": ""}, [0, 0]),  # without a strong validator it begins anew
        ({"etag": 'W/"weak"'}, [0, 0]),
        ({"length": False}, [0, 1000]),
    ],
)
def test_servers_of_every_kind(file, target, content, server, changes, starts):
    server.cut[PATH], came = [1000], []
    vars(server).update(changes)
    download_public(file, target, on_bytes=lambda count, total: came.append(count))
    assert asked(server) == starts
    assert target.read_bytes() == content
    assert sum(came) == len(content)


def test_busy_servers_are_asked_again_after_the_pause_that_they_name(
    file, target, content, server, monkeypatch
):
    pauses = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=pauses.append))
    server.codes = [503, 429, 500]
    download_public(file, target)
    assert pauses == [0, 0, 0]
    assert target.read_bytes() == content


def test_a_file_that_changes_between_attempts_is_not_glued(file, target, server, demo_file):
    other = demo_file("other.hdf5", num_demos=20, length=60, seed=7).read_bytes()
    server.cut[PATH] = [1000]
    unknown = replace(file, size_bytes=None, sha256=None)

    def change(count, total):
        if count == 1000:
            server.files[PATH] = other

    download_public(unknown, target, on_bytes=change)
    assert target.read_bytes() == other
    assert asked(server) == [0, 1000]


@pytest.mark.parametrize(
    ("notes", "starts"),
    [
        *((notes, [0]) for notes in ("", "{", "[]", "{}", '{"url": 1}')),
        ('{"url": "http://other/lift.hdf5", "validator": "one"}', [0]),
        ('{"url": "URL", "validator": "one"}', [10**6, 0]),  # longer than the server's file
    ],
)
def test_a_part_of_another_file_is_not_used(file, target, content, server, notes, starts):
    server.etag = "one"
    target.with_name("lift.hdf5.part").write_bytes(bytes(10**6))
    target.with_name("lift.hdf5.part.json").write_text(notes.replace("URL", file.url))
    result = download_public(replace(file, size_bytes=None), target)
    assert asked(server) == starts
    assert result.resumed_at == 0
    assert target.read_bytes() == content


def test_a_server_that_stays_away(file, target, server):
    server.codes = [503] * 3
    nowhere = replace(file, url="http://127.0.0.1:9/x.hdf5")  # discard: nothing listens there
    for wanted, words in ((file, "(503 Service Unavailable"), (nowhere, "refused")):
        with refused("given up after 2 retries|", words):
            download_public(wanted, target, retries=2)


@pytest.mark.parametrize(
    ("served", "wrong", "words"),
    [
        ({"codes": [404]}, {}, "answers 404|publisher's page"),
        ({"codes": [403]}, {}, "answers 403|login"),
        ({"codes": [401]}, {}, "answers 401|login"),
        ({"codes": [410]}, {}, "answers 410|--url"),
        ({}, {"sha256": "0" * 64}, "SHA-256 is|, expected 000|catalogue|removed"),
        ({}, {"url": "file:///etc/passwd"}, "http:// or https://"),
        ({}, {"size_bytes": 5}, "bytes, expected 5"),
        ({}, {"size_bytes": 10**6}, "bytes, expected 1000000"),
        ({"files": {PATH: b"<html>"}}, {"size_bytes": None, "sha256": None}, "not an HDF5"),
    ],
)
def test_what_will_not_change_is_told_at_once_and_leaves_nothing(
    file, target, server, served, wrong, words
):
    vars(server).update(served)
    with refused(words):
        download_public(replace(file, **wrong), target)
    assert len(server.asked) <= 1
    assert left(target) == []


@pytest.mark.parametrize(
    ("size", "words", "blocks"),
    [(5, "has 100 bytes, expected 5", 1), (None, "sends more than 150 bytes without announc", 2)],
)
def test_no_more_is_read_than_a_block_beyond_the_size_or_the_most(
    file, target, server, monkeypatch, size, words, blocks
):
    monkeypatch.setattr(download, "BLOCK", 100)
    monkeypatch.setattr(module, "_MOST_UNANNOUNCED", 150)
    server.length, came = False, []
    with refused(words):
        wanted = replace(file, size_bytes=size)
        download_public(wanted, target, on_bytes=lambda count, total: came.append(count))
    assert sum(came) == 100 * blocks
    assert left(target) == []


def test_another_file_of_that_name_is_replaced_only_with_overwrite(file, target, server, demo_file):
    own = shutil.copy(demo_file("own.hdf5", seed=9), target).read_bytes()
    for known in (file, replace(file, sha256=None)):
        with refused("exists already, with other content|--overwrite"):
            download_public(known, target)
    server.codes = [404]
    with refused("answers 404"):
        download_public(file, target, overwrite=True)
    assert target.read_bytes() == own
    download_public(file, target, overwrite=True)
    assert sha256_of(target) == file.sha256


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize(
    ("demos", "words"), [((), "contains no demo"), (("demo_0",), "demo 'demo_0' has no 'actions'")]
)
def test_a_file_without_demos_or_actions_is_refused(
    file, target, server, tmp_path, demos, words, existed
):
    made = target if existed else tmp_path / "made.hdf5"
    with h5py.File(made, "w") as written:
        data = written.create_group("data")
        for demo in demos:
            data.create_group(demo)
    server.files[PATH] = made.read_bytes()
    with refused(f"{target}: " if existed else ": ", words):
        download_public(replace(file, size_bytes=None, sha256=None), target)
    assert target.exists() is existed


@pytest.mark.parametrize("values", [{}, {"size_bytes": None, "about_bytes": 10**6}])
def test_a_disk_that_is_too_small_is_told_before_a_byte_is_written(
    file, target, server, monkeypatch, values
):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(100, 90, 10))
    server.length = False
    with refused("0.00 GB free|--out"):
        download_public(replace(file, **values), target)
    assert not target.exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "the disk is full; 100 bytes are kept: free"), (errno.EIO, "cannot be writ")],
)
def test_a_disk_that_fails_keeps_what_came(file, target, content, server, monkeypatch, code, words):
    def fail(count, total):
        if count:
            raise OSError(code, "of the disk")

    with monkeypatch.context() as patch, refused(words):
        patch.setattr(download, "BLOCK", 100)
        download_public(file, target, on_bytes=fail)
    download_public(file, target)
    assert asked(server) == [0, 100]
    assert target.read_bytes() == content


# ---- one request, without a server ---------------------------------------------------------------

URL = "http://host/a.hdf5"


@pytest.fixture
def answer(monkeypatch):
    """Answers requests with a status and headers, or raises an error; returns the requests with their time limits."""
    asked = []

    def make(*answers):
        left = list(answers)

        def urlopen(request, timeout):
            asked.append((request, timeout))
            status, headers = left.pop(0)
            if isinstance(status, Exception):
                raise status
            if status >= 400:
                raise HTTPError(URL, status, "Reason", headers, io.BytesIO())
            body = io.BytesIO(b"content")
            body.status, body.headers = status, headers
            return body

        monkeypatch.setattr(module, "urlopen", urlopen)
        return asked

    return make


@pytest.mark.parametrize(
    ("start", "tag", "answers", "found"),
    [
        (0, "", [(200, {"ETag": '"a"', "Content-Length": "7"})], (0, 7, '"a"')),
        (0, "", [(200, {})], (0, None, "")),
        (0, "", [(200, {"ETag": 'W/"a"', "Last-Modified": "now"})], (0, None, "now")),
        (0, "", [(200, {"ETag": 'W/"a"'})], (0, None, 'W/"a"')),
        (0, "", [(200, {"ETag": '"a"', "Last-Modified": "now"})], (0, None, '"a"')),
        (0, "", [(200, {"Last-Modified": "now", "Content-Length": "x"})], (0, None, "now")),
        (3, '"a"', [(206, {"Content-Range": "bytes 3-6/7"})], (3, 7, "")),
        (3, "", [(206, {"Content-Range": "bytes 3-6/*"})], (3, None, "")),
        (3, "", [(206, {"Content-Range": "bytes 2-6/7"}), (200, {"ETag": "x"})], (0, None, "x")),
        (7, "", [(416, {"Content-Range": "bytes */7"})], (7, 7, "")),
        (7, "", [(416, {"Content-Range": "bytes */6"}), (200, {})], (0, None, "")),
    ],
)
def test_answers(answer, start, tag, answers, found):
    asked = answer(*answers)
    with opened(URL, start, tag) as content:
        assert (content.start, content.total, content.tag) == found
        assert b"".join(content.blocks) == (
            b"" if answers[0][0] == 416 and found[0] else b"content"
        )
    (first, timeout), *more = asked
    wanted = {"Accept-encoding": "identity", "User-agent": "imitate"}
    wanted |= {"Range": f"bytes={start}-"} if start else {}
    wanted |= {"If-range": tag} if tag else {}
    assert (dict(first.header_items()), timeout, first.method) == (wanted, 60.0, "GET")
    assert [request.has_header("Range") for request, _ in more] == [False] * (len(answers) - 1)


def test_a_request_for_the_size_alone_and_one_without_the_file(answer):
    asked = answer((200, {"Content-Length": "9"}), (204, {}))
    with opened(URL, head_only=True) as content:
        assert content.total == 9
    assert asked[0][0].method == "HEAD"
    with pytest.raises(UnreachableError, match="the server answers 204 without sending the file"):
        opened(URL).__enter__()


@pytest.mark.parametrize(
    ("code", "pause", "words", "wait_s"),
    [
        *((code, "7", "Reason", 7.0) for code in (408, 425, 429, 500, 502, 503, 504)),
        (503, "soon", "503 Reason", None),
        (URLError("no route"), "", "no route", None),
        (ValueError(), "", "ValueError", None),
        (ValueError("a\nb"), "", "^a$", None),
    ],
)
def test_errors_that_may_pass(answer, code, pause, words, wait_s):
    answer((code, {"Retry-After": pause}))
    with pytest.raises(UnreachableError, match=words) as error, opened(URL):
        pass
    assert error.value.wait_s == wait_s


@pytest.mark.parametrize(
    ("code", "words"),
    [
        *((code, f"the server answers {code} Reason: correct the address") for code in (404, 501)),
        *((code, f"the server answers {code} Reason: it requires a login") for code in (401, 403)),
        (FileNotFoundError(), "there is no such file: correct the address"),
        (PermissionError("x"), "access is denied (x): check the credentials of its store"),
    ],
)
def test_errors_that_stay(answer, code, words):
    answer((code, {}))
    with refused(f"{URL}: {words}"), opened(URL):
        pass


def test_pauses_double_up_to_a_minute(monkeypatch):
    assert (module.RETRIES, module.WAIT_S, module.BLOCK) == (5, 1.0, 2**20)
    pauses = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=pauses.append))
    for words in ((1,), (2,), (6,), (7,), (1, 7.0), (1, 61.0), (3, 0.0)):
        wait(*words)
    assert pauses == [1.0, 2.0, 32.0, 60.0, 7.0, 60.0, 0.0]


@pytest.mark.parametrize(("missing", "words"), [(0, None), (1, "has 0.07 GB free, but 'a' needs")])
def test_64_mebibytes_of_the_disk_are_left_free(tmp_path, server, monkeypatch, missing, words):
    server.files["/a"] = bytes(100)
    free = 100 + 2**26 - missing
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    download = Download(f"{server.url}/a", tmp_path / "a")
    if words is None:
        download.run()
        assert (download.received, (tmp_path / "a").read_bytes()) == (100, bytes(100))
        return
    with refused(f"{tmp_path}: {words} 0.00 GB more: free some space, or choose another folder"):
        download.run()


@pytest.mark.parametrize(("size", "fits"), [(0, True), (1, False)])
def test_a_full_disk_is_enough_for_nothing(tmp_path, server, monkeypatch, size, fits):
    server.files["/a"] = bytes(size)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    download = Download(f"{server.url}/a", tmp_path / "a")
    if fits:
        download.run()
        assert (tmp_path / "a").read_bytes() == b""
    else:
        with refused("has 0.00 GB free"):
            download.run()


def test_a_resumed_file_needs_room_for_the_rest_alone(tmp_path, server, monkeypatch):
    def stop(count, total):
        came.append(count)
        if count == 50:
            raise InterruptedError

    came, target = [], tmp_path / "x" / "y" / "a"
    server.files["/a"] = bytes(range(100))
    monkeypatch.setattr(module, "BLOCK", 50)
    with pytest.raises(InterruptedError):
        Download(f"{server.url}/a", target, 100, identified=True, on_bytes=stop).run()
    assert (came, left(target)) == ([0, 0, 50], ["a.part"])  # no notes: the path says what it is
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=50 + 2**26))
    download = Download(f"{server.url}/a", target, 100, identified=True)
    download.run()
    assert (target.read_bytes(), download.resumed_at) == (bytes(range(100)), 50)


@pytest.mark.parametrize(
    ("size", "announced", "known", "words"),
    [
        (100, False, 100, None),
        (101, False, 100, "has 101 bytes, expected 100; the downloaded file was removed"),
        (250, True, 100, "has 150 bytes, expected 100"),  # no more than a block is read
        (150, False, None, None),
        (151, False, None, "sends more than 150 bytes without announcing the size"),
        (250, True, None, None),
    ],
)
def test_sizes_to_the_byte(tmp_path, server, monkeypatch, size, announced, known, words):
    server.files["/a"], server.length = bytes(size), announced
    monkeypatch.setattr(module, "BLOCK", 50)
    monkeypatch.setattr(module, "_MOST_UNANNOUNCED", 150)
    download = Download(f"{server.url}/a", tmp_path / "a", known)
    if words is None:
        download.run()
        assert (tmp_path / "a").stat().st_size == size
        return
    with refused(f"{server.url}/a: {words}"):
        download.run()
    assert list(tmp_path.iterdir()) == []


def test_retries_that_are_given_up_are_counted(tmp_path, server, monkeypatch):
    server.down, pauses = True, []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=pauses.append))
    with refused(
        f"{server.url}/a: given up after 5 retries (503 Service Unavailable); 0 bytes are"
    ):
        Download(f"{server.url}/a", tmp_path / "a").run()
    assert len(server.asked) == 6 and len(pauses) == 5


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_lists():
    text = call("dataset download --list").stdout
    assert "robomimic/lift/ph/low_dim " in text and "CC-BY-4.0" in text
    entries = call.json("dataset download --list mimicgen/source/*")
    assert len(entries) == 12 and {entry["licence"] for entry in entries} == {"CC-BY-4.0"}


def test_the_command_downloads_from_a_mirror(server, tmp_path, content):
    for task in ("lift", "can"):
        server.files[f"/mirror/v1.5/{task}/mh/low_dim_v15.hdf5"] = content
    names = ("robomimic/lift/mh/low_dim", "robomimic/can/mh/low_dim")
    arguments = (*names, "--url", f"{server.url}/mirror", "--out", tmp_path)
    result = call("dataset download", *arguments)
    for name in names:
        assert (tmp_path / f"{name}_v15.hdf5").read_bytes() == content
    words = "no checksum is known for this file: verified by HDF5 structure"
    assert result.stdout.count(words) == 2
    assert "its SHA-256 is " in result.stdout and "licence MIT" in result.stdout
    again = call.json("dataset download", *arguments)
    assert [entry["fetched_bytes"] for entry in again] == [0, 0]


def test_the_command_refuses_what_the_catalogue_does_not_know(server, tmp_path, content):
    server.files["/v1.5/lift/ph/low_dim_v15.hdf5"] = content
    for words, said in (
        ("robomimic/lift/ph/lowdim", "did you mean 'robomimic/lift/ph/low_dim'"),
        ("", "no files are named: give names"),
        (
            f"robomimic/lift/ph/low_dim --url {server.url} --out {quote(str(tmp_path))}",
            "expected 21084088",
        ),
    ):
        assert said in call(f"dataset download {words}", code=2).stderr


def test_the_rest_of_a_file_of_a_store_if_it_is_the_same():
    store = fsspec.filesystem("memory")
    store.pipe("/rest/a.hdf5", b"0123456789")
    tag = str(store.info("/rest/a.hdf5")["created"])
    for start, given, first in ((0, "", 0), (4, "", 4), (4, tag, 4), (4, "another", 0)):
        with opened("memory://rest/a.hdf5", start, given) as content:
            assert (content.start, content.total, content.tag) == (first, 10, tag)
            assert b"".join(content.blocks) == b"0123456789"[first:]
