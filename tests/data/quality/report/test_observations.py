"""Pictures in the report, decoded again, and its table of arrays."""

import base64
import io
import math
import re
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from imitate.data import DatasetFile
from imitate.data.file.extents import Extents
from imitate.data.quality.doctor.survey import DemoLayout, FileArray
from imitate.data.quality.report import contents as module
from imitate.data.quality.report.contents import data_url, observations, thumbnails
from imitate.data.quality.report.subject import subject_of
from imitate.errors import DatasetError
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


# ---- part by part --------------------------------------------------------------------------------


def stats(low, mean, high, std):
    rows = (np.atleast_1d(np.array(row, float)) for row in (mean, std, low, high))
    return SimpleNamespace(**dict(zip(("mean", "std", "min", "max"), rows, strict=True)))


class Layout:
    """A file of one demo 'd' with arrays of these forms: shape of a step and type."""

    def __init__(self, names=None, **forms):
        forms = {key.replace("__", "/"): form for key, form in forms.items()}
        arrays = {k: FileArray((3, *step), np.dtype(kind)) for k, (step, kind) in forms.items()}
        steps = {k: FileArray((0, *step), np.dtype(kind)) for k, (step, kind) in forms.items()}
        self.layout = SimpleNamespace(steps=steps, extents="extents")
        self.sample, self.names = [DemoLayout("d", arrays, 3)], names or {}


@pytest.fixture
def known(monkeypatch):
    """Statistics by array; those of others cannot be read."""
    found, asked = {}, []

    def statistics(extents, having, key):
        asked.append((extents, having, key))
        if key not in found:
            raise DatasetError(key)
        return found[key]

    monkeypatch.setattr(module, "key_statistics", statistics)
    found["asked"] = asked
    return found


def test_rows_of_arrays(known):
    known["actions"] = stats([0, 1, 2], [0.5, 1, 2], [1, 1.00009, 2.0002], [0.25, 0.5, 0])
    known["obs/still"] = stats([1, 2], [1, 2], [1, 2], [0, 0])
    known["rewards"] = stats(0, 0.5, 2, 0.25)
    subject = Layout(
        names={"actions": ["x", "y", "z"]},
        actions=((3,), "f4"),
        rewards=((), "f4"),
        obs__still=((2,), "f8"),
        obs__lost=((2, 4), "u1"),
        obs__text=((1,), "S1"),
        obs__none=((0,), "f4"),
        action_dict__a=((1,), "f4"),
        states=((1,), "f4"),
    )
    section = module.observations(subject)
    assert (section.id, section.title) == ("observations", "Observations and actions")
    assert section.note.endswith("smallest … largest of the array's dimensions.")
    unknown = (("unreadable",), *["–"] * 4)
    assert section.table.rows == [
        ("actions", "3", "float32", "1 (y)", "0", "1.167", "2", "0 … 0.5"),
        ("rewards", "number", "float32", "", "0", "0.5", "2", "0.25"),
        ("obs/still", "2", "float64", ("all",), "1", "1.5", "2", "0 … 0"),
        ("obs/lost", "2 × 4", "uint8", *unknown),
        ("obs/text", "1", "|S1", *unknown),
        ("obs/none", "0", "float32", *unknown),
        ("action_dict/a", "1", "float32", *unknown),
    ]
    assert section.table.left == 4 and len(section.table.header) == 8
    assert ("extents", ["d"], "actions") in known["asked"]
    assert {key for _, _, key in known["asked"]} == {
        "actions",
        "rewards",
        "obs/still",
        "obs/lost",
        "action_dict/a",
    }
    titles = [title for title, _ in section.details]
    assert titles == ["actions", "obs/still"]
    assert section.details[0][1].rows[1] == ("1 (y)", "1", "1", "1", "0.5")
    assert module.observations(Layout(states=((1,), "f4"))) is None


@pytest.mark.parametrize(
    ("count", "words"), [(100, "dimensions."), (101, " The first 100 of 101 arrays.")]
)
def test_a_hundred_arrays_are_shown(known, count, words):
    section = module.observations(Layout(**{f"obs__k{n}": ((1,), "f4") for n in range(count)}))
    assert len(section.table.rows) == 100 and section.note.endswith(words)


@pytest.mark.parametrize("size", [64, 65])
def test_dimensions_beyond_64_are_left_out(known, size):
    known["obs/s"] = stats(*[np.arange(float(size))] * 4)
    ((title, table),) = module.observations(Layout(obs__s=((size,), "f4"))).details
    assert title == ("obs/s" if size == 64 else "obs/s, the first 64 of 65")
    assert len(table.rows) == 64 and table.rows[63][0] == "63"


def test_the_quality_of_a_picture():
    frame = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    data = base64.b64decode(data_url("obs/i", frame).partition("base64,")[2])
    wanted = io.BytesIO()
    Image.fromarray(frame).save(wanted, "JPEG", quality=85)
    assert data == wanted.getvalue()


class Files:
    """Frames of one number; those of demo 'broken' cannot be read."""

    def read(self, demo, key, start, stop):
        if demo == "broken":
            raise DatasetError(demo)
        return np.full((stop - start, 4, 4, 3), start, np.uint8)


def test_films_of_demos_that_have_them():
    form = FileArray((9, 4, 4, 3), np.dtype("u1"))
    arrays = {
        "good": {"obs/i": form},
        "without": {},
        "broken": {"obs/i": form},
        "other": {"obs/i": FileArray((9, 5, 4, 3), np.dtype("u1"))},
        "five": {"obs/i": form},
    }
    demos = [DemoLayout(name, each, 9) for name, each in arrays.items()]
    steps = {
        "obs/i": FileArray((0, 4, 4, 3), np.dtype("u1")),
        "i": form,
        "obs/t": FileArray((0, 4, 4, 3), np.dtype("S1")),
    }
    subject = SimpleNamespace(layout=SimpleNamespace(steps=steps), sample=demos[:4], file=Files())
    section = thumbnails(subject)
    assert section.note == "First, middle and last frame of 4 demos." and section.id == "images"
    ((key, name, words, films),) = section.cameras
    assert (key, name, words) == ("obs/i", "i", "4 × 4 × 3 uint8")
    assert [title for title, _ in films] == ["good, 9 steps"]
    assert [frame.place for frame in films[0][1]] == [
        "good, step 0",
        "good, step 4",
        "good, step 8",
    ]
    subject.sample = demos
    assert thumbnails(subject).note.endswith("of 4 demos.")  # at most four
    empty = DemoLayout("empty", {"obs/i": FileArray((0, 4, 4, 3), np.dtype("u1"))}, 0)
    subject.sample = [empty]
    assert thumbnails(subject).cameras[0].films == []
    subject.layout.steps = {"obs/s": FileArray((0, 3), np.dtype("f4"))}
    assert thumbnails(subject) is None
    first = {f"obs/c{n}": FileArray((0, 3, 8, 8), np.dtype("u1")) for n in range(8)}
    subject.layout.steps = first
    assert thumbnails(subject).note.endswith("of 1 demo.") and len(thumbnails(subject).cameras) == 8


def test_numbers_of_objects_are_not_mixed_when_a_picture_is_scaled():
    rows = np.arange(336)[:, None, None]
    found, _ = pixels("obs/segmentation", np.broadcast_to(1 + rows // 3 % 2, (336, 4, 1)))
    assert found.shape == (168, 2, 3)
    assert len(np.unique(found.reshape(-1, 3), axis=0)) == 2
    stripes = np.broadcast_to(200 * (rows % 2), (336, 336, 3)).astype(np.uint8)
    np.testing.assert_allclose(pixels("obs/image", stripes)[0], 100, atol=2)
