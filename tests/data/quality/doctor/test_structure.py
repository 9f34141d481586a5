"""Checks of the layout, finding by finding: words, severity, places and remedy."""

from types import SimpleNamespace

import numpy as np
import pytest

from imitate.data.quality.doctor import structure
from imitate.data.quality.doctor.finding import Level, Place
from imitate.data.quality.doctor.structure import CHECKS, Duplicates, check_masks
from imitate.data.quality.doctor.survey import DemoLayout, DemoSteps, FileArray, FileLayout
from imitate.errors import DatasetError

META = {"env_name": "x", "type": 4, "env_kwargs": {}}
SAME = object()


def demo(name, length=4, said=SAME, **arrays):
    """A demo of 4 steps; other arrays by name: (shape, dtype), or None to leave one out."""
    forms = {"actions": ((length, 2), "f4"), "obs/s": ((length, 3), "f4")}
    forms |= {key.replace("__", "/"): form for key, form in arrays.items()}
    kept = {
        key: FileArray(form[0], np.dtype(form[1]))
        for key, form in forms.items()
        if form is not None
    }
    return DemoLayout(name, kept, length if said is SAME else said)


def layout(*demos, broken=None, steps=None, masks=None, meta=META, attrs=None, failed=()):
    def filter_keys():
        if masks is None:
            raise DatasetError("a.hdf5: masks are damaged")
        return masks

    file = SimpleNamespace(
        path="a.hdf5",
        env_meta=meta,
        file_attrs=attrs or {},
        filter_keys=filter_keys,
        success=lambda name: name not in failed,
    )
    usual = {}
    for each in demos:
        for key, form in each.per_step().items():
            usual.setdefault(key, FileArray((0, *form.step), form.dtype))
    return FileLayout(file, None, list(demos), broken or {}, {**usual, **(steps or {})})


@pytest.fixture(autouse=True)
def as_sent(monkeypatch):
    monkeypatch.setattr(structure, "recorded_scale", lambda file: None)


def findings(shape):
    return [finding for check in CHECKS for finding in check(shape)]


def only(shape):
    (found,) = findings(shape)
    return found


A, B = demo("a"), demo("b")


def test_a_good_layout_has_no_finding():
    assert findings(layout(A, B, attrs={"total": 8})) == []


@pytest.mark.parametrize(
    ("shape", "code", "level", "what", "places", "dropped"),
    [
        (layout(), "no_demos", "error", "there is no demo under 'data'", [], None),
        (layout(A, broken={"b": "cut"}), "unreadable", "error", "cut", [("b", None)], (["b"], [])),
        (
            layout(A, demo("b", 0, actions=None, obs__s=None)),
            "no_actions",
            "error",
            "1 demo has no 'actions'",
            [("b", "actions")],
            (["b"], []),
        ),
        (
            layout(A, demo("b", 0)),
            "empty_demo",
            "error",
            "1 demo has no step",
            [("b", None)],
            (["b"], []),
        ),
        (
            layout(A, meta={"env_name": "x"}),
            "env_args",
            "warning",
            "'env_args' lacks type, env_kwargs: no policy of this file can be evaluated",
            [],
            None,
        ),
        (
            layout(A, demo("b", said=3), demo("c", said=None)),
            "num_samples",
            "error",
            "attribute 'num_samples' of 2 demos is wrong: 3 for length 4 of 'b'",
            [("b", None), ("c", None)],
            ([], []),
        ),
        (
            layout(A, demo("b", said=None)),
            "num_samples",
            "info",
            "attribute 'num_samples' of 1 demo is wrong: None for length 4 of 'b'",
            [("b", None)],
            ([], []),
        ),
        (
            layout(A, attrs={"total": 5}),
            "total",
            "info",
            "attribute 'total' is 5, but the demos' lengths add up to 4",
            [],
            ([], []),
        ),
        (
            layout(demo("a", rewards=((4,), "f4")), B),
            "missing_key",
            "error",
            "'rewards' is in 1 demo and not in 1",
            [("b", "rewards")],
            (["b"], []),
        ),
        (
            layout(demo("a", rewards=((4,), "f4")), B, demo("c")),
            "missing_key",
            "error",
            "'rewards' is in 1 demo and not in 2",
            [("a", "rewards")],
            ([], ["rewards"]),
        ),
        (
            layout(A, demo("b", obs__s=((4, 2), "f4"))),
            "shape",
            "error",
            "a step of 'obs/s' has shape (3,), but (2,) in 'b'",
            [("b", "obs/s")],
            (["b"], []),
        ),
        (
            layout(demo("a", rewards=((4, 2), "f4"))),
            "shape",
            "error",
            "a step of 'rewards' has shape (2,): expected one number",
            [(None, "rewards")],
            ([], ["rewards"]),
        ),
        (
            layout(demo("a", obs__s=((4, 3), "S3"))),
            "dtype",
            "error",
            "'obs/s' holds |S3, not numbers",
            [(None, "obs/s")],
            ([], ["obs/s"]),
        ),
        (
            layout(demo("a", actions=((4, 2), "S3"))),
            "dtype",
            "error",
            "'actions' holds |S3, not numbers",
            [(None, "actions")],
            None,
        ),
        (
            layout(A, demo("b", obs__s=((4, 3), "f8"))),
            "dtype",
            "info",
            "'obs/s' is float32, but float64 in 'b'",
            [("b", "obs/s")],
            ([], []),
        ),
        (
            layout(A, demo("b", obs__s=((4, 3), "i4"))),
            "dtype",
            "warning",
            "'obs/s' is float32, but int32 in 'b'",
            [("b", "obs/s")],
            ([], []),
        ),
        (
            layout(demo("a", obs__i=((4, 3, 8, 8), "u1"))),
            "image_layout",
            "error",
            "images of 'obs/i' are (3, 8, 8), channels first: expected (H, W, C)",
            [(None, "obs/i")],
            ([], []),
        ),
    ],
)
def test_findings(shape, code, level, what, places, dropped):
    found = only(shape)
    assert (found.code, found.level, found.what) == (code, Level(level), what)
    assert [(place.demo, place.key) for place in found.places] == places
    remedy = found.remedy
    assert (remedy and (list(remedy.drop_demos), list(remedy.drop_keys))) == dropped
    for key, change in (remedy.values if remedy else {}).items():
        changed = change(np.zeros((2, 3, 8, 7), np.int16))
        assert changed.shape == ((2, 8, 7, 3) if key == "obs/i" else (2, 3, 8, 7))
        assert changed.dtype == (np.int16 if key == "obs/i" else np.float64)


def test_a_total_beside_broken_demos_and_shapes_of_one_number():
    shape = layout(A, broken={"b": "cut"}, attrs={"total": 5})
    assert [finding.code for finding in findings(shape)] == ["unreadable"]
    assert findings(layout(demo("a", rewards=((4, 1), "f4")))) == []
    assert findings(layout(demo("a", 0), broken={"b": "x"}))[-1].code == "empty_demo"


def test_damaged_attributes(monkeypatch):
    class File(SimpleNamespace):
        @property
        def env_meta(self):
            raise DatasetError("a.hdf5: env_args is no JSON")

    shape = layout(A)
    own = File(**{k: v for k, v in vars(shape.file).items() if k != "env_meta"})
    found = only(FileLayout(own, None, shape.demos, {}, shape.steps))
    assert (found.level, found.what) == (Level.error, "env_args is no JSON")
    scale = SimpleNamespace(mode="min_max", to_commands=abs)
    monkeypatch.setattr(structure, "recorded_scale", lambda file: scale)
    found = only(shape)
    assert (found.code, found.level) == ("rescaled_actions", Level.warning)
    assert found.what.startswith(
        "'actions' are rescaled (min_max), not the commands sent to the robot"
    )
    assert found.remedy.values == {"actions": abs} and found.places == [Place(key="actions")]

    def refuse(file):
        raise DatasetError("a.hdf5: scale is damaged")

    monkeypatch.setattr(structure, "recorded_scale", refuse)
    assert only(shape).what == "scale is damaged" and only(shape).level is Level.error


def test_arrays_that_differ_in_length():
    wrong = demo("b", obs__s=((3, 3), "f4"), rewards=((6,), "f4"))
    gone = demo("c", obs__s=((0, 3), "f4"), rewards=((4,), "f4"))
    found = only(layout(demo("a", rewards=((4,), "f4")), wrong, gone))
    assert (found.code, found.level) == ("lengths", Level.error)
    assert found.what == (
        "arrays of 2 demos differ in length: 3 rows of 'obs/s' in 'b', which has 4 steps"
    )
    places = [(place.demo, place.key) for place in found.places]
    assert places == [("b", "obs/s"), ("b", "rewards"), ("c", "obs/s")]
    assert {name: rows.done.tolist() for name, rows in found.remedy.rows.items()} == {
        "b": [0, 1, 2]
    }
    assert found.remedy.drop_demos == ["c"]


def test_demos_of_unusual_length():
    usual = [demo(f"d{n}", 20 + n % 3) for n in range(8)]
    short = [demo(f"s {n}", n) for n in (1, 2)]
    found = only(layout(*usual, *short, failed=["s 1"]))
    assert (found.code, found.level) == ("short_demos", Level.warning)
    assert found.what == "2 demos are very short: 1 - 2 steps, the median is 20; 1 failed"
    assert "--demos 's 1,s 2' --video look.mp4" in found.advice
    assert "filter a.hdf5 usual --min-length 20 --in-place" in found.advice
    found = only(layout(*usual, demo("long", 900)))
    assert (found.code, found.level) == ("long_demos", Level.info)
    assert found.what == "1 demo is very long: 900 steps, the median is 21"
    assert "usual --max-length 22 --in-place" in found.advice and found.places == [Place("long")]
    many = [demo(f"s{n}", 1) for n in range(5)]
    assert "--demos s0,s1,s2,s3 --video" in only(layout(*usual, *usual, *many)).advice


@pytest.mark.parametrize(
    ("masks", "code", "level", "what", "changed"),
    [
        ({"train": ["a"], "valid": ["b"]}, None, None, None, None),
        (None, "masks", "error", "masks are damaged", None),
        (
            {"m": ["x", "a", "w", "v", "u"]},
            "mask_unknown",
            "error",
            "filter key 'm' names 4 demos that the file does not have: u, v, w ...",
            {"m": ["a"]},
        ),
        ({"m": []}, "mask_empty", "warning", "filter key 'm' is empty", {"m": []}),
        (
            {"m": ["a", "b", "a"]},
            "mask_twice",
            "warning",
            "filter key 'm' names demos twice: a",
            {"m": ["a", "b"]},
        ),
        ({"m": ["a", "broken"]}, None, None, None, None),
        (
            {"few_train": ["a", "b"], "few_valid": ["b"], "valid": ["b"]},
            "mask_overlap",
            "error",
            "filter keys 'few_train' and 'few_valid' share 1 demo: b",
            {"few_train": ["a"]},
        ),
        ({"train": ["a"], "validated": ["a"], "x_valid": ["a"]}, None, None, None, None),
    ],
)
def test_masks(masks, code, level, what, changed):
    shape = layout(A, B, broken={"broken": "cut"}, masks=masks)
    found = list(check_masks(shape))
    if code is None:
        assert found == []
        return
    (found,) = found
    assert (found.code, found.level, found.what) == (code, Level(level), what)
    assert (found.remedy and found.remedy.masks) == changed


def test_demos_that_are_there_twice():
    def piece(name, action=0.0, first=0.0, middle=0.0, last=0.0, other=0.0, key="obs/s"):
        small = {"actions": np.full((3, 1), action), "rewards": np.full(3, other)}
        return DemoSteps(name, 0, {**small, key: np.array([first, middle, last])})

    check = Duplicates()
    for each in (
        *(piece("a"), piece("b", middle=1.0), piece("c", other=1.0), piece("d", 1.0)),
        *(piece("e", first=1.0), piece("f", last=1.0), piece("g", middle=2.0), piece("h", 1.0)),
    ):
        check.see(each)
    check.see(DemoSteps("a", 0, {}, ("obs/i", np.zeros(3))))
    (found,) = check.findings()
    assert (found.code, found.level) == ("duplicate", Level.warning)
    assert found.what == "4 demos repeat others: 'b' equals 'a', 'c' equals 'a', 'g' equals 'a' ..."
    assert found.remedy.drop_demos == ["b", "c", "g", "h"]
    check = Duplicates()
    for name in "ab":
        check.see(piece(name))
    assert next(check.findings()).what == "1 demo repeats others: 'b' equals 'a'"
    assert list(Duplicates().findings()) == []
