"""Compressed frames: images keep their colours, a video's packets are decoded from the right one and in order."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import av
import h5py
import numpy as np
import pytest

from imitate.data.file import encoded_frames
from imitate.data.file.encoded_frames import (
    DamagedFrameError,
    EncodedFrames,
    VideoForm,
    can_be_written,
    decode_images,
    encode_image,
    frames_from,
    video_form,
    write_encoded,
)
from imitate.errors import DatasetError

LEVELS = (20, 60, 100, 140, 180, 220)


@pytest.fixture(scope="module")
def video():
    """Packets of six grey frames of 16 x 32, and their form; every third frame is a key frame."""
    encoder = av.CodecContext.create("mpeg4", "w")
    encoder.width, encoder.height, encoder.pix_fmt = 32, 16, "yuv420p"
    encoder.framerate, encoder.time_base, encoder.gop_size = 10, Fraction(1, 10), 3
    encoder.bit_rate, encoder.thread_count = 10**6, 1
    encoder.options = {"sc_threshold": "1000000000"}  # no key frames where the level changes
    packets = []
    for number, level in enumerate(LEVELS):
        frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), level, np.uint8), format="rgb24")
        frame.pts = number
        packets += encoder.encode(frame)
    packets += encoder.encode(None)
    keys = np.array([packet.is_keyframe for packet in packets])
    assert keys.tolist() == [True, False, False] * 2
    form = VideoForm("mpeg4", (16, 32, 3), bytes(encoder.extradata or b""), keys, np.arange(6))
    return [bytes(packet) for packet in packets], form


def levels(frames):
    return [float(frame.mean()) for frame in frames]


def in_a_file(tmp_path, packets, form):
    file = h5py.File(tmp_path / "a.hdf5", "w")
    write_encoded(file, "camera", EncodedFrames("video", packets, form.shape, form))
    return file["camera"]


@pytest.mark.parametrize("start", [0, 1, 3, 5])
def test_frames_come_in_order_from_the_one_that_is_asked_for(video, start):
    frames = list(frames_from(*video, start))
    assert {frame.shape for frame in frames} == {(16, 32, 3)}
    assert levels(frames) == pytest.approx(LEVELS[start:], abs=4)


def test_a_video_is_read_from_a_file_as_it_was_written(video, tmp_path):
    packets, form = video
    array = in_a_file(tmp_path, packets, form)
    read = video_form(array, form.shape)
    assert (read.codec, read.setup, read.colours) == ("mpeg4", form.setup, ())
    assert read.keys.tolist() == form.keys.tolist() and read.order.tolist() == list(range(6))
    assert "order" not in array.attrs  # every packet holds the frame of its own number
    assert levels(frames_from(array, read, 0)) == pytest.approx(LEVELS, abs=4)
    array.attrs["order"] = np.array([0, 1, -1, 0, 0, 0], np.int8)
    assert video_form(array, form.shape).order.tolist() == [0, 2, 1, 3, 4, 5]
    array.attrs["order"] = np.zeros(5, np.int8)
    with pytest.raises(ValueError, match="'order' has 5 numbers for 6 packets"):
        video_form(array, form.shape)
    array.file.close()
    coloured = in_a_file(tmp_path, packets, replace(form, colours=(1, 13, 6)))
    assert video_form(coloured, form.shape).colours == (1, 13, 6)


@pytest.mark.parametrize("form", [{"shape": (32, 16, 3)}, {"order": np.arange(6)[::-1]}])
def test_frames_of_another_size_or_number_are_refused(video, form):
    packets, own = video
    with pytest.raises(ValueError, match=r"the video gives frame \d of 16 x 32; expected frame 0"):
        list(frames_from(packets, replace(own, **form), 0))


def test_decoding_begins_at_the_last_key_frame_that_is_not_after_the_frame():
    form = VideoForm("h264", (), b"", np.array([1, 0, 1, 0], bool), np.array([0, 2, 1, 3]))
    assert [form.before(frame) for frame in range(4)] == [0, 2, 2, 2]
    none = replace(form, keys=np.zeros(4, bool))
    assert none.before(3) == 0


def shifted(by):
    """An order in which the packet of the last frame comes first, ``by`` places before its own."""
    order = np.arange(by + 1)
    return {"order": np.roll(order, 1), "keys": np.ones(by + 1, bool)}


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"codec": "gif"}, False),
        ({"keys": np.array([False, True])}, False),
        ({"order": np.array([0, 2])}, False),
        (shifted(127), True),
        (shifted(128), False),
        ({"order": np.arange(60_000), "keys": np.ones(60_000, bool)}, True),
        ({"order": np.arange(60_001), "keys": np.ones(60_001, bool)}, False),
    ],
)
def test_what_fits_into_attributes(changes, fits):
    usual = VideoForm("h264", (8, 8, 3), b"", np.array([True, False]), np.array([0, 1]))
    assert can_be_written(replace(usual, **changes)) is fits


def test_a_codec_that_is_not_installed_or_not_read_is_named(video, monkeypatch):
    def absent(name, mode):
        raise ValueError(name)

    packets, form = video
    with pytest.raises(DatasetError, match="codec 'gif', but only these codecs are read: av1, "):
        next(frames_from(packets, replace(form, codec="gif"), 0))
    without = SimpleNamespace(CodecContext=SimpleNamespace(create=absent))
    monkeypatch.setattr(encoded_frames, "_av", lambda: without)
    with pytest.raises(DatasetError, match="'mpeg4', which the installed PyAV cannot decode"):
        next(frames_from(packets, form, 0))


def test_a_png_is_exact_and_a_jpeg_keeps_single_columns_of_colour():
    image = np.zeros((16, 16, 3), np.uint8)
    image[:, ::2, 0] = 255  # with halved colours the columns would be mixed
    data = {kind: encode_image(image, kind) for kind in ("png", "jpeg")}
    read = {kind: decode_images([cell], (16, 16, 3), kind)[0] for kind, cell in data.items()}
    np.testing.assert_array_equal(read["png"], image)
    assert np.abs(read["jpeg"].astype(int) - image).max() < 40
    with pytest.raises(ValueError, match="not a PNG file"):
        decode_images([data["jpeg"]], (16, 16, 3), "png")


def test_images_that_are_damaged_are_named_by_their_number():
    image = np.random.default_rng(0).integers(256, size=(16, 16, 3), dtype=np.uint8)
    whole = encode_image(image, "png").tobytes()
    assert decode_images([whole], image.shape, "png").tolist() == [image.tolist()]
    assert decode_images([], (4, 5, 3)).shape == (0, 4, 5, 3)
    for frames, frame, words in (
        ([whole, whole[:200]], 1, None),
        ([whole, b"x"], 1, "not a PNG file"),
        ([whole, encode_image(image[:8], "png")], 1, "its size is 8 x 16, not 16 x 16"),
    ):
        with pytest.raises(DamagedFrameError, match=words) as caught:
            decode_images(frames, image.shape, "png")
        assert caught.value.frame == frame
    with pytest.raises(DamagedFrameError, match="not 10000000 x 10000000"):
        decode_images([whole], (10_000_000, 10_000_000, 3), "png")


class Decoder:
    """Notes what is set."""

    def __init__(self):
        object.__setattr__(self, "set", {"flags": 4})

    def __setattr__(self, name, value):
        self.set[name] = value

    def __getattr__(self, name):
        return self.set[name]


@pytest.mark.parametrize(
    ("setup", "order", "more"),
    [
        (b"s", [0, 1], {"extradata": b"s", "flags": 12}),
        (b"", [1, 0], {}),
        (b"", [0, 1], {"flags": 12}),
    ],
)
def test_settings_of_a_decoder(setup, order, more):
    asked = []

    def create(name, mode):
        asked.append((name, mode))
        if name == "libdav1d":
            raise ValueError
        return Decoder()

    flags = SimpleNamespace(Flags=SimpleNamespace(low_delay=8))
    fake = SimpleNamespace(
        CodecContext=SimpleNamespace(create=create),
        codec=SimpleNamespace(context=flags),
    )
    form = VideoForm("av1", (8, 8, 3), setup, np.ones(2, bool), np.array(order), (3, 4))
    made = encoded_frames.decoder_of(fake, form)
    assert asked == [("libdav1d", "r"), ("av1", "r")]
    first, second = encoded_frames.COLOURS[:2]
    assert made.set == {"flags": 4, "thread_count": 1, first: 3, second: 4, **more}


def test_colours_of_a_stream():
    first, second, *others = encoded_frames.COLOURS
    stream = SimpleNamespace(codec_context=SimpleNamespace(**{first: 5, second: None}))
    assert encoded_frames.colours_of(stream) == (5, 0, *[2] * len(others))
