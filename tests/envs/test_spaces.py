"""Observations and actions of gymnasium's spaces, by hand."""

import numpy as np
import pytest
from gymnasium import spaces

from imitate.envs.spaces import ActionSpace, ObservationSpace, no_observation
from imitate.errors import EnvError
from tests.refusals import refused

BOX = spaces.Box(np.float32([[-1.0, -2.0]]), np.float32([[1.0, 3.0]]))
CHOICE = spaces.Discrete(3, start=5)


@pytest.mark.parametrize(
    ("space", "low", "high", "choices", "action", "native"),
    [
        (BOX, [-1, -2], [1, 3], 0, [0.5, 0.25], np.float32([[0.5, 0.25]])),
        (CHOICE, [0, 0, 0], [1, 1, 1], 3, [0.1, 0.3, 0.2], 6),
        (CHOICE, [0, 0, 0], [1, 1, 1], 3, [1.6], 7),
        (CHOICE, [0, 0, 0], [1, 1, 1], 3, [9.0], 7),
        (CHOICE, [0, 0, 0], [1, 1, 1], 3, [-1.0], 5),
        (
            spaces.Tuple((BOX, CHOICE)),
            [0, 0, 0, -1, -2],
            [1, 1, 1, 1, 3],
            3,
            [0.1, 0.3, 0.2, 0.5, 0.25],
            (np.float32([[0.5, 0.25]]), 6),
        ),
        (
            spaces.Dict({"b": BOX, "c": CHOICE}),
            [0, 0, 0, -1, -2],
            [1, 1, 1, 1, 3],
            3,
            [0.1, 0.3, 0.4, 0.5, 0.25],
            {"b": np.float32([[0.5, 0.25]]), "c": 7},
        ),
    ],
)
def test_actions_in_the_environments_form(space, low, high, choices, action, native):
    actions = ActionSpace("Env", space)
    assert (actions.low.tolist(), actions.high.tolist()) == (low, high)
    assert (actions.dim, actions.num_choices) == (len(low), choices)
    found = actions.native(np.array(action))
    assert space.contains(found)
    np.testing.assert_equal(found, native)


@pytest.mark.parametrize(
    ("space", "action", "words"),
    [
        (BOX, [0.5], "Env: the action has shape (1,), but the environment takes (2,)"),
        (CHOICE, [0.1, 0.2], "the action has shape (2,), but the environment takes (3,)"),
        (spaces.Tuple((BOX, BOX)), None, "the action space is Tuple (Box, Box)"),
        (spaces.MultiBinary(3), None, "the action space is MultiBinary, but"),
    ],
)
def test_other_actions_are_refused(space, action, words):
    with refused(words, error=EnvError):
        ActionSpace("Env", space).native(np.array(action))


IMAGE = spaces.Box(0, 255, (8, 9, 3), np.uint8)
NESTED = spaces.Dict(
    {
        "place": spaces.Box(-1.0, 1.0, (2, 2)),
        "mode": CHOICE,
        "flags": spaces.MultiBinary(2),
        "pixels": spaces.Dict({"top": spaces.Box(0, 255, (3, 8, 9), np.uint8)}),
        "words": spaces.Text(5),
    }
)
RAW = {
    "place": np.arange(4.0).reshape(2, 2),
    "mode": 7,
    "flags": np.array([0, 1], np.int8),
    "pixels": {"top": np.arange(3 * 8 * 9, dtype=np.uint8).reshape(3, 8, 9)},
    "words": "lift",
}
READ = ("place", "mode", "flags", "pixels_top")


def test_observations_are_copied_to_arrays_by_their_names():
    space = ObservationSpace("Env", NESTED, READ)
    assert space.has_images and not space.gives_mask
    obs = space.observe(RAW, {})
    assert tuple(obs) == READ
    assert obs["place"].tolist() == [0, 1, 2, 3] and obs["mode"].tolist() == [0, 0, 1]
    assert obs["flags"].tolist() == [0, 1]
    np.testing.assert_array_equal(obs["pixels_top"], RAW["pixels"]["top"].transpose(1, 2, 0))
    obs["place"][0] = 9.0
    assert RAW["place"][0, 0] == 0.0
    assert list(ObservationSpace("Env", NESTED, ["mode"]).observe(RAW, {})) == ["mode"]


@pytest.mark.parametrize(
    ("space", "key", "images"), [(BOX, "flat", False), (IMAGE, "image", True), (CHOICE, "flat", False)]
)  # fmt: skip
def test_a_single_observation(space, key, images):
    one = ObservationSpace("Env", space)
    assert one.has_images is images
    raw = space.sample()
    (found,) = one.observe(raw, {}).items()
    assert found[0] == key and found[1] is not raw
    assert found[1].shape == ((8, 9, 3) if images else (3,) if space is CHOICE else (2,))


def test_masks_and_further_observations():
    space = ObservationSpace("Env", BOX)
    obs = space.observe(np.ones((1, 2)), {"action_mask": np.array([[1, 0]])}, {"more": np.ones(1)})
    assert list(obs) == ["flat", "action_mask", "more"] and space.gives_mask
    assert obs["action_mask"].tolist() == [1.0, 0.0] and obs["action_mask"].dtype == np.float32
    space.observe(np.ones((1, 2)), {})
    assert space.gives_mask  # so far
    own = ObservationSpace("Env", spaces.Dict({"action_mask": spaces.MultiBinary(2)}))
    obs = own.observe({"action_mask": np.array([0, 1], np.int8)}, {"action_mask": [1, 1]})
    assert obs["action_mask"].tolist() == [0, 1] and own.gives_mask


@pytest.mark.parametrize(
    ("space", "keys", "words"),
    [
        (spaces.Dict({"a_b": BOX, "a": spaces.Dict({"b": BOX})}), None, "the name 'a_b'"),
        (NESTED, None, "Env: observation 'words' is a Text"),
        (NESTED, ("words",), "Env: observation 'words' is a Text"),
        (NESTED, ("plce",), "Env: the environment has no observation 'plce'; did you mean 'place'"),
        (spaces.Dict({"i": spaces.Box(0, 255, (84, 84, 7), np.uint8)}), None, "'i' has shape (84, 84, 7) of uint8"),
    ],
)  # fmt: skip
def test_observations_that_cannot_be_read_are_refused(space, keys, words):
    raw = {**RAW, "i": np.zeros((84, 84, 7), np.uint8)}
    with refused(words, error=EnvError):
        ObservationSpace("Env", space, keys).observe(raw, {})


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ((), "did you mean 'place'?"),
        (("--rename", "--set"), "(if it has another name there, use --rename NEW=plce)"),
        (
            ("--set",),
            """; to take its own, add --set 'observation.modalities.obs={"low_dim": ["place"], "rgb": ["top"]}'""",
        ),
    ],
)
def test_a_missing_observation_is_reported_with_the_remedy_of_the_command(
    monkeypatch, options, end
):
    monkeypatch.setattr("imitate.envs.spaces.offered", options.__contains__)
    obs = {"place": np.zeros(3), "top": np.zeros((8, 9, 3)), "mode": np.zeros(())}
    message = str(no_observation("Env", "plce", obs))
    assert message.startswith(
        "Env: the environment has no observation 'plce'; did you mean 'place'"
    )
    assert message.endswith(end)
