"""ALOHA's episodes: what a conversion writes and reports, array by array, and the limits of the shift."""

import h5py
import numpy as np
import pytest

from imitate.data.file.image_codec import encode_jpeg
from imitate.data.formats import aloha as module
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError
from tests.data.formats.samples import aloha_episode, padded
from tests.refusals import refused


def test_everything_of_an_episode(converted, tmp_path):
    source = aloha_episode(tmp_path / "episode_0.hdf5", sim=None)
    with h5py.File(source, "a") as file:
        file["base_action"] = np.arange(8.0).reshape(4, 2)
        file["compress_len"], file["other"] = np.zeros(4), np.zeros(4)
    report, file = converted(source)
    assert file.length("demo_0") == 3
    for key in ("rewards", "terminals"):
        assert file.read("demo_0", key).tolist() == [0, 0, 0]
    assert file.read("demo_0", "timeouts").tolist() == [0, 0, 1]
    assert file.read("demo_0", "base_action").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert file.env_meta["env_name"] == "aloha" and "language" not in file.attrs("demo_0")
    assert report.renamed["action"] == "actions"
    assert report.renamed["observations/images/top"] == "obs/top_image"
    assert report.renamed["observations/qpos"] == "obs/qpos" and report.kept == ["base_action"]
    assert report.changed == {"time": "observation t with action t - 1 (--action-shift)"}
    assert report.dropped == {
        "first 1 observations of each episode": "their action is not recorded",
        "compress_len": "the lengths of JPEG frames",
        "other": "unknown array",
    }
    assert report.synthesised == {
        "control_freq": "50 Hz, ALOHA's; give --fps if yours differs",
        "rewards": "0: the file has none",
        "timeouts": "at the last step: the file does not record ends of episodes",
    }


@pytest.mark.parametrize(("shift", "steps"), [(0, 4), (3, 1), (4, None)])
def test_at_least_one_step_is_left(converted, tmp_path, shift, steps):
    source = tmp_path / "episodes"
    source.mkdir()
    aloha_episode(source / "episode_0.hdf5")
    longer = aloha_episode(source / "episode_1.hdf5")
    with h5py.File(longer, "a") as file:
        for name in ("action", "observations/qpos", "observations/qvel", "observations/images/top"):
            values = file[name][:]
            del file[name]
            file[name] = np.concatenate([values, values])
    options = {"action_shift": shift, "fps": 25.0, "language": "fold"}
    report, file = converted(source, **options)
    lengths = [file.length(demo) for demo in file.demos()]
    assert lengths == [8 - shift] if steps is None else lengths == [steps, 8 - shift]
    dropped = report.dropped.get("episode_0.hdf5")
    assert dropped == (None if steps else "has no step after the shift of 4")
    assert file.control_freq == 25.0 and "control_freq" not in report.synthesised
    assert ("time" in report.changed) == (shift > 0)
    assert file.attrs(file.demos()[0])["language"] == "fold"
    assert file.env_meta["env_name"] == "aloha_sim"


def test_what_is_recognised(tmp_path):
    recognises = module.FORMAT.recognises
    folder = tmp_path / "episodes"
    folder.mkdir()
    assert not recognises(folder)
    with refused(f"{folder}: there is no episode_<number>.hdf5 in this folder"):
        convert(folder, tmp_path / "o.hdf5", from_format="aloha", options=Options())
    path = aloha_episode(folder / "episode_0.hdf5")
    assert recognises(folder) and recognises(path)
    with h5py.File(path, "a") as file:
        del file["observations"]
        file["observations"] = np.zeros(4)
    assert not recognises(path)
    with h5py.File(path, "a") as file:
        del file["action"], file["observations"]
        file.create_group("observations")
    assert not recognises(path)


@pytest.mark.parametrize("name", ["action", "observations/qpos", "observations/images/top"])
def test_lengths_that_differ(tmp_path, name):
    path = aloha_episode(tmp_path / "episode_0.hdf5")
    with h5py.File(path, "a") as file:
        values = file[name][:3]
        del file[name]
        file[name] = values
    with pytest.raises(DatasetError, match="rows?, but 'action' has"):
        convert(path, tmp_path / "o.hdf5")


def test_a_file_of_a_simulation_is_not_shifted(converted, tmp_path):
    report, file = converted(aloha_episode(tmp_path / "episode_0.hdf5", sim=True))
    assert file.length("demo_0") == 4 and report.changed == {}


def test_jpegs_are_decoded_in_the_channels_of_uncompressed_files(converted, tmp_path):
    frame = np.zeros((8, 10, 3), np.uint8)
    frame[..., 0] = 250
    jpegs = padded([encode_jpeg(frame, 95)] * 4)
    _, file = converted(aloha_episode(tmp_path / "episode_0.hdf5", image=jpegs))
    assert file.read("demo_0", "obs/top_image")[0, 4, 5].tolist() == pytest.approx(
        [0, 0, 250], abs=6
    )


@pytest.mark.parametrize("image", [np.zeros((4, 8, 10), np.uint8), np.zeros((4, 8))])
def test_images_that_are_neither_frames_nor_jpegs(tmp_path, image):
    path = aloha_episode(tmp_path / "episode_0.hdf5", image=image)
    with pytest.raises(
        DatasetError, match=r"images/top' has shape \(4, 8.*: neither frames nor JPEG"
    ):
        convert(path, tmp_path / "o.hdf5")
