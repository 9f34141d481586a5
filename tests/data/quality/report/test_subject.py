"""Values of the file that a report reads."""

from contextlib import ExitStack
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.file.extents import Extents
from imitate.data.quality.doctor.survey import DemoLayout, FileArray
from imitate.data.quality.report import subject as subjects
from imitate.data.quality.report.subject import ReportInput, spread, subject_of
from imitate.errors import DatasetError
from tests.demo_files import ENV_META, episode, write_demos


@pytest.fixture
def subject(tmp_path):
    """Makes the input of a report on demos whose actions count the steps; steps of ``broken`` are not finite."""
    with ExitStack() as stack:

        def make(lengths, env_meta=ENV_META, filter_key=None, broken=(), most=200):
            counted = [
                episode(n, {"s": np.zeros((n, 1))}, actions=np.arange(n)[:, None] / 100.0)
                for n in lengths
            ]
            path = write_demos(tmp_path / "a.hdf5", counted, env_meta, {"last": [-1]})
            with h5py.File(path, "r+") as file:
                for step in broken:
                    file["data/demo_0/actions"][step] = np.nan
            extents = stack.enter_context(Extents(stack.enter_context(DatasetFile(path))))
            return subject_of(extents, filter_key=filter_key, max_demos=most)

        yield make


@pytest.mark.parametrize(
    ("lengths", "most", "steps"),
    [
        ([6], 6, [[0, 1, 2, 3, 4, 5]]),
        ([6], 3, [[0, 2, 4]]),
        ([6], 5, [[0, 2, 4]]),
        ([3, 3], 6, [[0, 1, 2], [0, 1, 2]]),
        ([3, 3], 2, [[0], [0]]),
        ([3, 3], 1, [[0], [0]]),  # at least one of each demo
    ],
)
def test_values_are_evenly_spread(subject, lengths, most, steps):
    found = subject(lengths).pooled("actions", most)
    np.testing.assert_allclose(100 * found[:, 0], np.concatenate(steps))


def test_steps_that_are_not_finite_and_missing_arrays_are_left_out(subject):
    found = subject([3], broken=[1])
    (demo,) = found.demos
    np.testing.assert_allclose(100 * found.values(demo, "actions", 9)[:, 0], [0, 2])
    assert found.values(demo, "states", 9) is None
    assert found.pooled("states", 9) is None
    found = subject([2], broken=[0, 1])
    assert found.values(found.demos[0], "actions", 9) is None


@pytest.mark.parametrize(
    ("rate", "found"),
    [(20, 20.0), (0.5, 0.5), (0, None), (-1, None), ("fast", None), (None, None), ([1], None)],
)
def test_the_rate_of_the_environment(subject, rate, found):
    meta = {**ENV_META, "env_kwargs": {"control_freq": rate}}
    assert subject([2], meta).control_freq == found


def test_demos_of_a_filter_key(subject):
    found = subject([2, 3, 4], filter_key="last")
    assert [demo.name for demo in found.demos] == ["demo_2"]
    assert found.is_whole
    found = subject([2, 3, 4], most=2)
    assert [demo.name for demo in found.sample] == ["demo_0", "demo_2"]
    assert not found.is_whole
    assert found.returns == {"demo_0": 0.0, "demo_2": 0.0}


@pytest.mark.parametrize(
    ("count", "most", "kept"),
    [(3, 3, [0, 1, 2]), (3, 2, [0, 2]), (5, 3, [0, 2, 4]), (3, 1, [0]), (3, 0, [0]), (0, 2, [])],
)
def test_spread(count, most, kept):
    assert spread(range(count), most) == kept


class Steps:
    """Notes which steps are read; each value is its step."""

    def __init__(self):
        self.seen = []

    def read(self, demo, key, start, stop):
        self.seen.append((start, stop))
        return np.arange(start, stop)[:, None]


@pytest.mark.parametrize(
    ("width", "most", "parts", "kept"),
    [
        (2**18, 20, [(0, 8), (8, 16), (16, 20)], range(20)),  # 2 MB for a step: 8 of them in 16 MB
        (2**18, 7, [(0, 6), (6, 12), (12, 18), (18, 20)], range(0, 20, 3)),
        (2**22, 20, [(n, n + 1) for n in range(20)], range(20)),
        (2**22, 5, [(n, n + 4) for n in range(0, 20, 4)], range(0, 20, 4)),
        (0, 9, [(0, 20)], range(0, 20, 3)),
    ],
)
def test_values_are_read_in_pieces_of_16_mb(width, most, parts, kept):
    form = FileArray((20, width), np.dtype("f8"))
    layout = SimpleNamespace(steps={"obs/s": FileArray((0, width), form.dtype)}, extents=Steps())
    found = ReportInput(None, None, [], [], layout, None)
    demo = DemoLayout("d", {"obs/s": form}, 20)
    assert found.values(demo, "obs/s", most).ravel().tolist() == list(kept)
    assert layout.extents.seen == parts
    assert subjects.MAX_BYTES == 2_000_000_000


@pytest.mark.parametrize(
    ("form", "usual"),
    [
        (None, FileArray((0, 1), np.dtype("f8"))),
        (FileArray((3, 1), np.dtype("f8")), None),
        (FileArray((3, 1), np.dtype("f8")), FileArray((0, 2), np.dtype("f8"))),
        (FileArray((3, 1), np.dtype("S1")), FileArray((0, 1), np.dtype("S1"))),
        (FileArray((0, 1), np.dtype("f8")), FileArray((0, 1), np.dtype("f8"))),
    ],
)
def test_arrays_that_have_no_values(form, usual):
    layout = SimpleNamespace(steps={} if usual is None else {"x": usual}, extents=Steps())
    demo = DemoLayout("d", {} if form is None else {"x": form}, 3)
    found = ReportInput(None, None, [demo], [demo], layout, None)
    assert found.values(demo, "x", 9) is None and found.pooled("x", 9) is None
    assert layout.extents.seen == []


def test_facts_that_cannot_be_read():
    class Damaged:
        def filter_keys(self):
            raise DatasetError("masks")

        @property
        def env_meta(self):
            raise DatasetError("env")

        file_attrs = {"control_freq": 12}

    demo = DemoLayout("d", {}, 3)
    found = ReportInput(Damaged(), None, [demo], [], SimpleNamespace(steps={}), None)
    assert (found.masks, found.env_meta, found.env_kwargs, found.returns) == ({}, {}, {}, {})
    assert found.control_freq == 12.0 and not found.is_whole
    Damaged.file_attrs = {"control_freq": float("inf")}
    assert ReportInput(Damaged(), None, [], [], None, None).control_freq is None
    odd = SimpleNamespace(env_meta={"env_kwargs": [1]}, file_attrs={})
    assert ReportInput(odd, None, [], [], None, None).control_freq is None


def test_returns_are_sums_and_rows_with_one_bad_number_are_left_out():
    form = FileArray((4,), np.dtype("f8"))
    layout = SimpleNamespace(steps={"rewards": form, "s": form}, extents=Steps())
    demos = [DemoLayout(name, {"actions": form, "rewards": form}, 4) for name in "ab"]
    found = ReportInput(None, None, demos, demos, layout, None)
    assert found.returns == {"a": 6.0, "b": 6.0}  # 0 + 1 + 2 + 3
    rows = np.array([[1.0, 2], [np.nan, 3], [4, np.inf], [5, 6]])
    layout.extents.read = lambda demo, key, start, stop: rows[start:stop]
    demo = DemoLayout("a", {"s": form}, 4)
    assert found.values(demo, "s", 9).tolist() == [[1, 2], [5, 6]]


def test_the_number_of_demos_that_are_read():
    def demo(length, width):
        forms = {"actions": FileArray((length, width), np.dtype("f8"))} if width else {}
        return SimpleNamespace(length=length, per_step=lambda: forms)

    most = subjects.MAX_BYTES
    assert subjects.affordable([]) == 0
    assert subjects.affordable([demo(5, 0)]) == most
    assert subjects.affordable([demo(10, 1), demo(30, 1)]) == int(most / 160)
    assert subjects.affordable([demo(most, 1)]) == 1
    assert spread([], 0) == [] and spread("ab", 0) == ["a"]


def test_outcomes_of_the_sample(tmp_path):
    said = [{"success": True}, {"success": False}, {}]
    path = write_demos(
        tmp_path / "a.hdf5", [episode(2, {"s": np.zeros((2, 1))}, attrs=attrs) for attrs in said]
    )
    with ExitStack() as opened:
        file = opened.enter_context(DatasetFile(path))
        found = subject_of(opened.enter_context(Extents(file)), filter_key=None, max_demos=9)
        assert found.outcomes == {"demo_0": True, "demo_1": False, "demo_2": None}
        assert list(found.outcomes) == [one.name for one in found.sample]
