"""Downloads from a server on this machine that behaves well, and badly."""

import hashlib
import json
import os
import shutil
import threading
from collections import namedtuple
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath

import pytest
from typer.testing import CliRunner

from imitate.cli.dataset.dataset import app
from imitate.data.download import download as module
from imitate.data.download.catalogue import PublicFile
from imitate.data.download.download import download, sha256_of
from imitate.errors import DatasetError, UserError
from tests.refusals import refused


class Server(ThreadingHTTPServer):
    """Serves one content at every path.

    Attributes:
        content: the bytes.
        etag: its validator; None: none is sent.
        ranges: whether parts are served.
        drops: of the next answers, after how many bytes the connection is cut.
        codes: of the next answers, the status in place of 200.
        length: whether Content-Length is sent.
        asked: header Range of each request.
    """

    daemon_threads = True

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.etag, self.ranges, self.length = content, '"one"', True, True
        self.drops, self.codes, self.asked = [], [], []
        self.change_after = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        start, size = 0, len(server.content)
        if wanted and server.ranges and self.headers.get("If-Range") == server.etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        code, body = 206 if start else 200, server.content[start:]
        if server.codes or start >= size:
            code, body = server.codes.pop(0) if server.codes else 416, b""
        self.send_response(code)
        part = f"{start}-{size - 1}" if start < size else "*"
        headers = {
            "Retry-After": "0",
            "ETag": server.etag,
            "Content-Length": str(len(body)) if server.length else None,
            "Content-Range": f"bytes {part}/{size}" if start else None,
        }
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: server.drops.pop(0)] if server.drops and body else body)
        if server.change_after is not None:
            (server.content, server.etag), server.change_after = server.change_after, None


@pytest.fixture(scope="module")
def content(tmp_path_factory, make_demo_file):
    path = tmp_path_factory.mktemp("served") / "demos.hdf5"
    return make_demo_file(path, num_demos=20, length=60).read_bytes()


@pytest.fixture
def server(content, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server(content) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


@pytest.fixture
def file(server, content):
    return PublicFile(
        name="toy/lift",
        url=f"{server.url}/lift.hdf5",
        place=PurePosixPath("toy/lift.hdf5"),
        licence="MIT",
        size_bytes=len(content),
        about_bytes=None,
        sha256=hashlib.sha256(content).hexdigest(),
        horizon=400,
    )


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out" / "toy" / "lift.hdf5"


def left(target):
    return sorted(path.name for path in target.parent.iterdir())


def get(file, target, **values):
    return download(file, target, wait_s=0.001, **values)


def test_a_file_arrives_whole_and_nothing_else_is_left(file, target, content):
    told = []
    result = get(file, target, on_bytes=lambda done, total: told.append((done, total)))
    assert target.read_bytes() == content
    assert left(target) == ["lift.hdf5"]
    assert (result.verified, result.sha256) == ("sha256", file.sha256)
    assert (result.size_bytes, result.fetched_bytes) == (len(content), len(content))
    assert result.resumed_at == 0
    assert told[-1] == (len(content), len(content))


def test_a_connection_that_breaks_is_taken_up_where_it_broke(file, target, content, server):
    server.drops = [1000, 500]
    result = get(file, target)
    assert target.read_bytes() == content
    assert server.asked == [None, "bytes=1000-", "bytes=1500-"]
    assert result.fetched_bytes == len(content)


def test_progress_starts_the_count_of_retries_anew(file, target, content, server):
    server.drops = [100] * 6
    get(file, target, retries=1)
    assert target.read_bytes() == content


def test_a_second_call_goes_on_with_what_the_first_left(file, target, content, server):
    server.drops = [1000, 0, 0]
    with pytest.raises(DatasetError, match="given up after 1 retries.*1000 bytes are kept"):
        get(file, target, retries=1)
    assert left(target) == ["lift.hdf5.part", "lift.hdf5.part.json"]
    server.asked.clear()
    server.drops.clear()
    result = get(file, target)
    assert server.asked == ["bytes=1000-"]
    assert (result.resumed_at, result.fetched_bytes) == (1000, len(content) - 1000)
    assert target.read_bytes() == content
    assert left(target) == ["lift.hdf5"]


def test_a_part_that_was_complete_needs_no_byte(file, target, content, server, monkeypatch):
    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            get(file, target)
    assert not target.exists()
    result = get(file, target)
    assert server.asked == [None, f"bytes={len(content)}-"]
    assert (result.fetched_bytes, target.read_bytes()) == (0, content)


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"ranges": False, "drops": [1000]}, [None, "bytes=1000-"]),
        (
            {"etag": None, "drops": [1000]},
            [None, None],
        ),  # without a strong validator it begins anew
        ({"etag": 'W/"weak"', "drops": [1000]}, [None, None]),
        ({"length": False, "drops": [1000]}, [None, "bytes=1000-"]),
        ({"codes": [503, 429, 500]}, [None] * 4),  # busy servers are asked again
    ],
)
def test_servers_of_every_kind(file, target, content, server, changes, asked):
    vars(server).update(changes)
    get(file, target)
    assert server.asked == asked
    assert target.read_bytes() == content


def test_a_file_that_changes_between_attempts_is_not_glued(
    file, target, content, server, demo_file
):
    other = demo_file("other.hdf5", num_demos=20, length=60, seed=7).read_bytes()
    server.drops, server.change_after = [1000], (other, '"two"')
    get(replace(file, size_bytes=None, sha256=None), target)
    assert target.read_bytes() == other
    assert server.asked == [None, "bytes=1000-"]


def test_a_part_of_another_address_is_not_used(file, target, content, server):
    server.drops = [1000, 0]
    with pytest.raises(DatasetError):
        get(file, target, retries=0)
    server.drops.clear()
    server.asked.clear()
    get(replace(file, url=f"{server.url}/mirror/lift.hdf5"), target)
    assert server.asked == [None]
    assert target.read_bytes() == content


@pytest.mark.parametrize("notes", ["", "{", "[]", "{}", '{"url": 1}'])
def test_notes_that_cannot_be_read_are_not_trusted(file, target, content, server, notes):
    target.parent.mkdir(parents=True)
    target.with_name("lift.hdf5.part").write_bytes(b"something else")
    target.with_name("lift.hdf5.part.json").write_text(notes)
    get(file, target)
    assert server.asked == [None]
    assert target.read_bytes() == content


def test_a_server_that_stays_away(file, target, server):
    server.codes = [503] * 3
    with refused("given up after 2 retries (503 Service Unavailable"):
        get(file, target, retries=2)
    nowhere = "http://127.0.0.1:9/x.hdf5"  # discard: nothing listens there
    with refused("given up after 1 retries|refused"):
        get(replace(file, url=nowhere), target, retries=1)


@pytest.mark.parametrize(
    ("served", "wrong", "words"),
    [
        ({"codes": [404]}, {}, "answers 404|publisher's page"),
        ({"codes": [403]}, {}, "answers 403|login"),
        ({"codes": [401]}, {}, "answers 401|login"),
        ({"codes": [410]}, {}, "answers 410|--url"),
        ({}, {"sha256": "0" * 64}, "SHA-256 is|but 000|in the catalogue|removed"),
        ({}, {"size_bytes": 5}, "bytes, but 5 in the catalogue"),
        ({"content": b"<html>log in</html>"}, {"size_bytes": None, "sha256": None}, "not an HDF5"),
    ],
)
def test_what_will_not_change_is_told_at_once_and_leaves_nothing(
    file, target, server, served, wrong, words
):
    vars(server).update(served)
    with refused(words):
        get(replace(file, **wrong), target)
    assert len(server.asked) == 1
    assert left(target) == []


def test_only_http(file, target):
    with refused("http:// or https://"):
        get(replace(file, url="file:///etc/passwd"), target)


@pytest.mark.parametrize(
    ("values", "verified"),
    [({"sha256": None}, "size"), ({"sha256": None, "size_bytes": None}, "structure")],
)
def test_without_a_checksum_it_says_by_what_it_was_verified(file, target, values, verified):
    result = get(replace(file, **values), target)
    assert (result.verified, result.sha256) == (verified, file.sha256)


def test_no_more_is_read_than_a_block_beyond_the_size(file, target, server, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 100)
    server.length, came = False, []
    with pytest.raises(DatasetError, match="has 100 bytes, but 5 in the catalogue"):
        download(
            replace(file, size_bytes=5), target, on_bytes=lambda done, total: came.append(done)
        )
    assert came == [100]


def test_of_an_unknown_size_no_more_is_read_than_the_most(file, target, server, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 100)
    monkeypatch.setattr(module, "_MOST_UNANNOUNCED", 150)
    server.length, came = False, []
    with refused("sends more than 150 bytes without announcing the size"):
        download(
            replace(file, size_bytes=None), target, on_bytes=lambda done, total: came.append(done)
        )
    assert came == [100, 200]
    assert not list(target.parent.glob("*.part*"))


def test_a_file_that_is_there_is_verified_not_fetched(file, target, server):
    get(file, target)
    server.asked.clear()
    result = get(file, target)
    assert (result.fetched_bytes, result.verified, server.asked) == (0, "sha256", [])


def test_another_file_of_that_name_is_not_touched_without_overwrite(file, target, demo_file):
    target.parent.mkdir(parents=True)
    own = demo_file("own.hdf5", seed=9)
    shutil.copy(own, target)
    with pytest.raises(DatasetError, match="exists already, with other content.*--overwrite"):
        get(file, target)
    assert target.read_bytes() == own.read_bytes()
    get(file, target, overwrite=True)
    assert sha256_of(target) == file.sha256


def test_overwrite_that_fails_keeps_the_old_file(file, target, server, demo_file):
    target.parent.mkdir(parents=True)
    shutil.copy(demo_file("own.hdf5", seed=9), target)
    before = target.read_bytes()
    server.codes = [404]
    with pytest.raises(DatasetError):
        get(file, target, overwrite=True)
    assert target.read_bytes() == before


def test_a_disk_that_is_too_small_is_told_before_a_byte_is_written(file, target, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(100, 90, 10))
    with pytest.raises(DatasetError, match="0.00 GB free.*--out"):
        get(file, target)
    assert not target.exists()


# ---- the command ---------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["download", *map(str, arguments)])


def test_the_command_lists():
    result = run("--list")
    assert result.exit_code == 0
    assert "robomimic/lift/ph/low_dim " in result.stdout and "CC-BY-4.0" in result.stdout
    entries = json.loads(run("--list", "--json", "mimicgen/source/*").stdout)
    assert len(entries) == 12 and {entry["licence"] for entry in entries} == {"CC-BY-4.0"}


def test_the_command_downloads_from_a_mirror(server, tmp_path, content):
    names = ("robomimic/lift/mh/low_dim", "robomimic/can/mh/low_dim")
    result = run(*names, "--url", server.url, "--out", tmp_path / "d")
    assert result.exit_code == 0, result.output
    for task in ("lift", "can"):
        assert (tmp_path / f"d/robomimic/{task}/mh/low_dim_v15.hdf5").read_bytes() == content
    words = "no checksum is known for this file: verified by HDF5 structure"
    assert result.stdout.count(words) == 2
    assert "its SHA-256 is " in result.stdout and "licence MIT" in result.stdout
    again = json.loads(run(*names, "--url", server.url, "--out", tmp_path / "d", "--json").stdout)
    assert [entry["fetched_bytes"] for entry in again] == [0, 0]


def test_the_command_refuses_what_the_catalogue_does_not_know(server, tmp_path):
    result = run("robomimic/lift/ph/lowdim")
    assert isinstance(result.exception, UserError)
    assert "did you mean 'robomimic/lift/ph/low_dim'" in str(result.exception)
    assert isinstance(run().exception, UserError)
    result = run("robomimic/lift/ph/low_dim", "--url", server.url, "--out", tmp_path)
    assert isinstance(result.exception, DatasetError)
    assert "21084088 in the catalogue" in str(result.exception)
