"""Pictures in the report, decoded again, and its table of arrays."""

import base64
import io
import math
import re
from contextlib import ExitStack

import numpy as np
import pytest
from PIL import Image

from imitate.data import DatasetFile
from imitate.data.file.extents import Extents
from imitate.data.quality.report.observations import data_url, observations, thumbnails
from imitate.data.quality.report.subject import subject_of
from tests.demo_files import episode, write_demos


def pixels(key, frame):
    """The picture of a frame, and its kind."""
    kind, _, data = data_url(key, frame).partition(";base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).astype(int), kind


def colour(number):
    hue = 0.618034 * number % 1 * 2 * math.pi
    return [
        round(255 * (0.5 + 0.4 * math.cos(hue + turn * 2 * math.pi / 3))) for turn in (0, -1, 1)
    ]


def test_objects_of_a_segmentation_have_colours_and_nothing_is_dark():
    frame = np.array([[[0, 9]], [[1, 9]], [[2, 9]], [[-1, 9]]], dtype=np.int32)[..., :1]
    found, kind = pixels("obs/front_segmentation", frame)
    assert kind == "data:image/png" and found.shape == (4, 1, 3)
    np.testing.assert_allclose(found[:, 0], [[40] * 3, colour(1), colour(2), [40] * 3], atol=1)


@pytest.mark.parametrize(
    ("key", "values", "bytes_"),
    [
        ("obs/depth", [2.0, 3.0, 4.0], [0, 128, 255]),  # the nearest and the farthest
        ("obs/depth", [5.0, 5.0, 5.0], [0, 0, 0]),
        ("obs/x", [0.0, 0.5, 1.0], [0, 128, 255]),
        ("obs/x", [0.0, 0.5, 0.25], [0, 128, 64]),
        ("obs/x", [0.0, 51.0, 255.0], [0, 51, 255]),
        ("obs/x", [-1.0, 0.0, 1.0], [0, 128, 255]),
        ("obs/x", [np.nan, 1.0, np.inf], [0, 255, 0]),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_numbers_become_brightness(key, values, bytes_, first):
    frame = np.repeat(np.array(values)[:, None], 8, axis=1).repeat(8, axis=0)[..., None]
    frame = np.moveaxis(frame, 2, 0) if first else frame
    found, kind = pixels(key, frame.astype(np.float32))
    assert kind == "data:image/jpeg" and found.shape == (24, 8, 3)
    np.testing.assert_allclose(found[4::8].mean(axis=1), np.repeat([bytes_], 3, 0).T, atol=3)


@pytest.mark.parametrize("channels", [3, 4])
def test_colours_stay_and_transparency_goes(channels):
    frame = np.full((8, 8, 4), [200, 100, 50, 7], np.uint8)[..., :channels]
    np.testing.assert_allclose(pixels("obs/image", frame)[0].mean((0, 1)), [200, 100, 50], atol=3)


def test_large_pictures_are_scaled_to_their_longer_side():
    assert pixels("obs/image", np.zeros((336, 100, 3), np.uint8))[0].shape == (168, 50, 3)
    assert pixels("obs/image", np.zeros((3, 84, 168), np.uint8))[0].shape == (84, 168, 3)
    assert pixels("obs/image", np.zeros((2000, 2, 3), np.uint8))[0].shape == (168, 1, 3)


@pytest.fixture
def subject(tmp_path):
    """Makes the input of a report on demos of these lengths and observations."""
    with ExitStack() as stack:

        def make(lengths, obs):
            made = [episode(n, {key: value[:n] for key, value in obs.items()}) for n in lengths]
            path = write_demos(tmp_path / "a.hdf5", made)
            extents = stack.enter_context(Extents(stack.enter_context(DatasetFile(path))))
            return subject_of(extents, filter_key=None, max_demos=200)

        yield make


def test_films_have_the_first_the_middle_and_the_last_frame(subject):
    images = {f"c{number}_image": np.zeros((7, 4, 4, 3), np.uint8) for number in range(9)}
    section = thumbnails(subject([7, 2, 1], {**images, "x": np.zeros((7, 2))}))
    assert section.note == ("First, middle and last frame of 3 demos. The first 8 of 9 cameras.")
    assert len(section.cameras) == 8
    films = section.cameras[0].films
    assert [title for title, _ in films] == ["demo_0, 7 steps", "demo_1, 2 steps", "demo_2, 1 step"]
    steps = [[int(re.search(r"\d+$", frame.place)[0]) for frame in frames] for _, frames in films]
    assert steps == [[0, 3, 6], [0, 1], [0]]


def test_a_row_has_the_numbers_of_an_array(subject):
    x = np.array([[0.0, 1.0, 5.0], [2.0, 1.0, 5.0], [4.0, 1.0, 5.00005]])
    wide = np.arange(70.0) + np.arange(3.0)[:, None]
    section = observations(subject([3], {"x": x, "wide": wide}))
    rows = {row[0]: row[1:] for row in section.table.rows}
    assert rows["obs/x"][:3] == ("3", "float64", "1, 2")
    assert rows["obs/x"][3:6] == ("0", "2.667", "5")
    details = dict(section.details)
    assert list(details)[1:] == ["obs/wide, the first 64 of 70", "obs/x"]
    assert len(details["obs/wide, the first 64 of 70"].rows) == 64
    assert details["obs/x"].rows[0][:4] == ("0", "0", "2", "4")
