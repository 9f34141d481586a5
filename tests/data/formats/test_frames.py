"""Compressed images of other toolkits: decoded, stacked, kept as they are, refused."""

import io

import numpy as np
import pytest
from PIL import Image

from imitate.data.formats import frames
from imitate.data.formats.frames import as_encoded, as_png, decoded, stacked
from imitate.errors import DatasetError

RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def encoded(image, kind="PNG"):
    data = io.BytesIO()
    Image.fromarray(image).save(data, kind)
    return data.getvalue()


@pytest.mark.parametrize("image", [RGB, RGB[..., 0], RGB[..., 0].astype(np.uint16) * 900])
def test_an_image_is_decoded(image):
    found = decoded(encoded(np.ascontiguousarray(image)), "f")
    np.testing.assert_array_equal(found, image)
    assert found.dtype == image.dtype


def test_a_frame_is_encoded_without_loss():
    np.testing.assert_array_equal(decoded(as_png(RGB), "f"), RGB)
    assert decoded(encoded(RGB, "JPEG"), "f").shape == RGB.shape


@pytest.mark.parametrize("data", [b"", b"no image", encoded(RGB)[:40], encoded(RGB, "BMP")])
def test_bytes_that_are_no_image(data):
    with pytest.raises(DatasetError, match="^f: contains bytes that are not an image"):
        decoded(data, "f")


def test_an_image_that_claims_to_be_huge(monkeypatch):
    data = encoded(RGB)
    for most, refused in ((3 * 4 * 6, False), (3 * 4 * 6 - 1, True)):
        monkeypatch.setattr(frames, "ALWAYS_BYTES", most)
        monkeypatch.setattr(frames, "MAX_RATIO", 0)
        assert (as_encoded([data]) is None) == refused
        if refused:
            with pytest.raises(
                DatasetError, match=f"{len(data)} bytes claim to be an image of 4 x 6"
            ):
                decoded(data, "f")
        else:
            decoded(data, "f")
    monkeypatch.setattr(frames, "MAX_RATIO", 1)
    monkeypatch.setattr(frames, "ALWAYS_BYTES", 0)
    assert len(data) > 72
    assert decoded(data, "f").shape == RGB.shape and as_encoded([data, data]) is not None


def test_images_become_one_array():
    found = stacked(iter([RGB, RGB + 1]), 2, "f")
    assert found.shape == (2, 4, 6, 3) and found.dtype == np.uint8
    np.testing.assert_array_equal(found[1], RGB + 1)
    assert stacked([], 0, "f").shape == (0,)
    for other in (RGB[:2], RGB.astype(np.float32)):
        with pytest.raises(
            DatasetError, match=r"f: image 1 is .*, but the first is \(4, 6, 3\) uint8"
        ):
            stacked([RGB, other], 2, "f")


def test_all_images_must_fit_into_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(frames, "check_room", lambda where, size: asked.append((where, size)))
    stacked([RGB, RGB], 2, "f")
    assert asked == [("f", 2 * 72)]


@pytest.mark.parametrize(
    ("cells", "encoding"),
    [
        ([encoded(RGB), encoded(RGB + 1)], "png"),
        ([encoded(RGB, "JPEG")], "jpeg"),
        ([encoded(RGB), encoded(RGB, "JPEG")], None),
        ([encoded(RGB), encoded(np.ascontiguousarray(RGB[:2]))], None),
        ([encoded(np.ascontiguousarray(RGB[..., 0]))], None),
        ([b"no image"], None),
        ([], None),
    ],
)
def test_colour_images_of_one_kind_stay_compressed(cells, encoding):
    found = as_encoded(cells)
    assert (found is None) == (encoding is None)
    if found is not None:
        assert (found.encoding, found.frame, len(found.cells)) == (encoding, (4, 6, 3), len(cells))
