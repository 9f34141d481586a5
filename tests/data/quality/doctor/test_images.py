"""Images: blank frames, ranges of values, and cameras that are upside down, with each limit from both sides."""

from types import SimpleNamespace

import numpy as np
import pytest

from imitate.data.quality.doctor.observations import ImageChecks, Orientation
from imitate.data.quality.doctor.survey import DemoSteps, FileArray

CAMERA, HAND = "obs/front_image", "obs/robot0_eef_pos"


def layout(forms, **attrs):
    steps = {key: FileArray((0, *shape), np.dtype(kind)) for key, (shape, kind) in forms.items()}
    return SimpleNamespace(steps=steps, file=SimpleNamespace(file_attrs=attrs))


# ---- values of pixels ----------------------------------------------------------------------------


def checked(*pieces, dtype="u1", keys=(CAMERA,), **attrs):
    """Findings on pieces (demo, start, list of frames, each (2, 1, 3) of one colour or with one other value)."""
    check = ImageChecks(layout(dict.fromkeys(keys, ((2, 1, 3), dtype)), **attrs))
    for demo, start, frames in pieces:
        images = np.zeros((len(frames), 2, 1, 3), dtype)
        for image, (value, other) in zip(images, frames, strict=True):
            image[:] = value
            image[1, 0, 2] = other
        check.see(DemoSteps(demo, start, {}, (keys[0], images)))
    return list(check.findings())


def test_frames_of_one_colour():
    pieces = [("a", 5, [(3, 4), (9, 9), (0, 0), (5, 6)]), ("b", 0, [(1, 2)]), ("c", 0, [])]
    (found,) = checked(*pieces)
    assert (found.code, found.level.value) == ("blank_images", "warning")
    assert found.what == f"1 demo has frames of one colour in '{CAMERA}'"
    (place,) = found.places
    assert (place.demo, place.key, place.steps) == ("a", CAMERA, ((6, 8),))
    assert found.remedy.drop_demos == ["a"]
    (found,) = checked(("a", 0, [(7, 7)]), ("a", 1, [(7, 7)]), ("b", 0, [(7, 7)]))
    assert found.what.startswith("2 demos have ") and len(found.places) == 3
    (found,) = checked(("a", 0, [(7, 7 + n % 2) for n in range(299)]))
    assert len(found.places[0].steps) == 100  # only so many are listed
    assert [f.code for f in checked(("a", 0, [(0, 0)]))] == ["blank_images"]
    assert checked() == []


@pytest.mark.parametrize(
    ("dtype", "low", "high", "level", "words"),
    [
        ("u1", 0, 2, None, ""),
        ("u1", 0, 1, "warning", "are uint8 from 0 to 1: expected uint8 from 0 to 255"),
        ("f4", 0, 1, "info", "are float32 from 0 to 1: expected"),
        ("f4", 0, 1.5, "warning", "are float32 from 0 to 1.5: expected"),
        ("f4", 0, 255, "warning", "are float32 from 0 to 255: expected"),
        ("f4", 0, 256, "error", "are float32 from 0 to 256: normalized values, not pixels"),
        ("f4", -1, 1, "error", "are float32 from -1 to 1: normalized values, not pixels"),
        ("i4", 0, 1, "warning", "are int32 from 0 to 1: expected"),
    ],
)
def test_ranges_of_values(dtype, low, high, level, words):
    found = checked(("a", 0, [(low, high)]), ("a", 1, [(low, high), (high, low)]), dtype=dtype)
    assert [(f.code, f.level.value) for f in found] == ([("image_range", level)] if level else [])
    for finding in found:
        assert finding.what.startswith(f"images of '{CAMERA}' {words}")
        assert [place.key for place in finding.places] == [CAMERA]
        assert (finding.remedy is None) == (level == "error")
        assert finding.advice == ("write them as uint8 from 0 to 255" if level == "error" else "")


def test_the_range_is_that_of_all_frames():
    (found,) = checked(("a", 0, [(2, 3), (-1, 9), (2, 4)]), dtype="f4")
    assert " are float32 from -1 to 9: normalized" in found.what


@pytest.mark.parametrize(("top", "pixels"), [(1.0, [0, 176, 255, 255]), (2.0, [0, 1, 1, 2])])
def test_values_become_pixels(top, pixels):
    (found,) = checked(("a", 0, [(0, top)]), dtype="f4")
    assert list(found.remedy.values) == [CAMERA, f"next_{CAMERA}"]
    for change in found.remedy.values.values():
        values = change(np.array([-0.1, 0.69, 1.0, 2.0], np.float32))
        assert values.dtype == np.uint8 and values.tolist() == pixels


@pytest.mark.parametrize("convention", ["opengl", "opencv"])
def test_the_convention_of_the_file(convention):
    keys = ("obs/b_image", "obs/a_image")
    found = checked(keys=keys, macros_image_convention=convention)
    if convention == "opencv":
        assert found == []
        return
    assert [f.code for f in found] == ["upside_down"] and found[0].level.value == "warning"
    assert [place.key for place in found[0].places] == ["obs/a_image", "obs/b_image"]
    assert found[0].remedy.attrs == {"macros_image_convention": "opencv"}
    names = ["obs/a_image", "next_obs/a_image", "obs/b_image", "next_obs/b_image"]
    assert list(found[0].remedy.values) == names
    images = np.arange(12).reshape(1, 3, 2, 2)
    turned = found[0].remedy.values["obs/a_image"](images)
    assert turned[0, :, 0, 0].tolist() == [8, 4, 0]


@pytest.mark.parametrize(
    ("key", "shape"),
    [("obs/depth", (2, 1, 3)), ("obs/segmentation", (2, 1, 3)), ("steps/i", (2, 1, 3)), ("obs/i", (2, 1, 2))],
)  # fmt: skip
def test_other_arrays_are_no_images(key, shape):
    check = ImageChecks(layout({key: (shape, "u1")}, macros_image_convention="opengl"))
    check.see(DemoSteps("a", 0, {key: np.zeros((1, *shape), np.uint8)}))
    assert list(check.findings()) == []


# ---- motion in images ----------------------------------------------------------------------------

SHAPES = {CAMERA: ((8, 4, 3), "u1"), HAND: ((3,), "f4")}


def motion(agree, against, size=200, still=0):
    """Frames and heights: pixels change in row 2 or 5, and the hand is low or high, in as many steps of each kind.

    Row and height agree in ``2 * agree`` steps and differ in ``2 * against``; nothing moves in ``still`` steps more.
    """
    rows = [2] * agree + [5] * agree + [2] * against + [5] * against
    sums = [-1.0] * agree + [1.0] * agree + [1.0] * against + [-1.0] * against
    images = np.zeros((len(rows) + still + 1, 8, 4, 3), np.uint8)
    heights = [0.0]
    for step, (row, both) in enumerate(zip(rows, sums, strict=True)):
        images[step + 1 :, row, :, 1] = images[step, row, 0, 1] ^ size
        heights.append(both - heights[-1])
    for step in range(still):
        heights.append((100.0 if step % 2 else -70.0) - heights[-1])
    hand = np.zeros((len(heights), 3), np.float32)
    hand[:, 2] = heights
    return images, hand


def oriented(pieces, forms=SHAPES):
    check = Orientation(layout(forms))
    for piece in pieces:
        check.see(piece)
    return list(check.findings())


def whole(images, hand, demo="a", start=0):
    return DemoSteps(demo, start, {CAMERA: images, HAND: hand})


@pytest.mark.parametrize(
    ("agree", "against", "words"),
    [
        (30, 0, "correlation 1.00"),
        (29, 0, None),  # 58 steps are too few
        (25, 6, "correlation 0.61"),
        (40, 10, None),  # 0.6
        (0, 40, None),
    ],
)
def test_the_correlation_of_rows_and_heights(agree, against, words):
    found = oriented([whole(*motion(agree, against))])
    assert bool(found) == (words is not None)
    for finding in found:
        assert (finding.code, finding.level.value) == ("orientation", "info")
        assert f"images of '{CAMERA}' look upside down" in finding.what
        assert f"when '{HAND}' goes up ({words})" in finding.what
        assert [place.key for place in finding.places] == [CAMERA]
        assert list(finding.remedy.values) == [CAMERA, f"next_{CAMERA}"]


def test_small_changes_are_noise_and_still_steps_do_not_count():
    assert oriented([whole(*motion(30, 0, size=8))])
    assert not oriented([whole(*motion(30, 0, size=7))])
    assert oriented([whole(*motion(30, 0, still=9))])
    assert not oriented([whole(*motion(29, 0, still=9))])
    # in row 0 a tenth of the largest change: counts as still; a little more counts
    for small, count in ((20, 0), (21, 1)):
        images, hand = motion(30, 0)
        more = np.concatenate([images, images[-1:]])
        more[-1, 0, 0, 1] ^= 4 * small
        heights = np.concatenate([hand, [[0, 0, 1e6]]]).astype(np.float32)
        assert len(oriented([whole(more, heights)])) == 1 - count


def test_rows_are_weighted_by_their_changes():
    images, hand = motion(30, 0)
    for step in range(1, len(images)):
        images[step:, 7, 0, 1] = images[step - 1, 7, 0, 1] ^ 200  # a quarter as much, in each step
    (found,) = oriented([whole(images, hand)])
    assert "correlation 1.00" in found.what
    # steps with larger changes count no more than others
    (found,) = oriented([whole(*motion(30, 0, size)) for size in (200, 60)])
    assert "correlation 1.00" in found.what


def test_the_middle_channel_is_compared():
    images, hand = motion(30, 0)
    third = np.concatenate([0 * images[..., :2], images[..., 1:2], images[..., :1]], axis=-1)
    forms = {**SHAPES, CAMERA: ((8, 4, 4), "u1")}
    assert oriented([whole(third, hand)], forms)


@pytest.mark.filterwarnings("error")
def test_without_motion_there_is_no_correlation():
    images, hand = motion(30, 0)
    assert not oriented([whole(images, 0 * hand)])
    images[:, 2] ^= images[:, 5]
    images[:, 5] = 0
    assert not oriented([whole(images, hand)])


def test_images_in_pieces_have_the_heights_of_their_steps():
    images, hand = motion(31, 0)
    seen = [
        DemoSteps("a", 10, {HAND: hand}),
        DemoSteps("a", 10, {}, (CAMERA, images[:30])),
        DemoSteps("a", 40, {}, (CAMERA, images[30:])),
    ]
    (found,) = oriented(seen)
    assert "correlation 1.00" in found.what
    assert not oriented([seen[0], DemoSteps("b", 10, {}, (CAMERA, images))])
    assert not oriented([seen[0], DemoSteps("a", 9, {}, (CAMERA, images))])
    assert not oriented([seen[0], DemoSteps("a", 11, {}, (CAMERA, images))])
    assert not oriented(seen[1:])
    # two frames have one change, a single one has none
    pairs = [whole(images[k : k + 2], hand[k : k + 2]) for k in range(60)]
    assert oriented(pairs) and not oriented(pairs[:59])
    assert not oriented([whole(images[:1], hand[:1])])


def test_the_first_ten_demos_are_enough():
    images, hand = motion(3, 0)
    demos = [whole(images, hand, f"demo_{number}") for number in range(10)]
    assert oriented(demos)
    assert not oriented([*demos[:9], whole(images[:-1], hand[:-1], "demo_9")])
    more = motion(0, 300)
    assert oriented([*demos, whole(*more, "demo_10")])
    assert not oriented([*demos, whole(*more, "demo_9")])


@pytest.mark.parametrize(
    ("camera", "hand", "found"),
    [
        ("obs/front_image", "obs/eef_pos", True),
        ("obs/wrist_image", "obs/eef_pos", False),
        ("obs/topview", "obs/eef_pos", False),
        ("obs/front_depth", "obs/eef_pos", False),
        ("steps/front_image", "obs/eef_pos", False),
        ("obs/front_image", "obs/eef_quat", False),
    ],
)
def test_cameras_and_hands_by_name(camera, hand, found):
    images, places = motion(30, 0)
    forms = {camera: SHAPES[CAMERA], hand: SHAPES[HAND]}
    piece = DemoSteps("a", 0, {camera: images, hand: places})
    assert len(oriented([piece], forms)) == found
    flat = {camera: ((96,), "u1"), hand: SHAPES[HAND]}
    assert not oriented([DemoSteps("a", 0, {hand: places})], flat)
    assert not oriented([piece], {camera: SHAPES[CAMERA], hand: ((4,), "f4")})
