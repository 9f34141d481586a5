"""Episodes in memory: their arrays and attributes in the file, and which steps are refused."""

import numpy as np
import pytest

from imitate.data.file.encoded_frames import EncodedFrames
from imitate.data.file.episode import (
    Episode,
    StepForm,
    StepForms,
    arrays_of,
    as_step,
    attrs_of,
    check_first,
    stacked,
)
from tests.refusals import refused

VALUES = {
    "obs": {"s": [[1], [2]]},
    "actions": [[0.5, 1], [2, 3]],
    "rewards": [[1], [0]],
    "terminals": [0, 2],
    "timeouts": [False, True],
}


def episode(**values):
    return Episode(**{**VALUES, **values})


def test_arrays_by_their_names_in_the_file():
    frames = EncodedFrames("png", [b"a", b"b"], (4, 4, 3))
    more = {"states": np.ones((2, 3)), "next_obs": {"s": [[2], [3]]}}
    steps = {"signals/cost": [[2], [5]], "interventions": np.uint8([1, 0])}
    found = arrays_of(episode(**more, steps=steps, obs={"s": [[1], [2]], "i": frames}), "x")
    assert found.pop("obs/i") is frames
    expected = {
        "actions": [[0.5, 1.0], [2.0, 3.0]],
        "rewards": np.float32([1, 0]),
        "terminals": np.uint8([0, 1]),
        "timeouts": np.uint8([0, 1]),
        "signals/cost": np.float32([2, 5]),
        "interventions": np.uint8([1, 0]),
        "obs/s": [[1], [2]],
        "next_obs/s": [[2], [3]],
        "states": np.ones((2, 3)),
        "dones": np.uint8([0, 1]),
    }
    assert list(found) == list(expected)
    for key, values in expected.items():
        np.testing.assert_array_equal(found[key], values, strict=isinstance(values, np.ndarray))
    assert {"states", "next_obs/s"}.isdisjoint(arrays_of(episode(), "x"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"actions": [1.0, 2.0]}, "x: 'actions' has shape (2,); expected (T, A) with T at least 1"),
        ({"actions": np.zeros((0, 2))}, "'actions' has shape (0, 2)"),
        ({"rewards": [0]}, "x: 'rewards' has shape (1,), but 'actions' has 2 steps"),
        ({"rewards": 0.0}, "'rewards' has shape (), but"),
        ({"rewards": [0, np.nan]}, "x: 'rewards' holds NaN or inf"),
        ({"obs": {"s": [[1], [np.inf]]}}, "'obs/s' holds NaN or inf"),
        ({"obs": {"s": [[1], [1, 2]]}}, "x: 'obs/s' is not an array of numbers"),
        ({"obs": {"s": ["a", "b"]}}, "'obs/s' is not an array of numbers"),
        ({"rewards": np.ma.array([0, 1], mask=[0, 1])}, "'rewards'|1 of its values are masked"),
        ({"timeouts": [[0, 1], [0, 1]]}, "x: 'timeouts' has shape (2, 2): expected (T,)"),
        ({"terminals": [[0, 1], [0, 1]]}, "'terminals' has shape (2, 2): expected (T,)"),
        ({"steps": {"signals/c": [[0, 1], [0, 1]]}}, "'signals/c' has shape (2, 2): expected (T,)"),
    ],
)
def test_refused_arrays(values, words):
    with refused(words):
        arrays_of(episode(**values), "x")


def test_attributes():
    given = {
        **{"text": "a", "yes": True, "n": 3, "x": 0.5, "float": np.float32(2), "none": None},
        **{"dict": {"a": [1]}, "most": np.zeros(7500)},
    }
    found = attrs_of(episode(attrs=given), "x")
    assert found.pop("most").nbytes == 60000
    changed = {"none": "null", "dict": '{"a": [1]}'}
    assert found == {**{key: given[key] for key in found}, **changed}
    for value, words in (
        (np.zeros(7501), "x: attribute 'a' has 60008 bytes: give a step array, or at most 60000"),
        ({1, 2}, "x: attribute 'a' is a set: give text"),
    ):
        with refused(words):
            attrs_of(episode(attrs={"a": value}), "x")


def test_steps_are_stacked():
    assert stacked([np.zeros(2), np.ones(2)], "x").tolist() == [[0, 0], [1, 1]]
    with refused("x: its steps have the shapes [(1,), (2,)]: give the same"):
        stacked([np.zeros(2), np.ones(1)], "x")
    value = np.zeros(2)
    assert as_step(value, "x").tolist() == [0, 0] and as_step(value, "x") is not value
    for bad in ([[1], [1, 2]], np.ma.array([1, 2], mask=[True, False])):
        with refused("x is not an array of numbers: "):
            as_step(bad, "x")


FIRST = {"obs/s": np.zeros(2), "rewards": np.zeros(()), "obs/i": np.zeros((2, 2), np.uint8)}


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({}, None),
        ({"obs/s": np.ones(2, np.float32)}, None),
        ({"obs/s": np.ones(2, int)}, None),
        ({"rewards": np.ones(1, int)}, None),
        ({"rewards": np.ones(2)}, "x: 'rewards' has shape (2,): expected one number"),
        ({"obs/s": np.ones(3)}, "x: 'obs/s' has shape (3,), but (2,) ORIGIN: give the same shape"),
        (
            {"obs/s": np.uint8([1, 2])},
            "x: 'obs/s' is uint8, but float64 ORIGIN: give the same type",
        ),
        ({"obs/i": np.zeros((2, 2))}, "x: 'obs/i' is float64, but uint8 ORIGIN"),
        ({"obs/s": np.array(["a", "b"])}, "x: 'obs/s' is not an array of numbers, but <U1"),
        ({"obs/s": np.array([1, np.nan])}, "x: 'obs/s' is nan (NaN or inf): correct its source"),
        ({"obs/s": np.array([np.inf, 1])}, "x: 'obs/s' is inf (NaN"),
        ({"obs/t": np.zeros(1)}, "x: 'obs/t' is new; it was not present ORIGIN (did you mean"),
        ({"obs/s": None}, "x: 'obs/s' is missing, but it was present ORIGIN: give the same"),
    ],
)
@pytest.mark.parametrize("of_file", [False, True])
def test_later_steps_are_as_the_first(later, words, of_file):
    if of_file:
        known = {key: StepForm(value.shape, value.dtype) for key, value in FIRST.items()}
        forms = StepForms({**known, "dones": StepForm((), np.dtype(bool))}, "d", strict=True)
    else:
        forms = StepForms({}, "", strict=True)
        forms.check(FIRST, "x")
    values = {key: value for key, value in {**FIRST, **later}.items() if value is not None}
    if words is None:
        forms.check(values, "x")
        return
    with refused(
        words.replace("ORIGIN", "in demo 'd'" if of_file else "at the episode's first step")
    ):
        forms.check(values, "x")


def test_names_in_a_first_step():
    forms = StepForms({}, "", strict=False)
    with refused("x: 'obs/a/b': a name must not contain '/': give another name"):
        forms.check({"obs/a/b": np.zeros(1)}, "x")
    with refused("x: 'action_dict/b': a name must not"):
        forms.check({"action_dict/b": np.zeros(1)}, "x")
    with refused("x: 'obs/a' is nan"):
        forms.check({"obs/a": np.array(np.nan)}, "x")
    forms.check({"obs/s": np.zeros(1), "signals/c": np.zeros(1)}, "x")
    with refused("'obs/s' is missing"):
        forms.check({"signals/c": np.zeros(1)}, "x")


@pytest.mark.parametrize(
    ("key", "shape", "dtype", "strict", "words"),
    [
        ("actions", (1,), "f4", True, None),
        ("actions", (0,), "f4", True, "x has shape (0,): expected (A,), one number"),
        ("actions", (), "f4", False, "x has shape (): expected (A,)"),
        ("actions", (1, 1), "f4", True, "x has shape (1, 1): expected (A,)"),
        ("rewards", (1,), "f4", True, None),
        ("rewards", (2,), "f4", False, "x has shape (2,): expected one number"),
        ("signals/c", (), "f4", True, None),
        ("signals/c", (2,), "f4", True, "expected one number"),
        ("states", (2,), "f4", True, None),
        ("obs/", (2,), "f4", True, "a name needs at least one letter"),
        ("obs/.", (2,), "f4", True, "a name needs at least one letter"),
        ("next_obs/a/b", (2,), "f4", True, "a name needs at least one letter"),
        ("obs/a/b", (2,), "f4", False, None),
        ("obs/i", (8, 8, 3), "u1", True, None),
        ("obs/i", (8, 8), "f4", True, None),
        ("obs/i", (3, 8, 8), "u1", True, "x has shape (3, 8, 8), which looks like an image with"),
        ("obs/i", (3, 8, 8), "u1", False, None),
        ("obs/i", (3, 8, 3), "u1", True, None),
        ("obs/i", (8, 3, 8), "f4", True, None),
        ("obs/i", (8, 8, 1), "f4", True, "x is an image of float32: expected uint8 from 0 to 255"),
        ("obs/i", (8, 8, 4), "f8", True, "x is an image of float64"),
        ("obs/i", (8, 8, 2), "f4", True, None),
        ("obs/i", (8, 8, 4), "i4", True, None),
        ("obs/depth_i", (8, 8, 1), "f4", True, None),
        ("obs/segmentation", (1, 8, 8), "i4", True, None),
        ("action_dict/i", (8, 8, 1), "f4", True, None),
    ],
)
def test_forms_of_the_first_step(key, shape, dtype, strict, words):
    if words is None:
        check_first(key, shape, np.dtype(dtype), "x", strict=strict)
        return
    with refused(words):
        check_first(key, shape, np.dtype(dtype), "x", strict=strict)
