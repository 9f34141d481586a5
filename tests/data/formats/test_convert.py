"""A conversion with formats of the test: options, progress, doubts, and what is left on the disk."""

from contextlib import contextmanager

import numpy as np
import pytest

from imitate.config.from_data import UNBOUNDED_ACTIONS
from imitate.data.formats import convert as module
from imitate.data.formats import registry
from imitate.data.formats.base import Format, NamedDemo, OpenedDataset, Options
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError
from tests.demo_files import episode
from tests.refusals import refused

META = {"env_name": "x", "type": 4, "env_kwargs": {}}


def demos(*lengths, size=1.0, **steps):
    for number, length in enumerate(lengths):
        arrays = {"s": np.zeros((length, 1))}
        yield NamedDemo(
            f"d{number}", episode(length, arrays, np.full((length, 1), size), steps=steps)
        )


@pytest.fixture
def formats(monkeypatch, tmp_path):
    """Function that makes the formats 'in', whose source has these attributes, and 'out'; and a source file."""

    def make(found=(), folder=False, meta=META, error=None, closed=None, **more):
        @contextmanager
        def read(path, options, report):
            yield OpenedDataset(meta, iter(found), **more)
            if closed is not None:
                raise closed

        @contextmanager
        def write(path, source, options, report):
            path.mkdir() if folder else path.touch()
            path.with_name(f"{path.name}.partial").touch()
            if error is not None:
                raise error
            written = []
            yield written.append
            file = path / "f" if folder else path
            file.write_text(",".join(demo.name for demo in written))

        own = {
            "in": Format("in", "", lambda path: True, read, options=frozenset({"fps", "horizon"})),
            "out": Format("out", "", bool, read, write, write_options=frozenset({"flip_images"})),
        }
        monkeypatch.setattr(registry, "find", own.__getitem__)
        monkeypatch.setattr(registry, "detect", lambda path: own["in"])
        monkeypatch.setattr(registry, "target_format", lambda path: own["out"])
        source = tmp_path / "a.in"
        source.touch()
        return source

    return make


def test_a_report_and_progress(formats, tmp_path):
    source, seen = formats(demos(2, 3), count=5), []
    report = convert(source, tmp_path / "new/er/b.out", on_demo=lambda *words: seen.append(words))
    assert (report.source, report.source_format) == (str(source), "in")
    assert (report.target, report.target_format) == (str(tmp_path / "new/er/b.out"), "out")
    assert (report.demos, report.steps, report.notes, report.doubts) == (2, 5, [], {})
    assert seen == [("d0", 5), ("d1", 5)]
    assert (tmp_path / "new/er/b.out").read_text() == "d0,d1"
    assert [path.name for path in (tmp_path / "new/er").iterdir()] == ["b.out"]


@pytest.mark.parametrize(
    ("size", "noted"), [(1.0, False), (-1.0, False), (1.1, True), (-1.1, True)]
)
def test_actions_beyond_one_are_noted_once(formats, tmp_path, size, noted):
    report = convert(formats(demos(2, 2, size=size)), tmp_path / "b.out")
    assert report.notes == [UNBOUNDED_ACTIONS] * noted


@pytest.mark.parametrize(
    ("key", "rate", "doubted"),
    [("timestamp", 10.0, False), ("timestamp", 20.0, True), ("timestamp", None, False), ("s", 20.0, False)],
)  # fmt: skip
@pytest.mark.parametrize("among", ["obs", "steps"])
def test_times_that_contradict_the_rate(formats, tmp_path, key, rate, doubted, among):
    times = np.arange(30)[:, None] / 10
    found = [
        NamedDemo("d0", episode(30, {"q": 0 * times, key: times}))
        if among == "obs"
        else NamedDemo("d0", episode(30, {"q": 0 * times}, steps={key: times}))
    ]
    report = convert(formats(found, control_freq=rate), tmp_path / "b.out")
    name = f"obs/{key}" if among == "obs" else key
    assert list(report.doubts) == [name] * doubted
    assert not doubted or "the rate is 20 Hz" in report.doubts[name]


def test_what_is_refused_before_anything_is_read(formats, tmp_path):
    source = formats(demos(1))
    final = tmp_path / "b.out"
    with refused(f"{source}: is the source itself: choose another name"):
        convert(source, source, overwrite=True)
    with refused(f"{tmp_path / 'no'}: there is no such file or folder"):
        convert(tmp_path / "no", final)
    with refused(f"{final}: format 'in' is only read, not written: choose another with --to"):
        convert(source, final, to_format="in")
    words = f"{source}: a conversion from 'in' to 'out' does not use --action-shift: leave it out "
    with refused(words + "(accepted: --flip-images, --fps, --horizon)"):
        convert(source, final, options=Options(action_shift=1))
    convert(source, final, options=Options(fps=1.0, horizon=2, flip_images=True))
    with refused(f"{final}: exists already: choose another name, or replace it with --overwrite"):
        convert(source, final)
    formats(demos(1, 1))
    convert(source, final, overwrite=True)
    assert final.read_text() == "d0,d1"


def test_sources_that_cannot_be_converted(formats, tmp_path):
    final = tmp_path / "b.out"
    source = formats()
    with refused(f"{source}: holds no demonstration: there is nothing to convert"):
        convert(source, final)

    def broken():
        yield from demos(1)
        raise ValueError("cut")

    for more, words in (
        ({"found": broken()}, "a.in: cannot be read (ValueError: cut)"),
        ({"found": demos(1), "error": OSError("full")}, "b.out: cannot be written (full)"),
        ({"found": demos(1), "closed": ValueError("late")}, "a.in: cannot be read (ValueError: la"),
        ({"found": demos(1), "meta": {**META, "type": "x"}}, "a.in: 'type' of its environment "),
    ):
        formats(**more)
        with refused(words):
            convert(source, final)
    deep: dict = {}
    for _ in range(1000):
        deep = {"a": deep}
    formats(demos(1), meta={**META, "env_kwargs": deep})
    with pytest.raises(Exception, match="a.in: its environment: is nested deeper"):
        convert(source, final)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.in"]
    (tmp_path / "file").touch()
    with refused(f"{tmp_path / 'file/b.out'}: cannot be written (|: choose another folder"):
        convert(source, tmp_path / "file/b.out")


def test_states_are_replayed(formats, tmp_path, monkeypatch):
    source = formats(demos(1))
    states = Format("in", "", bool, registry.find("in").read, needs_replay=True)
    monkeypatch.setattr(registry, "detect", lambda path: states)
    with refused(f"{source}: holds states and no observations: pass replay=") as caught:
        convert(source, tmp_path / "b.out")
    assert type(caught.value) is DatasetError
    report = convert(source, tmp_path / "b.out", replay=lambda opened, *more: demos(4, 4))
    assert (report.demos, report.steps) == (2, 8)


def test_what_cannot_be_removed_stands_in_the_way(formats, tmp_path, monkeypatch):
    final, old = tmp_path / "b", tmp_path / "b.replaced"
    final.mkdir()
    old.mkdir()
    source = formats(demos(1), folder=True)

    def rmtree(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", lambda path: rmtree(path) if path == old else None)
        with refused(
            f"{old}: exists already, so {final} cannot be written (Permission denied): remove it, or"
        ):
            convert(source, final, overwrite=True)
    assert final.is_dir()


def test_folders_are_replaced_and_leftovers_removed(formats, tmp_path, monkeypatch):
    final, kept = tmp_path / "b", tmp_path / "kept"
    for name in ("b", "b.replaced", "b.converting.partial", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").touch()
    (tmp_path / "b.converting").symlink_to(kept)
    source = formats(demos(1), folder=True)
    convert(source, final, overwrite=True)
    assert [path.name for path in final.iterdir()] == ["f"]
    assert [path.name for path in kept.iterdir()] == ["old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.in", "b", "kept"]
    # a folder that stays there is removed again and again
    tries = []
    (tmp_path / "b.replaced").mkdir()
    formats(demos(1), folder=True)
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", lambda path: tries.append(path.name))
        convert(source, final, overwrite=True)
    assert tries == ["b.replaced"] * 40  # before and after the new one has its name
