"""Where each array of a demonstration is in a LeRobot dataset, and back: exact columns, types and entries."""

import numpy as np
import pytest

from imitate.data.formats import lerobot_layout as module
from imitate.data.formats.lerobot_layout import action_of, keys_of, obs_name, unusual_names
from imitate.errors import DatasetError

S, A, J = "observation.state", "action", "observation.joints"
FRAMES = np.zeros((2, 4, 5, 3), np.uint8)
ARRAYS = {
    "actions": np.float32([[1, 2], [3, 4]]),
    "rewards": np.array([0.5, 1.5]),
    "obs/b": np.float32([[5, 6], [7, 8]]),
    "obs/a": np.array([[9], [10]]),
    "obs/object": np.float64([[0.1, 0.2, 0.3]] * 2),
    "obs/front_image": FRAMES,
    "obs/depth": np.zeros((2, 4, 5, 1), np.uint8),
    "obs/large": np.zeros((2, 4, 5, 3), np.uint16),
    "obs/one": np.zeros(2),
    "obs/none": np.zeros((2, 0)),
    "obs/flags": np.zeros((2, 2), bool),
    "obs/x/y": np.zeros((2, 1)),
    "states": np.zeros((2, 3)),
}
LAYOUT = {
    "actions": ["action", 0, 2],
    "rewards": ["next.reward"],
    "obs/a": [S, 0, 1],
    "obs/b": [S, 1, 3],
    "obs/object": ["observation.environment_state", 0, 3],
    "obs/front_image": ["observation.images.front"],
}


def test_the_layout_of_own_data():
    assert module.layout_of(ARRAYS, {}) == LAYOUT


def test_features_and_what_is_left_beside_them():
    arrays = dict(ARRAYS)
    found = module.to_features(arrays, LAYOUT, {})
    assert {name: (v.shape, str(v.dtype)) for name, v in found.items()} == {
        "action": ((2, 2), "float32"),
        "next.reward": ((2, 1), "float32"),
        S: ((2, 3), "float32"),
        "observation.environment_state": ((2, 3), "float32"),
        "observation.images.front": ((2, 4, 5, 3), "uint8"),
    }
    assert found[S].tolist() == [[9, 5, 6], [10, 7, 8]]
    kept_exactly = {"actions", "obs/b", "obs/front_image"}
    assert ARRAYS.keys() - arrays.keys() == kept_exactly
    back = module.from_features(found, LAYOUT)
    for key in LAYOUT:
        np.testing.assert_allclose(back[key].ravel(), ARRAYS[key].ravel(), rtol=1e-6)
    assert module.names_of(S, LAYOUT) == ["a.0", "b.0", "b.1"]
    assert module.names_of("next.reward", LAYOUT) is None


KNOWN = {
    "obs/b": {"feature": S, "dtype": "float64", "shape": [2]},
    "obs/front_image": {"feature": "observation.images.top", "dtype": "video", "shape": [4, 5, 3]},
    "obs/a": {"feature": "observation.a", "dtype": "image"},  # is not an image any more
    "obs/gone": {"feature": "observation.gone", "dtype": "float32"},
    "obs/large": {"feature": "observation.large", "dtype": "int32"},
}


def test_the_layout_of_data_from_lerobot():
    arrays = {**ARRAYS, "obs/other_image": FRAMES}
    layout = module.layout_of(arrays, KNOWN)
    assert layout == {
        "actions": ["action"],
        "obs/b": [S],
        "obs/front_image": ["observation.images.top"],
        "obs/large": ["observation.large"],
        "obs/a": ["observation.a"],
        "obs/object": ["observation.object"],
        "obs/other_image": ["observation.images.other"],
    }
    found = module.to_features(arrays, layout, KNOWN)
    assert found[S].dtype == np.float64 and found["observation.large"].dtype == np.int32
    assert "obs/b" in arrays and "obs/front_image" not in arrays
    values = {"action": np.zeros(2), "observation.a": np.zeros(2), "next.reward": np.zeros(2)}
    places = {"actions": ["action"], "obs/a": ["observation.a"], "rewards": ["next.reward"]}
    shapes = {k: v.shape for k, v in module.from_features(values, places).items()}
    assert shapes == {"actions": (2, 1), "obs/a": (2, 1), "rewards": (2,)}


@pytest.mark.parametrize(
    ("entry", "values", "dtype"),
    [
        ({}, np.zeros(2), "float32"),
        ({"dtype": "int64"}, np.zeros(2), "int64"),
        ({"dtype": "bool"}, np.zeros(2), "bool"),
        ({"dtype": "uint8"}, np.zeros(2), "uint8"),
        ({"dtype": "string"}, np.zeros(2), "float32"),
        ({"dtype": "complex64"}, np.zeros(2), "float32"),
        ({"dtype": "float64"}, FRAMES, "uint8"),
    ],
)
def test_types_of_features(entry, values, dtype):
    assert module.dtype_of(entry, values) == np.dtype(dtype)


ENTRY = {"feature": S, "dtype": "float64", "shape": [2], "names": ["x", "y"], "fps": 30}


@pytest.mark.parametrize(
    ("feature", "values", "entry", "described"),
    [
        (S, np.float32([[0, 0, 0]]), None, ("float32", [3], ["a.0", "b.0", "b.1"])),
        ("flag", np.zeros(2, bool), None, ("bool", [1], None)),
        ("index", np.zeros(2, np.float32), None, ("int64", [1], None)),
        ("timestamp", np.zeros(2), None, ("float32", [1], None)),
        (S, np.float32([[0, 0]]), ENTRY, ("float32", [2], ["x", "y"])),
        (S, np.float32([[0, 0, 0]]), ENTRY, ("float32", [3], None)),
        (S, np.float32([[[0], [0]]]), ENTRY, ("float32", [2, 1], None)),
        (S, np.float32([[0, 0]]), {**ENTRY, "shape": None}, ("float32", [2], ["x", "y"])),
        (S, np.float32([[0]]), {**ENTRY, "shape": (1,)}, ("float32", [1], ["x", "y"])),
    ],
)
def test_entries_of_numbers(feature, values, entry, described):
    found = module.described(feature, values, LAYOUT, entry)
    assert (found.pop("dtype"), list(found.pop("shape")), found.pop("names")) == described
    assert found == ({} if entry is None else {"fps": 30})


@pytest.mark.parametrize(
    ("entry", "video", "described"),
    [
        (None, False, {"dtype": "image", "shape": [4, 5, 3]}),
        (None, True, {"dtype": "video", "shape": [4, 5, 3]}),
        (
            {"feature": "f", "info": {}, "video_info": {}, "shape": [3, 4, 5], "names": ["c"]},
            True,
            {"dtype": "video", "shape": [3, 4, 5], "names": ["c"]},
        ),
        (
            {"dtype": "image", "shape": [3, 8, 8], "names": ["c"], "fps": 9},
            True,
            {"dtype": "video", "shape": [4, 5, 3], "fps": 9},
        ),
    ],
)
def test_entries_of_frames(entry, video, described):
    names = {"names": ["height", "width", "channels"]}
    assert module.described_image(FRAMES, entry, video=video) == {**names, **described}


FLOATS, IMAGE, TEXT = {"dtype": "float32"}, {"dtype": "video"}, {"dtype": "string"}


@pytest.mark.parametrize(
    ("feature", "name"),
    [
        ("observation.images.top", "top_image"),
        ("observation.state", "state"),
        ("images.left", "left_image"),
        ("wrist_image", "wrist_image"),
    ],
)
def test_names_of_observations(feature, name):
    assert obs_name(feature) == name


@pytest.mark.parametrize(
    ("features", "chosen", "found"),
    [
        (["action", "actions"], None, "action"),
        (["actions"], None, "actions"),
        (["action", "ee"], "ee", "ee"),
    ],
)
def test_the_actions(features, chosen, found):
    assert action_of(dict.fromkeys(features, FLOATS), chosen, "D") == found


@pytest.mark.parametrize(("chosen", "named"), [(None, "'action' or 'actions'"), ("x", "'x'")])
def test_missing_actions(chosen, named):
    features = dict.fromkeys(["state", "frame_index"], FLOATS)
    with pytest.raises(DatasetError, match=rf"has no feature {named} \(it has state\)"):
        action_of(features, chosen, "D")


@pytest.mark.parametrize(
    ("features", "action", "keys"),
    [
        (
            {"observation.state": FLOATS, "state": FLOATS, "action": FLOATS, "next.reward": FLOATS},
            None,
            ["obs/state", "state", "actions", "rewards"],
        ),
        (
            {"state": FLOATS, "image": IMAGE, "task": TEXT, "actions": FLOATS, "timestamp": FLOATS},
            None,
            ["obs/state", "obs/image", "task", "actions", "timestamp"],
        ),
        ({"depth": {"dtype": "image"}, "Reward": FLOATS}, None, ["obs/depth", "Reward"]),
        ({"ee": FLOATS, "actions": FLOATS}, "ee", ["actions", "other_actions"]),
    ],
)
def test_arrays_of_features(features, action, keys):
    assert list(keys_of(features, action).values()) == keys


def test_unusual_names_are_described():
    keys = {
        "observation.state": "obs/state",
        "image": "obs/image",
        "ee": "actions",
        "action": "actions",
        "task": "task",
        "obs/x": "obs/x",
    }
    assert unusual_names(keys.items()) == "image -> obs/image, ee -> actions"
    assert unusual_names([("action", "actions")]) == ""
