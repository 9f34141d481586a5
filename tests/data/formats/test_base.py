"""Formats in general: words of a report, errors of reading and writing, sizes, and which format is found."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from imitate.data.file.confined import OutsideFileError
from imitate.data.formats import base as module
from imitate.data.formats import registry
from imitate.data.formats.base import ConversionReport, Format, OpenedDataset, Options
from imitate.errors import DatasetError, UserError
from tests.refusals import refused

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 9\n".format("0" * 64)


def test_a_report_in_lines():
    report = ConversionReport("a", "A", "b", "B", demos=1, steps=2)
    assert report.lines() == ["a (A) -> b (B): 1 demo, 2 steps"]
    for _ in range(2):
        report.keep("x", "y", "x")
        report.note("n")
    report.renamed["o"], report.changed["c"], report.dropped["d"] = "p", "1", "2"
    report.synthesised["s"], report.doubts["q"] = "3", "4"
    assert report.lines()[1:] == [
        *("  kept: x, y", "  renamed: o -> p", "  changed: c: 1", "  synthesised: s: 3"),
        *("  dropped: d: 2", "  warning: q: 4", "  note: n"),
    ]
    assert report.to_dict()["kept"] == ["x", "y"]
    assert Options(fps=0.0, env="e").given() == ["env", "fps"]


def test_defaults():
    opened = OpenedDataset({}, iter(()))
    assert (opened.count, opened.images, opened.lossy_images) == (None, "raw", False)
    assert not Format("a", "b", bool, None).needs_replay
    report = ConversionReport()
    assert (report.demos, report.steps) == (0, 0)
    assert module.robot_meta("arm") == {"env_name": "arm", "type": 4, "env_kwargs": {}}
    assert module.gymnasium_meta("E-v0", report) == {
        "env_name": "E-v0",
        "type": 2,
        "env_kwargs": {},
    }
    assert report.synthesised == {}
    assert module.gymnasium_meta(None, report)["env_name"] == "unknown"
    assert report.synthesised["env_args"].startswith("env_name 'unknown': the file names no")


@pytest.mark.parametrize(
    ("options", "env_id", "steps"),
    [
        (Options(horizon=7), "Pendulum-v1", 7),
        (Options(), None, None),
        (Options(), "Pendulum-v1", 200),
        (Options(), "some.module:Pendulum-v1", 200),
        (Options(), "NoSuch-v1", None),
    ],
)
def test_the_clock(options, env_id, steps):
    assert module.clock_of(options, env_id) == steps


def test_lengths_and_optional_modules():
    assert module.same_length({"a": 3, "b": 3, "c": 3}, "x") == 3
    with refused("x: 'c' has 1 row, but 'a' has 3: the file is cut short"):
        module.same_length({"a": 3, "b": 3, "c": 1}, "x")
    assert module.extra("errno", "lerobot") is errno
    with refused("this format cannot be read or written: |no_such_module"):
        module.extra("no_such_module", "lerobot")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DatasetError("FILE: bad"), "^FILE: bad"),
        (DatasetError("bad"), "^FILE: bad"),
        (OutsideFileError("bad"), "^FILE: bad"),
        (UserError("bad"), "^bad"),
        (ValueError("one\ntwo"), "^FILE: cannot be read (ValueError: one): it is cut short"),
        (KeyError(), "^FILE: cannot be read (KeyError: ): it is"),
    ],
)
def test_errors_of_reading(tmp_path, error, words):
    path = tmp_path / "a"
    path.touch()
    error = type(error)(str(error).replace("FILE", str(path))) if error.args else error
    words = words.replace("FILE", str(path))[1:]
    with refused(words, error=UserError) as caught, module.reading(path):
        raise error
    assert str(caught.value).startswith(words)
    known = isinstance(error, UserError)
    assert type(caught.value) is (type(error) if known else DatasetError)
    path.unlink()
    path.mkdir()
    (path / "b").write_text(POINTER)
    if not isinstance(error, DatasetError):
        with refused(f"{path / 'b'}: |Git LFS"), module.reading(path):
            raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DatasetError("a.part is bad"), "a is bad"),
        (DatasetError("b is bad"), "b is bad"),
        (UserError("a.part is bad"), "a.part is bad"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no letter"), "a: the source has a name or"),
        (OSError(errno.ENOSPC, "?"), f"a: cannot be written ({os.strerror(errno.ENOSPC)}): make"),
        (RuntimeError("one\ntwo"), "a: cannot be written (one): make room"),
        (OSError(), "a: cannot be written (): make room"),
    ],
)
def test_errors_of_writing(error, words):
    with pytest.raises(UserError) as caught, module.writing(Path("a"), Path("a.part")):
        raise error
    assert str(caught.value).startswith(words)


def test_sizes_and_pointers_below_a_folder(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "check_claim", lambda *words: seen.append(words[1:]))
    (tmp_path / "a/b").mkdir(parents=True)
    for name, size in (("a/one", 5), ("a/b/two", 7)):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    (tmp_path / "a/none").symlink_to(tmp_path / "no")
    assert module.stored_bytes(tmp_path / "a/one") == 5
    assert module.stored_bytes(tmp_path) == 12
    (tmp_path / "a/none").unlink()
    assert seen == [(5, 5), (7, 7)]
    visited, stat = [], os.stat
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *a, **k: visited.append(a) or stat(*a, **k))
        assert sorted(file.name for file in module.files_below(tmp_path)) == ["one", "two"]
    assert len(visited) == 4  # the folder itself, a, a/b and the link, which is not followed
    assert module.first_pointer(tmp_path) is None
    for name in ("0.md", "9.mp4", "8.parquet"):
        (tmp_path / name).write_text(POINTER)
    assert module.first_pointer(tmp_path) == tmp_path / "8.parquet"
    os.mkfifo(tmp_path / "pipe")
    with refused(f"{tmp_path / 'pipe'}: is not a regular file"):
        module.stored_bytes(tmp_path)


# ---- which format --------------------------------------------------------------------------------


def point(name, found=None):
    def load():
        if found is None:
            raise ImportError("gone")
        return found

    return SimpleNamespace(name=name, value="pkg:F", load=load)


OWN = Format("own", "", lambda path: path.suffix == ".own", None, write=print, endings=(".own",))
READ_ONLY = Format("other", "", lambda path: path.suffix == ".read", None, endings=(".read",))


def raises(error):
    def recognises(path):
        raise error

    return Format("bad", "", recognises, None)


@pytest.fixture
def installed(monkeypatch):
    def put(*points):
        monkeypatch.setattr(registry, "installed_points", lambda group: list(points))

    return put


def test_formats_by_name(installed):
    installed(point("own", OWN), point("minari", OWN), point("bad"), point("other", OWN))
    assert registry.names()[-4:] == ["robomimic", "own", "bad", "other"]
    assert registry.find("own") is OWN
    assert registry.find("minari").name == "minari"  # not that of the package
    for name, words in (
        ("bad", "dataset format 'bad' is offered by pkg:F, which cannot be loaded (gone): repair"),
        ("other", "dataset format 'other': pkg:F is Format(|expected a Format of that name"),
        ("owm", "there is no dataset format 'owm'; did you mean 'own'|'imitate.formats'"),
    ):
        with refused(words):
            registry.find(name)
    installed(point("own", 3))
    with refused("pkg:F is 3; expected a Format"):
        registry.find("own")


def test_formats_of_paths(installed, tmp_path):
    path = tmp_path / "a.own"
    with refused(f"{path}: there is no such file or folder; correct the path"):
        registry.detect(path)
    path.write_bytes(b"?")
    installed(point("bad", raises(ValueError())), point("own", OWN), point("other", READ_ONLY))
    assert registry.detect(path) is OWN
    installed(point("bad", raises(OutsideFileError(f"{path} is outside"))), point("own", OWN))
    with refused(f"{path} is outside", error=OutsideFileError):
        registry.detect(path)
    installed()
    with refused(f"{path}: looks like none of the formats imitation, ogbench, d3rlpy"):
        registry.detect(path)


def test_formats_by_endings(installed):
    installed(point("own", OWN), point("other", READ_ONLY))
    assert registry.target_format(Path("a.OWN")) is OWN
    assert registry.target_format(Path("a.hdf5")).name == "robomimic"
    words = "a.read: its ending does not determine the format to write: name one with --to: "
    with refused(words) as caught:
        registry.target_format(Path("a.read"))
    writable = str(caught.value).rpartition(": ")[2].split(", ")
    assert "own" in writable and "robomimic" in writable
    assert "other" not in writable and "libero" not in writable


def test_errors_that_do_not_name_the_unfinished_file_are_raised_as_they_are():
    for error in (DatasetError("b: is cut"), UserError("a.part: own words")):
        with pytest.raises(UserError) as caught, module.writing(Path("a"), Path("a.part")):
            raise error
        assert caught.value is error
