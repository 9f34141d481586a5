"""Images in each storage: what comes out is what went in, and a broken frame is named."""

import re
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imitate.data import DatasetFile, DatasetWriter, SequenceDataset, check_dataset, finish_partial
from imitate.data.file import image_codec
from imitate.data.file.encoded_frames import DamagedFrameError, decode_images
from imitate.data.file.image_codec import FrameReader, encode_jpeg, storage_of, write_images
from imitate.errors import ConfigError, DatasetError
from tests.demo_files import episode, write_demos
from tests.forked import Forked
from tests.refusals import refused


def smooth(length, height=16, width=24, seed=0):
    """Images that a JPEG keeps nearly as they are: gradients that differ by channel and by step."""
    step, row, column = np.meshgrid(
        np.arange(length), np.arange(height), np.arange(width), indexing="ij"
    )
    red, green = 10 * row + 3 * step + seed, 240 - 9 * column - step
    blue = 4 * (row + column) + 7 * step
    return np.stack([red, green, blue], axis=-1).clip(0, 255).astype(np.uint8)


def write(path, storage, images, **obs):
    obs = {"camera": images, "x": np.ones((len(images), 2)), **obs}
    return write_demos(path, [episode(len(images), obs)], image_storage=storage)


# ---- each storage --------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["raw", "gzip", "lzf", "jpeg"])
def test_the_form_in_the_file(tmp_path, storage):
    images, depth = smooth(9), np.ones((9, 16, 24, 1), np.float32)
    path = write(tmp_path / "a.hdf5", storage, images, depth=depth)
    with h5py.File(path) as file:
        obs = file["data/demo_0/obs"]
        assert (obs["x"].chunks, obs["x"].compression) == (None, None)
        if storage == "jpeg":
            assert obs["camera"].shape == (9,)
            assert obs["camera"].dtype.metadata == {"vlen": np.dtype("uint8")}
            assert obs["camera"].attrs["encoding"] == "jpeg"
            assert obs["camera"].attrs["shape"].tolist() == [16, 24, 3]
            assert bytes(obs["camera"][4][:3]) == b"\xff\xd8\xff"
            assert (obs["depth"].chunks, obs["depth"].compression) == ((4, 16, 24, 1), "gzip")
        elif storage == "raw":
            assert (obs["camera"].chunks, obs["camera"].compression) == (None, None)
        else:
            assert (obs["camera"].chunks, obs["camera"].compression) == ((4, 16, 24, 3), storage)
    with DatasetFile(path) as file:
        assert file.obs_keys("demo_0") == ["camera", "depth", "x"]
        assert file.shape("demo_0", "obs/camera") == (9, 16, 24, 3)
        assert file.dtype("demo_0", "obs/camera") == np.uint8
        assert file.storage("demo_0", "obs/camera") == storage
        assert file.storage("demo_0", "obs/x") == "raw"
        np.testing.assert_array_equal(file.read("demo_0", "obs/depth"), depth)
    check_dataset(path, modalities={"camera": "rgb", "depth": "depth"})


def test_large_frames_are_chunks_of_their_own(tmp_path):
    path = write(tmp_path / "a.hdf5", "gzip", np.zeros((3, 300, 300, 3), np.uint8))
    with h5py.File(path) as file:
        assert file["data/demo_0/obs/camera"].chunks == (1, 300, 300, 3)


@pytest.mark.parametrize(
    ("shape", "frames"),
    [
        ((9, 2**16, 1), 4),
        ((3, 2**16, 1), 3),
        ((9, 2**17, 1), 2),  # 256 KiB
        ((9, 2**17 + 1, 1), 1),
        ((9, 2**18 + 1, 1), 1),
    ],
)
def test_frames_of_a_chunk(tmp_path, shape, frames):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        write_images(file, "k", np.zeros(shape, np.uint8), "lzf", 95)
        assert file["k"].chunks == (frames, *shape[1:]) and file["k"].compression == "lzf"


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((2, 8, 8, 3), "u1", "jpeg"),
        ((2, 8, 8, 3), "f4", "gzip"),
        ((2, 8, 8, 4), "u1", "gzip"),
        ((2, 8, 3, 3), "u1", "jpeg"),
        ((2, 8, 3), "u1", "gzip"),
        ((2, 8, 8, 3, 1), "u1", "gzip"),
    ],
)
def test_arrays_that_become_jpegs(tmp_path, shape, dtype, kind):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        write_images(file, "k", np.zeros(shape, dtype), "jpeg", 95)
        found = storage_of(file["k"])
        assert (found.kind, found.frame) == (kind, shape[1:] if kind == "jpeg" else None)


def test_other_storages_and_wrong_forms(tmp_path):
    bytes_of = h5py.vlen_dtype(np.uint8)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("shuffled", data=np.zeros((4, 4)), chunks=(2, 4), shuffle=True)
        file.create_dataset("chunked", data=np.zeros((4, 4)), chunks=(2, 4))
        file["raw"] = np.zeros((4, 4))
        kinds = {"shuffled": "filtered", "chunked": "chunked", "raw": "raw"}
        assert {key: storage_of(file[key]).kind for key in kinds} == kinds
        cases = (((2,), [8, 8, 4]), ((2,), [8, 0, 3]), ((2,), [8, 3]), ((2, 1), [8, 8, 3]))
        for number, (shape, frame) in enumerate(cases):
            array = file.create_dataset(str(number), shape, bytes_of)
            assert storage_of(array).kind == "raw"  # nothing says that they are frames
            array.attrs.update(encoding="jpeg", shape=frame)
            words = f"the attribute 'shape' of the frames is {tuple(frame)}, not (H, W, 3)"
            with pytest.raises(ValueError, match=re.escape(words)):
                storage_of(array)
        array = file.create_dataset("smallest", (2,), bytes_of)
        array.attrs.update(encoding="png", shape=[1, 1, 3])
        assert storage_of(array) == ("png", (1, 1, 3))


def test_frames_are_read_by_their_numbers(tmp_path):
    images = smooth(5)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        write_images(file, "k", images, "jpeg", 95)
        reader = FrameReader(file["k"])
        assert reader.encoding == "jpeg"
        every = reader.read()
        assert every.shape == images.shape
        for bounds in ((1, 3), (3, 99), (2, 2), (4, 1)):
            np.testing.assert_array_equal(reader.read(*bounds), every[slice(*bounds)])


@pytest.fixture
def video(tmp_path, monkeypatch):
    """Makes a reader of a video of 40 frames, each with its number in all pixels; the last packets may be missing."""
    begun = []

    def frames_from(packets, form, start):
        begun.append((form, start))
        for number in range(start, len(packets)):
            if packets[number][0] == 255:
                raise ValueError("torn")
            if packets[number][0] == 254:
                return
            yield np.full((4, 4, 3), packets[number][0], np.uint8)

    monkeypatch.setattr(image_codec, "frames_from", frames_from)
    monkeypatch.setattr(image_codec, "video_form", lambda array, shape: shape)
    file = h5py.File(tmp_path / "a.hdf5", "w")

    def make(last=39):
        array = file.create_dataset(str(last), (40,), h5py.vlen_dtype(np.uint8))
        for number in range(40):
            array[number] = [number if number < 39 else last]
        array.attrs.update(encoding="video", shape=[4, 4, 3])
        return FrameReader(array), begun

    yield make
    file.close()


def test_a_video_is_read_on_where_the_last_reading_ended(video, monkeypatch):
    reader, begun = video()
    for start, stop in (
        (0, 3),
        (3, 20),
        (20, 40),
        (5, 7),
        (7, 7),
        (7, 9),
        (39, 40),
        (40, 50),
        (0, 99),
    ):
        found = reader.read(start, stop)
        assert found.shape[1:] == (4, 4, 3)
        assert found[:, 3, 3, 2].tolist() == list(range(40))[start:stop]
    assert begun == [((4, 4, 3), start) for start in (0, 5, 39, 0)]
    asked, original = [], h5py.Dataset.__getitem__
    monkeypatch.setattr(
        h5py.Dataset, "__getitem__", lambda s, at: asked.append(at) or original(s, at)
    )
    reader.read(3, 40)
    assert asked == [slice(3, 19), slice(19, 35), slice(35, 51)]


@pytest.mark.parametrize(
    ("last", "words"), [(255, "torn"), (254, "the video ends before this frame")]
)
def test_a_damaged_video_names_the_frame(video, last, words):
    reader, _ = video(last)
    with pytest.raises(DamagedFrameError, match=words) as error:
        reader.read(30, 40)
    assert error.value.frame == 9
    with pytest.raises(DamagedFrameError, match=words) as error:
        reader.read(39)
    assert error.value.frame == 0
    assert reader.read(37, 39)[:, 0, 0, 0].tolist() == [37, 38]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_storage_returns_equal_images(tmp_path, data):
    length = data.draw(st.integers(1, 12))
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    images = smooth(length, data.draw(st.integers(8, 40)), data.draw(st.integers(8, 40)))
    for storage, tolerance in (("raw", 0), ("gzip", 0), ("lzf", 0), ("jpeg", 12)):
        with DatasetFile(write(tmp_path / f"{storage}.hdf5", storage, images)) as file:
            read = file.read("demo_0", "obs/camera", start, stop)
        assert read.dtype == np.uint8
        difference = np.abs(read.astype(int) - images[start:stop])
        assert difference.max() <= tolerance, storage
        assert difference.mean() <= tolerance / 6


def test_a_jpeg_keeps_red_red(tmp_path):
    images = np.zeros((2, 16, 16, 3), np.uint8)
    images[0, ..., 0] = 255
    images[1, ..., 2] = 255
    with DatasetFile(write(tmp_path / "a.hdf5", "jpeg", images)) as file:
        red, blue = file.read("demo_0", "obs/camera")[:, 8, 8].astype(int)
    np.testing.assert_allclose(red, [255, 0, 0], atol=2)
    np.testing.assert_allclose(blue, [0, 0, 255], atol=2)
    images[:, :, ::2] = [255, 0, 0]  # columns that halved colours would mix
    images[:, :, 1::2] = [0, 0, 255]
    with DatasetFile(write(tmp_path / "a.hdf5", "jpeg", images)) as file:
        assert np.abs(file.read("demo_0", "obs/camera").astype(int) - images).max() < 40


def test_less_quality_is_smaller():
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    assert len(encode_jpeg(image, 40)) < 0.6 * len(encode_jpeg(image, 95))


def test_wrong_arguments_leave_nothing(tmp_path):
    for arguments, words in (
        ({"image_storage": "jpg"}, "image_storage is 'jpg'; did you mean 'jpeg'"),
        ({"jpeg_quality": 0}, "jpeg_quality is 0: expected 1 to 100"),
    ):
        with refused(words, error=ConfigError):
            DatasetWriter(tmp_path / "a.hdf5", {}, **arguments)
    assert list(tmp_path.iterdir()) == []


# ---- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (np.frombuffer(b"nothing of the kind", np.uint8), "not a JPEG file"),
        (np.zeros(0, np.uint8), "not a JPEG file"),
        (encode_jpeg(smooth(1)[0], 95)[:-20], "truncated"),
        (encode_jpeg(smooth(1, 8, 8)[0], 95), "its size is 8 x 8, not 16 x 24"),
    ],
)
def test_a_damaged_frame_is_named(tmp_path, frame, words):
    path = write(tmp_path / "a.hdf5", "jpeg", smooth(9))
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/camera"][5] = frame
    with DatasetFile(path) as file:
        assert file.read("demo_0", "obs/camera", 0, 5).shape == (5, 16, 24, 3)
        with refused(words, f"{path}: demo 'demo_0': 'obs/camera' at step 5 cannot be decoded"):
            file.read("demo_0", "obs/camera", 3)
    with refused("'obs/camera' at step 5"):
        check_dataset(path)


@pytest.mark.parametrize("shape", [[16, 24], [10**9, 10**9, 3], [0, 24, 3], "wide"])
def test_a_nonsense_shape_is_an_error_and_takes_no_memory(tmp_path, shape):
    path = write(tmp_path / "a.hdf5", "jpeg", smooth(3))
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/camera"].attrs["shape"] = shape
    with DatasetFile(path) as file, refused("'demo_0'|'obs/camera'"):
        file.read("demo_0", "obs/camera")


def test_damage_is_told_by_the_frames_number_also_from_threads():
    frames = [encode_jpeg(image, 95) for image in smooth(6)]
    frames[4] = frames[4][:100]
    with ThreadPoolExecutor(2) as threads:
        np.testing.assert_array_equal(
            decode_images(frames[:4], (16, 24, 3), threads=threads),
            decode_images(frames[:4], (16, 24, 3)),
        )
        with pytest.raises(DamagedFrameError) as error:
            decode_images(frames, (16, 24, 3), threads=threads)
    assert error.value.frame == 4


@pytest.mark.parametrize("storage", ["jpeg", "gzip"])
@pytest.mark.parametrize("seed", range(12))
def test_foreign_bytes_are_read_or_refused_in_words(tmp_path, storage, seed):
    path = write(tmp_path / "a.hdf5", storage, smooth(9))
    content, random = bytearray(path.read_bytes()), np.random.default_rng(seed)
    at = int(random.integers(8, len(content) - 40))
    content[at : at + 40] = random.bytes(40)
    path.write_bytes(content)
    try:
        SequenceDataset(path, ("camera",), seq_length=3)[list(range(9))]
    except DatasetError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)


# ---- kill -9 -------------------------------------------------------------------------------------

NOISE = np.random.default_rng(0).integers(0, 256, (6, 16, 24, 3), np.uint8)


def record(say, path, storage):
    with DatasetWriter(path, {"env_name": "Lift"}, image_storage=storage) as writer:
        for number in range(10**6):
            writer.append_episode(episode(6, {"camera": (NOISE + number).astype(np.uint8)}))
            say(number + 1)


@pytest.mark.parametrize("storage", ["gzip", "lzf", "jpeg"])
@pytest.mark.parametrize("episodes", [1, 4, 15])
def test_kill_9_loses_the_running_episode_only(tmp_path, storage, episodes):
    path = tmp_path / "a.hdf5"
    with Forked(record, path, storage) as process:
        told = [process.line() for _ in range(episodes)] + process.kill()
    said = int(told[-1])
    assert finish_partial(path) in (said, said + 1)
    check_dataset(path)
    with DatasetFile(path) as file:
        for number, demo in enumerate(file.demos()):
            wanted = (NOISE + number).astype(np.uint8)
            read = file.read(demo, "obs/camera").astype(int)
            assert np.abs(read - wanted).mean() < (8 if storage == "jpeg" else 1e-9)
