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


def filled(seen, row, colour=0.4):
    """The pictures with one colour in the upper camera's rows from ``row`` on."""
    top = seen["top"].copy()
    top[row:] = colour if top.dtype == float else round(255 * colour)
    return {**seen, "top": top}


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
        (lambda seen: filled(seen, 36), "'top' has a single colour in its lower part"),
        (lambda seen: filled(seen, 1), "'top' has a single colour in its lower part"),
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
        lambda seen: filled(seen, 24, 1.0),  # a lamp
        lambda seen: filled(seen, 38),
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


def grain(seed, size=(48, 64)):
    """A picture in which each pixel is different."""
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


@pytest.mark.parametrize("size", [(48, 64), (7, 9), (65, 33)])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda image: image[::-1, ::-1], "is upside down"),
        (lambda image: image[:, ::-1], "is mirrored"),
        (lambda image: image[..., ::-1], "has exchanged red and blue channels"),
        (lambda image: image[::-1], ""),
    ],
)
def test_pixels_are_compared_with_their_mirror_images(size, change, words):
    cameras, image = CameraWatch(0, 0.5), grain(0, size)
    assert not cameras.fault(Observation({"a": image}), 0.0)
    found = cameras.fault(Observation({"a": change(image)}), 0.1)
    assert found == (f"the image 'a' {words}, unlike before" if words else "")


def test_each_pixel_of_a_small_picture_counts():
    cameras, dot = CameraWatch(0, 0.5), np.zeros((3, 3, 3), np.uint8)
    assert not cameras.fault(Observation({"a": grain(0, (3, 3))}), 0.0)
    dot[1, 1] = 9
    assert not cameras.fault(Observation({"a": dot}), 0.1)
    assert "single colour" in cameras.fault(Observation({"a": 0 * dot}), 0.2)


def test_a_dot_that_leaves_an_even_ground_is_no_fault():
    cameras, ground = CameraWatch(0, 0.5), np.full((8, 8, 3), 90, np.uint8)
    for row in (7, 0):
        image = ground.copy()
        image[row, 3] = 200
        assert not cameras.fault(Observation({"a": image}), 0.1)


def test_two_cameras_that_differed_little_may_become_the_same():
    cameras, image = CameraWatch(0, 0.5), np.full((8, 8, 3), 90, np.uint8)
    image[:4] = 200
    assert not cameras.fault(Observation({"a": image, "b": image + np.uint8(1)}), 0.0)
    assert not cameras.fault(Observation({"a": image, "b": image}), 0.1)


@pytest.mark.parametrize(
    ("moments", "frozen"), [([0, 0.2, 0.499], False), ([0, 0.2, 0.5], True), ([0, 0.5], False)]
)
def test_a_picture_repeats_itself_often_and_long_enough(moments, frozen):
    cameras, image = CameraWatch(2, 0.5), grain(0)
    for moment in moments[:-1]:
        assert not cameras.fault(Observation({"a": image}), moment)
    if not frozen:
        assert not cameras.fault(Observation({"a": image}), moments[-1])
        return
    with pytest.raises(RobotError, match="has been the same for 2 steps"):
        cameras.fault(Observation({"a": image}), moments[-1])


def test_what_is_no_picture_is_not_judged():
    cameras = CameraWatch(1, 0.0)
    values = {"none": np.zeros((0, 0, 3), np.uint8), "depth": np.zeros((4, 4, 1)), "n": np.ones(3)}
    for tick in range(5):
        assert not cameras.fault(Observation(values), float(tick))
    with pytest.raises(RobotError, match="'mask' has been the same for 1 steps"):
        for tick in range(2):
            cameras.fault(Observation({"mask": np.ones((4, 4, 1), np.uint8)}), float(tick))


@pytest.mark.parametrize(
    ("rest", "words"), [(4, "the image 'a' is upside down, unlike before"), (5, "")]
)
def test_an_undone_change_leaves_less_than_a_third_of_the_difference(rest, words):
    cameras, before, now = CameraWatch(0, 0.5), np.zeros((8, 8, 3)), np.zeros((8, 8, 3))
    before[:4], before[4:] = 90 / 256, 100 / 256
    now[:4], now[4:] = 100 / 256, (90 + rest) / 256  # differences 20 - rest; undone: rest
    assert not cameras.fault(Observation({"a": before}), 0.0)
    assert cameras.fault(Observation({"a": now}), 0.1) == words


def test_a_picture_with_one_constant_channel_is_not_blank():
    cameras, now = CameraWatch(0, 0.5), grain(0)
    assert not cameras.fault(Observation({"a": now.copy()}), 0.0)
    now[..., 0] = 90
    assert not cameras.fault(Observation({"a": now}), 0.1)


def test_thirty_four_columns_of_a_wide_picture_are_compared():
    cameras, compared, image = CameraWatch(0, 0.5), [], grain(0, (2, 100))
    for column in range(100):
        dark = np.zeros_like(image)
        dark[:, column] = 9
        assert not cameras.fault(Observation({"a": image}), 0.0)
        if not cameras.fault(Observation({"a": dark}), 0.1):
            compared.append(column)
    assert compared == [
        *(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 34, 37, 40, 43, 46, 49),
        *(50, 53, 56, 59, 62, 65, 69, 72, 75, 78, 81, 84, 87, 90, 93, 96, 99),
    ]
