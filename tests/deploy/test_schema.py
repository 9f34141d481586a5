"""Schema of a deployed policy: its plain form, its hash, and the observations that it accepts."""

import hashlib
import json

import numpy as np
import pytest

from imitate.deploy.schema import PROTOCOL, ObservedKey, Schema
from imitate.errors import WireError

FULL = Schema(
    {"s": ObservedKey((2,)), "cam": ObservedKey((4, 4, 3), "rgb", "uint8")},
    2,
    (-1.0, -2.0),
    (1.0, 2.0),
    rate_hz=20.0,
    chunk=8,
    goals={"g": ObservedKey((3,))},
    languages=("lift",),
    algorithm="bc",
    history=2,
    execute=4,
    max_prefix=3,
    names={"s": ("a", "b")},
    ranges={"s": {"mean": (0.0, 1.0)}},
)
LEAST = {"observations": {}, "action_dim": 1, "action_low": [0], "action_high": [1]}


def test_the_plain_form_and_back():
    plain = FULL.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert Schema.from_dict(plain) == FULL
    assert Schema.from_dict({**plain, "more": 1}) == FULL


def test_values_that_earlier_servers_lack():
    made = Schema.from_dict(LEAST)
    assert (made.chunk, made.execute, made.history, made.max_prefix) == (1, 1, 0, 0)
    assert (made.rate_hz, made.languages, made.goals, made.names) == (None, (), {}, {})
    assert made == Schema({}, 1, (0.0,), (1.0,))
    key = {"observations": {"s": {"shape": [2.0], "kind": "low_dim"}}, "action_dim": "1"}
    made = Schema.from_dict({**LEAST, **key})
    assert made.observations == {"s": ObservedKey((2,))} and made.action_dim == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"observations": {"s": {"kind": "rgb"}}},
        {"observations": {"s": {"shape": [1]}}},
        {"observations": []},
        {"action_low": None},
        {"action_high": ["x"]},
        {"chunk": None},
        {"names": 3},
        {"ranges": {"s": {"mean": ["x"]}}},
        {"observations": {"s": {"shape": [float("inf")], "kind": "low_dim"}}},
    ],
)
def test_a_damaged_schema(wrong):
    with pytest.raises(WireError, match="the server's schema cannot be read"):
        Schema.from_dict({**LEAST, **wrong})
    with pytest.raises(WireError):
        Schema.from_dict({})


@pytest.mark.parametrize(
    "wrong",
    [
        {"observations": {"cam": {"shape": [40_000, 40_000, 3], "kind": "rgb"}}},
        {"goals": {"cam": {"shape": [8, 0, 3], "kind": "rgb"}}},
        {"action_dim": 0, "action_low": [], "action_high": []},
        {"action_low": [0, 0]},
        {"action_high": []},
        {"action_low": [float("nan")]},
        {"action_low": [2]},
        {"rate_hz": "20"},
        {"rate_hz": float("nan")},
        {"rate_hz": 0},
        {"rate_hz": float("inf")},
        {"chunk": 0},
        {"execute": 0},
        {"execute": 2**16 + 1},
        {"history": -1},
        {"max_prefix": -1},
    ],
)
def test_impossible_values(wrong):
    Schema.from_dict(LEAST).check()
    FULL.check()
    with pytest.raises(
        WireError, match=rf"{next(iter(wrong)).partition('_')[0].rstrip('s')}|shape|limits"
    ):
        Schema.from_dict({**LEAST, **wrong}).check()


def test_the_hash_is_that_of_the_content():
    text = json.dumps(FULL.to_dict(), sort_keys=True, separators=(",", ":"))
    assert FULL.hash == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert FULL.hash != Schema.from_dict(LEAST).hash


def test_the_needed_arrays_are_selected():
    given = {"s": [1, 2], "cam": np.zeros((4, 4, 3), np.uint8), "more": 1}
    chosen = FULL.select(given)
    assert list(chosen) == ["s", "cam"] and chosen["s"].tolist() == [1, 2]
    assert FULL.select({"g": [True, False, True]}, goal=True)["g"].dtype == bool


@pytest.mark.parametrize(
    ("given", "goal", "words"),
    [
        ({"s": [1, 2]}, False, "observation 'cam' is missing; wanted s, cam, got s"),
        ({}, True, "goal 'g' is missing; wanted g, got nothing"),
        ({"g": ["a", "b", "c"]}, True, "goal 'g' is not an array of numbers but <U1"),
        ({"g": [[1.0], [1.0, 2.0]]}, True, "goal 'g' is not an array of numbers: "),
        ({"g": np.ma.masked_less([0.0, 1.0, 2.0], 1.0)}, True, "1 of its values are masked"),
        ({"g": [1.0]}, True, r"goal 'g' has shape \(1,\); wanted \(3,\)"),
    ],
)
def test_refused_observations(given, goal, words):
    with pytest.raises(WireError, match=words):
        FULL.select(given, goal)


@pytest.mark.parametrize(
    "right",
    [
        *({"observations": {"s": {"shape": shape, "kind": "low_dim"}}} for shape in ([], [1], [2**26], [2**13, 2**13])),
        {"action_low": [1.0], "action_high": [1.0]},
        *({"rate_hz": rate} for rate in (0.25, 1, 1e6, None)),
        *({name: 2**16} for name in ("chunk", "execute", "history", "max_prefix")),
    ],
)  # fmt: skip
def test_extreme_values_that_are_possible(right):
    Schema.from_dict({**LEAST, **right}).check()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"observations": {"s": {"shape": [2**26 + 1], "kind": "x"}}}, "the shape of 's' is "),
        ({"rate_hz": True}, "rate_hz is True: expected a number above 0, or null"),
        ({"rate_hz": -0.5}, "rate_hz is -0.5"),
        *(({name: 2**16 + 1}, f"{name} is 65537: expected 1 to 65536") for name in ("chunk", "execute")),
        *(({name: 2**16 + 1}, f"{name} is 65537: expected 0 to 65536") for name in ("history", "max_prefix")),
        ({"action_low": [1.5]}, "actions have the limits 1.5 to 1.0: expected low <= high"),
        ({"action_dim": 2}, "there are 1 limits, but actions have 2 numbers"),
    ],
)  # fmt: skip
def test_values_a_little_beyond_the_possible_ones(wrong, words):
    assert PROTOCOL == 1
    with pytest.raises(WireError, match=f"^{words}"):
        Schema.from_dict({**LEAST, **wrong}).check()
