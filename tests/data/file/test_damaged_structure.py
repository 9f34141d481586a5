"""Files of a wrong structure end in one line; nothing of them hangs, fills memory or moves a cursor."""

import errno
import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, SequenceDataset
from imitate.errors import UserError, nearest, printable
from tests.calling import call

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
ATTRIBUTES = [
    [1, 2, 3],
    np.zeros(0),
    np.nan,
    b"\xff\xfe",
    "null",
    "[1]",
    '{"env_name": "x", "type": 4, "env_kwargs": null}',
    '{"env_name": "x", "type": 4, "env_kwargs": [1]}',
    '{"env_name": 3, "type": "x", "env_kwargs": {"control_freq": "x"}}',
    DEEP,
    "\x1b[31m",
    h5py.Empty("f4"),
]
NAMES = ["num_samples", "success", "env_args", "total", "control_freq", "language", "encoding"]
ARRAYS = [
    np.zeros(12),
    np.zeros((12, 0)),
    np.zeros((0, 7)),
    np.zeros((12, 7), "S3"),
    np.zeros((12, 3), complex),
    np.zeros((12, 7), [("a", "f4"), ("b", "i4")]),
    np.full((12, 7), np.nan),
    np.zeros((12, 2, 2, 2, 2)),
    np.zeros((12, 0, 0, 3), np.uint8),
    np.float64(3),
    h5py.Empty("f4"),
]
HUGE = [(10**12, 7), (12, 10**11), (2**40,), (3, 10**5, 10**5, 3)]
PLACES = ["actions", "rewards", "obs/object", "obs/agentview_image", "next_obs/object", "obs"]
LINK_NAMES = [b"\xff\xfe", b"a\x1b[2J", b"demo_9\xe2\x80\x8b"]
COMMANDS = [
    ("info", "FILE"),
    ("dataset", "doctor", "FILE"),
    ("dataset", "stats", "FILE"),
    ("dataset", "split", "FILE", "--success", "--overwrite", "--out", "OUT"),
]


def put(path, value):
    def change(file):
        del file[path]
        file[path] = value

    return change


def claim(path, shape):
    def change(file):
        del file[path]
        file.create_dataset(path, shape=shape, dtype="f4", chunks=True)

    return change


def attribute(path, name, value):
    def change(file):
        file[path].attrs[name] = value

    return change


def renamed(path, name):
    def change(file):
        parent = file[path].parent.id
        parent.links.move(path.rpartition("/")[2].encode(), parent, name)

    return change


def changes():
    """A fixed list of cases; each object meets each kind of change, values drawn with a fixed seed."""
    random = np.random.default_rng(5)

    def one(items):
        return items[random.integers(len(items))]

    for place in PLACES:
        path = f"data/demo_1/{place}"
        yield f"{place} value", put(path, one(ARRAYS))
        yield f"{place} huge", claim(path, one(HUGE))
        yield f"{place} renamed", renamed(path, one(LINK_NAMES))
    for name in NAMES:
        yield f"{name} of data", attribute("data", name, one(ATTRIBUTES))
    for name in ("num_samples", "success"):
        yield f"{name} of a demo", attribute("data/demo_0", name, one(ATTRIBUTES))
    for value in ATTRIBUTES:
        if not isinstance(value, str) or len(value) < 60_000:
            yield f"env_args {str(value)[:20]}", attribute("data", "env_args", value)
    yield "no group data", put("data", np.zeros(3))
    yield "no mask group", put("mask", np.zeros(3))
    yield "a mask of numbers", put("mask/train", np.zeros(3))
    yield "a demo that is an array", put("data/demo_1", np.zeros(3))
    yield "wider actions, shorter next_obs", put("data/demo_1/next_obs/object", np.zeros((12, 7)))
    yield "actions that are true or false", put("data/demo_1/actions", np.zeros((12, 7), bool))
    yield "a demo renamed", renamed("data/demo_1", b"\xff\xfe")


@pytest.fixture(scope="module")
def base(tmp_path_factory, make_demo_file):
    path = tmp_path_factory.mktemp("base") / "base.hdf5"
    return make_demo_file(path, num_demos=3, image=True, filter_keys={"train": [0, 1]})


@pytest.mark.later
@pytest.mark.parametrize("case", list(changes()), ids=lambda case: case[0].replace("/", "-"))
def test_every_command_ends_in_words(base, tmp_path, case):
    path = tmp_path / "a.hdf5"
    shutil.copy(base, path)
    with h5py.File(path, "r+") as file:
        case[1](file)
    for words in COMMANDS:
        places = {"FILE": str(path), "OUT": str(tmp_path / "out.hdf5")}
        done = call("", *(places.get(word, word) for word in words), code=None)
        assert "\x1b" not in done.output
        assert done.exit_code != 2 or len(done.stderr.splitlines()) == 1
        (tmp_path / "out.hdf5").unlink(missing_ok=True)
    try:
        dataset = SequenceDataset(path, obs_keys=("object", "agentview_image"))
        dataset[0]
        dataset.statistics()
    except UserError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize("verb", ["doctor", "report"])
def test_sizes_that_are_only_claimed_are_not_read(demo_file, tmp_path, verb):
    path = demo_file(num_demos=1)
    with h5py.File(path, "r+") as file:
        claim("data/demo_0/obs/object", (10**12, 7))(file)
    out = ["--out", str(tmp_path / "page.html")] if verb == "report" else []
    done = call(f"dataset {verb}", path, *out, code=None)
    said = done.output + (tmp_path / "page.html").read_text() if out else done.output
    assert "claims 2.61e+04 GiB, but 0 MiB are stored" in said


def test_large_arrays_that_are_stored_are_read(demo_file):
    path = demo_file(num_demos=1, length=4)
    with h5py.File(path, "r+") as file:
        zeros = np.zeros((4, 2**22), np.float64)
        file["data/demo_0"].create_dataset("obs/zeros", data=zeros, compression="gzip")
    with DatasetFile(path) as file:
        assert file.read("demo_0", "obs/zeros").sum() == 0


def test_names_that_only_look_alike_are_told_apart():
    assert nearest("demo_9", ["demo_9\u200b"]).startswith(r"did you mean 'demo_9\u200b', which has")
    assert nearest("demo_9", ["d\u0435mo_9"]).startswith(r"did you mean 'd\u0435mo_9', which has")
    assert nearest("größe", ["größen"]) == "did you mean 'größen'?"
    assert nearest("demo_8", ["demo_9"]) == "did you mean 'demo_9'?"


def test_text_for_a_terminal():
    assert printable("a\x1b[2J\udcff\r\u202eb\tc\nd é") == "a\\x1b[2J\\udcff\\r\\u202eb\tc\nd é"


def test_a_name_of_a_file_does_not_reach_the_terminal(demo_file):
    path = demo_file(names=["\x1b[31mred", "b", "c", "d"], filter_keys={"\x1b[2Jmask": [0, 1]})
    for line, code in (
        ("info", 0),
        ("dataset doctor", None),
        ("dataset delete --demos redd -o x", 2),
    ):
        assert "\x1b" not in call(line, path, code=code).output


def test_a_disk_that_cannot_be_written_is_one_line(demo_file, tmp_path, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    path = demo_file()
    for name in ("unlink", "write_text", "write_bytes"):
        monkeypatch.setattr(Path, name, refuse)
    out = tmp_path / "a.html"
    done = call("dataset report", path, "-o", out, code=2)
    assert len(done.stderr.splitlines()) == 1
    assert "a.html" in done.stderr and "Read-only file system" in done.stderr


def test_a_place_that_cannot_be_written_is_one_line_for_every_command(monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/there/r.json")

    monkeypatch.setattr("imitate.cli.reports.dataset.describe", refuse)
    monkeypatch.setattr("imitate.cli.info._kind", lambda path: "dataset")
    done = call("info x.hdf5", code=2)
    assert done.stderr.startswith("error: /there/r.json: cannot be read or written (Permission")


def test_env_args_without_kwargs_are_read(demo_file):
    path = demo_file()
    with h5py.File(path, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(
            {"env_name": "x", "type": 4, "env_kwargs": None}
        )
    with DatasetFile(path) as file:
        assert file.env_meta["env_kwargs"] == {}
