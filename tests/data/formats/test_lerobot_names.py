"""Names of a LeRobot dataset's features, and the arrays that they become."""

import pytest

from imitate.data.formats.lerobot_names import action_of, keys_of, obs_name, unusual_names
from imitate.errors import DatasetError

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
