"""Pictures that are suddenly another camera's, turned, recoloured or blank hold the robot."""

import numpy as np
import pytest

from imitate.deploy.robot.cameras import CameraWatch
from imitate.deploy.robot.robot import Observation
from imitate.errors import RobotError


def pictures(tick, as_float=False):
    """Two cameras with a scene that moves a little and has noise."""
    draw, made = np.random.default_rng(tick), {}
    for name, colour in (("top", (180, 90, 40)), ("side", (60, 70, 160))):
        image = draw.integers(0, 6, (48, 64, 3), np.uint8) + np.array(colour, np.uint8)
        image[5:15, 4 + tick : 24 + tick] = 250 if name == "top" else 5
        made[name] = image / 255 if as_float else image
    return made


def held(change, as_float=False):
    """The words for each of three steps of which the second is changed."""
    cameras, words = CameraWatch(10, 0.5), []
    for tick in range(3):
        seen = pictures(tick, as_float)
        words.append(cameras.fault(Observation(change(seen) if tick == 1 else seen), tick / 10))
    return words


@pytest.mark.parametrize("as_float", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda seen: {"top": seen["side"], "side": seen["top"]}, "'top' and 'side' have been exchanged"),
        (lambda seen: {**seen, "side": seen["top"]}, "'top' and 'side' are the same, unlike before"),
        (lambda seen: {**seen, "top": seen["top"][..., ::-1]}, "'top' has exchanged red and blue channels"),
        (lambda seen: {**seen, "top": seen["top"][::-1, ::-1]}, "'top' is upside down"),
        (lambda seen: {**seen, "side": seen["side"][:, ::-1]}, "'side' is mirrored"),
        (lambda seen: {**seen, "side": seen["side"] * 0 + seen["side"][0, 0]}, "'side' has a single colour"),
    ],
)  # fmt: skip
def test_a_camera_that_is_changed_in_mid_episode_is_no_observation(change, words, as_float):
    before, at, after = held(change, as_float)
    assert not before and not after and words in at


@pytest.mark.parametrize(
    ("shade", "words"), [(5, ""), (6, "the image 'top' is upside down, unlike before")]
)
def test_a_change_below_a_fiftieth_is_not_judged(shade, words):
    image, cameras = np.full((8, 8, 3), 90, np.uint8), CameraWatch(0, 0.5)
    image[:4] += np.uint8(shade)
    assert not cameras.fault(Observation({"top": image}), 0.0)
    assert cameras.fault(Observation({"top": image[::-1, ::-1]}), 0.1) == words


@pytest.mark.parametrize(
    "change",
    [
        lambda seen: seen,
        lambda seen: {key: image // 2 for key, image in seen.items()},  # the light goes out
        lambda seen: {**seen, "top": np.roll(seen["top"], 20, axis=0)},  # it moves fast
        lambda seen: {key: 255 - image for key, image in seen.items()},
    ],
)
def test_light_and_motion_are_no_fault(change):
    assert held(change) == ["", "", ""]


def test_cameras_that_are_one_and_blank_from_the_beginning_are_no_fault():
    cameras = CameraWatch(0, 0.5)
    for tick in range(3):
        one, blank = pictures(tick)["top"], np.full((4, 4, 3), tick, np.uint8)
        assert not cameras.fault(Observation({"a": one, "b": one, "c": blank}), tick / 10)


@pytest.mark.parametrize(
    ("kept", "words"), [(1, "been the same"), (3, "only repeated earlier pictures")]
)
def test_a_camera_without_new_pictures_is_frozen(kept, words):
    cameras, shown = CameraWatch(10, 0.5), [pictures(tick)["top"] for tick in range(20)]
    for tick in range(40):  # each picture twice: a slow camera
        assert not cameras.fault(Observation({"top": shown[tick // 2]}), tick / 20)
    with pytest.raises(
        RobotError, match=f"'top' has {words} for 10 steps, so the camera is frozen"
    ):
        for tick in range(11):
            cameras.fault(Observation({"top": shown[19 - tick % kept]}), 2 + tick / 20)
    assert tick == 8  # the last one had been shown twice
