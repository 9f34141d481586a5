"""Checks of what a policy gets and gives: keys, stacks of frames, rates, numbers that are not finite."""

import types

import numpy as np
import pytest
import torch

from imitate.errors import NotFiniteError, UserError
from imitate.policy.checks import (
    as_array,
    check_rate,
    newest_frames,
    refuse_action,
    refuse_missing,
    refuse_not_finite,
)
from tests.refusals import refused

SHAPES = {"a": (2,), "b": (), "lang": (3,)}


def test_a_missing_key():
    refuse_missing({"a": 1, "b": 2}, ["a"])
    with pytest.raises(UserError, match="needs b, c, but got a$"):
        refuse_missing({"a": 1}, ["a", "b", "c"])
    with pytest.raises(UserError, match="but got nothing"):
        refuse_missing({}, ["a"])


def arrays(**shapes):
    return {key: np.arange(np.prod(shape)).reshape(shape) for key, shape in shapes.items()}


def test_single_steps_stay_as_they_are():
    given = arrays(a=(2,), b=())
    assert newest_frames(given, SHAPES, (1, 4)) is given
    given = arrays(a=(5, 2), b=(5,))
    assert newest_frames(given, SHAPES, (1, 4), batched=True) is given


def test_the_newest_of_stacked_frames():
    given = arrays(a=(4, 2), b=(4,), lang=(3,))
    found = newest_frames(given, SHAPES, (1, 4), lang_key="lang")
    assert found["a"].tolist() == [6, 7] and found["b"] == 3
    assert found["lang"].tolist() == [0, 1, 2]
    found = newest_frames(arrays(a=(5, 4, 2), b=(5, 4)), SHAPES, (1, 4), batched=True)
    assert found["a"].shape == (5, 2) and found["a"][0].tolist() == [6, 7]
    assert found["b"].tolist() == [3, 7, 11, 15, 19]


@pytest.mark.parametrize(
    ("shapes", "stacks", "batched", "words"),
    [
        ({"a": (3, 2), "b": (3,)}, (1, 4), False, r"'a' has shape \(3, 2\); expected \(2\)"),
        ({"a": (4, 2), "b": ()}, (1, 4), False, r"'b' has shape \(\); expected \(\)"),
        ({"a": (4, 2), "lang": (3,)}, (1, 4), False, r"'lang' has shape"),
        (
            {"a": (1, 4, 2)},
            (1, 4),
            False,
            "or all observations stacked as 1 or 4 frames; for several",
        ),
        ({"a": (1, 4, 2)}, (1, 4, 2), False, "stacked as 1 or 2 or 4 frames"),
        ({"a": (3, 2)}, (1,), False, "stacked as 1 frame;"),
        ({"a": (5, 3, 2)}, (1, 4), True, r"expected \(B, 2\)"),
    ],
)
def test_other_shapes_are_refused(shapes, stacks, batched, words):
    with pytest.raises(UserError, match=words):
        newest_frames(arrays(**shapes), SHAPES, stacks, batched=batched)


@pytest.mark.parametrize(
    ("trained", "rate", "fits"),
    [(None, 5.0, True), (20.0, 20.2, True), (20.0, 19.8, True), (20.0, 20.22, False), (20.0, 10.0, False)],
)  # fmt: skip
def test_the_rate_is_that_of_the_demonstrations(trained, rate, fits):
    policy = types.SimpleNamespace(control_freq=trained)
    if fits:
        check_rate(policy, rate)
        check_rate(object(), rate)
    else:
        with pytest.raises(UserError, match=f"rate is {rate:g} Hz, .* 20 Hz: use .*--any-rate"):
            check_rate(policy, rate)


@pytest.mark.parametrize(
    "value",
    [
        np.ones((1, 2)),
        np.full((1, 2), 1e38),  # finite in float32, though its square is not
        np.full((1, 2), 1e38, np.float32),
        np.ones((1, 2), np.uint8),
        np.ones((1, 2), bool),
        torch.ones(1, 2),
        torch.ones(1, 2, dtype=torch.int64),
    ],
)
def test_finite_observations(value):
    refuse_not_finite("s", value)


@pytest.mark.parametrize(
    ("value", "words", "rows"),
    [
        ([[1.0, np.nan]], r"1 value not finite in float32, first nan at \[1\]:", (True,)),
        ([[0.0, 1.0], [np.inf, np.nan]], r"2 values .*first inf at \[0\] of row 1:", (False, True)),
        ([[1e39, 0.0]], r"1 value .*first 1e\+39 at \[0\]", (True,)),
    ],
)
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_observations_that_are_not_finite(value, words, rows, kind):
    if kind is torch.tensor and value[0][0] == 1e39:
        value, words = [[float("inf"), 0.0]], "first inf"
    with pytest.raises(NotFiniteError, match=words) as raised:
        refuse_not_finite("s", kind(value))
    assert raised.value.rows == rows


def test_images_that_are_not_finite_have_a_place():
    images = np.zeros((2, 3, 4))
    images[1, 2, 3] = np.nan
    with pytest.raises(NotFiniteError, match=r"nan at \[2, 3\] of row 1:") as raised:
        refuse_not_finite("image", images)
    assert raised.value.rows == (False, True)


def test_masked_values_are_no_observation():
    whole = as_array("s", np.ma.array([1.0, 2.0], mask=False))
    assert type(whole) is np.ndarray and whole.tolist() == [1.0, 2.0]
    for bad in (np.ma.array([1.0, 2.0], mask=[0, 1]), [[1.0], [1.0, 2.0]]):
        with refused("observation 's' is not an array of numbers: ", error=UserError):
            as_array("s", bad)


def test_words_are_no_observation():
    with pytest.raises(UserError, match="'s' has dtype <U1; expected numbers"):
        refuse_not_finite("s", np.array([["a"]]))


def test_actions():
    refuse_action(np.array([[1.0, -2.0]]))
    refuse_action(np.full((1, 2), 1e200))
    with pytest.raises(
        NotFiniteError, match=r"action has 1 value .*first nan at \[0\] of row 1"
    ) as e:
        refuse_action(np.array([[0.0], [np.nan]]))
    assert e.value.rows == (False, True)
