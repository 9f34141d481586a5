"""The layout of a file, and its values piece by piece: forms, sizes of pieces, and what cannot be read."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from imitate.data.quality.doctor import survey
from imitate.data.quality.doctor.finding import Place
from imitate.data.quality.doctor.survey import (
    DemoLayout,
    FileArray,
    FileLayout,
    Survey,
    layout_of,
)
from imitate.errors import DatasetError


@pytest.mark.parametrize(
    ("shape", "dtype", "numeric", "image", "first"),
    [
        ((9, 8, 8, 3), "u1", True, True, False),
        ((9, 8, 8, 1), "f4", True, True, False),
        ((9, 8, 8, 4), "u1", True, True, False),
        ((9, 8, 8, 2), "u1", True, False, False),
        ((9, 3, 8, 8), "u1", True, False, True),
        ((9, 8, 3), "S1", False, False, False),
        ((9,), "?", True, False, False),
    ],
)
def test_forms_of_arrays(shape, dtype, numeric, image, first):
    form = FileArray(shape, np.dtype(dtype))
    assert (form.is_numeric, form.is_image, form.is_channel_first) == (numeric, image, first)
    assert form.step == shape[1:]


class Extents:
    """Arrays whose values are their steps; one of them cannot be read."""

    file = SimpleNamespace(path="a.hdf5")

    def read(self, demo, key, start, stop):
        if key == "obs/bad":
            raise DatasetError(f"a.hdf5: {demo} {key} is cut")
        return np.arange(start, stop, dtype=np.float32)


def test_pieces_of_a_demo(monkeypatch):
    assert (survey.SMALL_BYTES, survey.PIECE_BYTES) == (32_000_000, 2_000_000)
    arrays = {
        **{"actions": ((4, 2), "f4"), "obs/s": ((4, 3), "f4")},
        **{
            "obs/bad": ((4, 1), "f4"),
            "obs/i": ((4, 25, 41), "f4"),
            "obs/j": ((4, 32, 32), "u1"),
        },
        **{"obs/short": ((3, 1), "f4"), "obs/text": ((4, 1), "S1"), "obs/other": ((4, 2), "f4")},
    }
    forms = {key: FileArray(shape, np.dtype(dtype)) for key, (shape, dtype) in arrays.items()}
    one = DemoLayout("a", forms, 4)
    usual = {**forms, "obs/other": FileArray((0, 1), np.dtype("f4"))}
    shape = FileLayout(Extents.file, Extents(), [one], {}, usual)
    a_step = 8 + 12 + 4 + 1024  # actions, s, bad and j, whose step has no more than 1024 values
    monkeypatch.setattr(survey, "SMALL_BYTES", 3 * a_step)
    monkeypatch.setattr(survey, "PIECE_BYTES", 2 * 25 * 41 * 4)
    reader = Survey(shape)
    found = [
        (p.start, sorted(p.small) or p.large[0], p.is_last, len(next(iter(p.small.values()), ())))
        for p in reader.pieces(one)
    ]
    small = ["actions", "obs/j", "obs/s"]
    assert found == [
        (0, small, False, 3),
        (3, small, True, 1),
        (0, "obs/i", True, 0),
        (2, "obs/i", True, 0),
    ]
    assert reader.read_bytes == 4 * (3 * 4 + 4)
    assert reader.unreadable == {
        Place("a", "obs/bad", ((0, 3),)): "a obs/bad is cut",
        Place("a", "obs/bad", ((3, 4),)): "a obs/bad is cut",
    }


@pytest.mark.parametrize(("most", "starts"), [(1, [0, 1, 2, 3]), (3, [0, 3]), (9, [0])])
def test_a_piece_has_one_step_at_least(monkeypatch, most, starts):
    for form in (FileArray((4,), np.dtype("u1")), FileArray((4, 1025), np.dtype("u1"))):
        one = DemoLayout("a", {"actions": form}, 4)
        shape = FileLayout(Extents.file, Extents(), [one], {}, {"actions": form})
        monkeypatch.setattr(survey, "SMALL_BYTES", most)
        monkeypatch.setattr(survey, "PIECE_BYTES", 1025 * most)
        assert [p.start for p in Survey(shape).pieces(one) if p.small or p.large] == starts
    monkeypatch.setattr(survey, "PIECE_BYTES", 1)
    assert len([p for p in Survey(shape).pieces(one) if p.large]) == 4


def test_the_usual_form_is_that_of_most_demos():
    class Opened(Extents):
        def of(self, name):
            if name == "d":
                raise DatasetError("a.hdf5: demo 'd' is cut")
            return {"actions": FileArray((2, 1 if name == "a" else 3), np.dtype("f4"))}

    said = {"a": np.int64(2), "b": None, "c": 2}
    opened = Opened()
    opened.file = SimpleNamespace(
        path="a.hdf5",
        demos=lambda: list("abcd"),
        reading=lambda what: nullcontext(),
        group=lambda name: SimpleNamespace(attrs={"num_samples": said[name]}),
    )
    found = layout_of(opened)
    assert [demo.name for demo in found.demos] == ["a", "b", "c"]
    assert found.broken == {"d": "demo 'd' is cut"}
    assert found.steps == {"actions": FileArray((0, 3), np.dtype("f4"))}
    assert type(found.demos[0].said_length) is int and found.demos[0].length == 2
    assert DemoLayout("x", {}, None).length == 0


def test_arrays_with_one_value_per_step():
    forms = {
        "actions": (2, 1),
        "rewards": (2,),
        "terminals": (),
        "obs/s": (2, 3),
        "camera/k": (3, 3),
    }
    arrays = {key: FileArray(shape, np.dtype("f4")) for key, shape in forms.items()}
    found = DemoLayout("x", arrays, None).per_step()
    kept = [key for key in arrays if survey.is_per_step(key) and key != "terminals"]
    assert list(found) == kept and {"actions", "rewards", "obs/s"} <= set(kept) < set(arrays)
