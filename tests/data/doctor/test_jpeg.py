"""Frames that are stored as JPEG are images to the doctor, and stay so in its copies."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.curate.target import Target
from imitate.data.doctor.diagnosis import diagnose
from imitate.data.doctor.repair import fix

STEPS = 40


@pytest.fixture
def path(tmp_path):
    """Smooth pictures whose upper half is light; the robot rests from step 10 to 29."""
    random = np.random.default_rng(0)
    path = tmp_path / "a.hdf5"
    env = {"env_name": "x", "type": 4, "env_kwargs": {}}
    with DatasetWriter(path, env, image_storage="jpeg") as writer:
        for _ in range(3):
            actions = random.uniform(-0.9, 0.9, (STEPS, 3))
            actions[10:30] = 0
            positions = 0.05 * (actions.cumsum(axis=0) - actions)
            images = np.full((STEPS, 16, 24, 3), 40, np.uint8)
            images[:, :8] = 200
            images[..., 0] += np.arange(STEPS, dtype=np.uint8)[:, None, None]
            obs = {"eef_pos": positions, "front_image": images}
            zeros = np.zeros(STEPS)
            writer.append_episode(Episode(obs, actions, zeros, zeros, zeros))
    return path


def codes(report):
    return [finding.code for finding in report.findings]


def image_of(path, demo="demo_0"):
    with DatasetFile(path) as file:
        assert file.storage(demo, "obs/front_image") == "jpeg"
        return file.read(demo, "obs/front_image").astype(int)


def test_they_are_images(path):
    report = diagnose(path)
    assert codes(report) == ["idle"]
    assert report.read_bytes > 3 * STEPS * 16 * 24 * 3


def test_rows_that_are_cut_are_copied_as_they_are(path, tmp_path):
    out = tmp_path / "b.hdf5"
    _, after = fix(path, Target(out))
    assert codes(after) == []
    kept = [*range(15), *range(30, STEPS)]
    np.testing.assert_array_equal(image_of(out), image_of(path)[kept])


def test_pictures_that_are_turned_are_compressed_again(path, tmp_path):
    with h5py.File(path, "r+") as file:
        file["data"].attrs["macros_image_convention"] = "opengl"
    out = tmp_path / "b.hdf5"
    _, after = fix(path, Target(out), only=["upside_down"])
    assert "upside_down" not in codes(after)
    turned = image_of(path)[:, ::-1]
    assert np.abs(image_of(out) - turned).max() <= 6
    assert np.abs(image_of(out) - image_of(path)).max() > 100


def test_a_damaged_frame_is_found(path, tmp_path):
    with h5py.File(path, "r+") as file:
        file["data/demo_1/obs/front_image"][7] = np.arange(9, dtype=np.uint8)
    (finding,) = [f for f in diagnose(path).findings if f.code == "unreadable"]
    assert finding.demos == ["demo_1"]
    assert "step 7" in finding.what
    fixed, after = fix(path, Target(tmp_path / "b.hdf5"), only=["unreadable"])
    assert (after.demos, codes(after)) == (2, ["idle"])
