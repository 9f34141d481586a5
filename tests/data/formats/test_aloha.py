"""ALOHA: one file per episode, compressed images, and the shift of actions."""

import h5py
import imageio.v3 as iio
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError

T = 4


def write(path, sim=True, image=None, number=0):
    time = np.arange(T) + number
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = sim
        file["observations/qpos"] = np.stack([time] * 14, axis=1).astype(np.float32)
        file["observations/qvel"] = np.zeros((T, 14), dtype=np.float32)
        plain = np.full((T, 8, 10, 3), number, dtype=np.uint8)
        file["observations/images/top"] = plain if image is None else image
        file["action"] = np.stack([time] * 14, axis=1).astype(np.float32) / 10
    return path


def folder(tmp_path, sim):
    source = tmp_path / "episodes"
    source.mkdir()
    for number in (0, 2, 10):
        write(source / f"episode_{number}.hdf5", sim=sim, number=number)
    return source


def test_simulated_episodes_are_taken_as_they_are(tmp_path):
    report = convert(folder(tmp_path, sim=True), tmp_path / "o.hdf5")
    assert (report.source_format, report.demos, report.steps) == ("aloha", 3, 12)
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.read("demo_1", "obs/qpos")[:, 0].tolist() == [2, 3, 4, 5]
        assert file.read("demo_2", "obs/qpos")[:, 0].tolist() == [10, 11, 12, 13]
        np.testing.assert_allclose(file.read("demo_2", "actions")[:, 0], [1, 1.1, 1.2, 1.3])
        assert file.read("demo_2", "timeouts").tolist() == [0, 0, 0, 1]
        assert file.read("demo_2", "obs/top_image")[0, 0, 0, 0] == 10
        assert file.file_attrs["control_freq"] == 50
        assert file.env_meta["type"] == 4


@pytest.mark.parametrize(
    ("sim", "option", "shift"), [(False, None, 1), (False, 0, 0), (True, 2, 2)]
)
def test_an_observation_goes_with_the_action_before_it(tmp_path, sim, option, shift):
    source = write(tmp_path / "episode_0.hdf5", sim=sim)
    convert(source, tmp_path / "o.hdf5", options=Options(action_shift=option))
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.read("demo_0", "obs/qpos")[:, 0].tolist() == list(range(shift, T))
        np.testing.assert_allclose(
            file.read("demo_0", "actions")[:, 0], np.arange(T - shift) / 10, rtol=1e-6
        )
        assert len(file.read("demo_0", "obs/top_image")) == T - shift


def test_compressed_images_have_the_colours_of_plain_ones(tmp_path):
    frame = np.zeros((16, 16, 3), dtype=np.uint8)
    frame[..., 0] = 220  # red
    swapped = frame[..., ::-1]  # what an encoder that expects BGR makes of it
    data = np.frombuffer(
        iio.imwrite("<bytes>", np.ascontiguousarray(swapped), plugin="pillow", extension=".jpg", quality=95), np.uint8
    )  # fmt: skip
    padded = np.zeros((T, len(data) + 37), dtype=np.uint8)
    padded[:, : len(data)] = data
    source = write(tmp_path / "episode_0.hdf5", image=padded)
    with h5py.File(source, "a") as file:
        file.attrs["compress"] = True
        file["compress_len"] = np.full((1, T), len(data))
    report = convert(source, tmp_path / "o.hdf5")
    with DatasetFile(tmp_path / "o.hdf5") as file:
        image = file.read("demo_0", "obs/top_image")
    assert image.shape == (T, 16, 16, 3)
    assert np.abs(image.astype(int) - frame).max() <= 6
    assert report.changed["images"].startswith("JPEG")


def test_bytes_that_are_no_image_are_refused(tmp_path):
    source = write(tmp_path / "episode_0.hdf5", image=np.ones((T, 50), dtype=np.uint8))
    with pytest.raises(DatasetError, match="images/top.*no image"):
        convert(source, tmp_path / "o.hdf5")
    assert not list(tmp_path.glob("o*"))
