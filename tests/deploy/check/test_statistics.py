"""Where statistics of the training come from."""

import tracemalloc

import numpy as np
import pytest

from imitate.data import DatasetFile, SequenceDataset
from imitate.deploy.check import statistics
from imitate.deploy.check.statistics import image_range, measured, training_of
from imitate.train import setup
from imitate.train.setup import observation_statistics
from tests.deploy.check.test_deploy_check import KINDS, written

JOINTS = {"joints": {"mean": [0.0] * 3, "std": [1.0] * 3, "min": [-1.0] * 3, "max": [1.0] * 3}}


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "training.hdf5", seed=0)


def test_measured_by_hand(file):
    ranges = measured(file, KINDS)
    assert ranges["joints"].mean.shape == (3,)
    assert ranges["joints"].low[2] == ranges["joints"].high[2] == 0.5
    # Red is 200 times a shade of 0.6 to 1, of 255.
    np.testing.assert_allclose(ranges["camera"].mean, np.array([160, 96, 32]) / 255, atol=0.01)
    assert ranges["camera"].high.max() <= 200 / 255


def test_bytes_and_floats_are_the_same_pixels():
    pixels = np.array([[[[0, 51, 255]]]], np.uint8)
    for images in (pixels, pixels.astype(np.int64), pixels / 255.0):
        np.testing.assert_allclose(image_range([images]).mean, [0.0, 0.2, 1.0])


def test_images_are_not_held_as_floats():
    """500 images of a camera would take 3.7 GB."""
    images = np.zeros((50, 480, 640, 3), np.uint8)
    tracemalloc.start()
    try:
        image_range([images])
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < images.nbytes / 2


def test_images_of_many_demos_are_read_from_a_part_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "MAX_IMAGES", 3)
    path = written(tmp_path / "training.hdf5", seed=0)
    with DatasetFile(path) as file:
        assert len(list(statistics._frames(file, file.demos() * 4, "camera"))) == 3


def test_the_users_file_comes_first_then_the_checkpoint_then_its_training_file(file):
    ckpt = {"provenance": {"observations": JOINTS, "datasets": [{"path": str(file)}]}}
    assert training_of(ckpt, file, KINDS).origin == f"the file {file}"
    recorded = training_of(ckpt, None, KINDS)
    assert recorded.origin == "the checkpoint"
    assert recorded.ranges["joints"].high.tolist() == [1.0] * 3
    del ckpt["provenance"]["observations"]
    assert training_of(ckpt, None, KINDS).origin == f"the training file {file}"
    assert set(training_of(ckpt, None, KINDS).ranges) == {"joints", "camera"}


@pytest.mark.parametrize(
    "saved",
    [7, {"joints": 7}, {"joints": {"mean": ["x"], "std": [1], "min": [0], "max": [1]}},
     {"joints": {**JOINTS["joints"], "max": [1.0]}}, {"joints": {**JOINTS["joints"], "max": [np.nan] * 3}}],
)  # fmt: skip
def test_statistics_that_are_none_are_left_out(saved, file):
    ckpt = {"provenance": {"observations": saved, "datasets": [{"path": str(file)}]}}
    assert training_of(ckpt, None, KINDS).origin == f"the training file {file}"


def test_of_a_server_nothing_is_known():
    assert training_of(None, None, KINDS).origin == ""


def test_a_training_records_what_is_measured_of_its_file(file, monkeypatch):
    monkeypatch.setattr(statistics, "MAX_IMAGES", 10**6)  # all images, not two selections
    monkeypatch.setattr(setup, "_PROVENANCE_IMAGES", 10**6)
    dataset = SequenceDataset(file, obs_keys=("joints", "camera"))
    saved = {"provenance": {"observations": observation_statistics(dataset)}}
    recorded, seen = training_of(saved, None, KINDS).ranges, measured(file, KINDS)
    for key in KINDS:
        for name in ("mean", "std", "low", "high"):
            ours, theirs = getattr(recorded[key], name), getattr(seen[key], name)
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_training_reads_few_images_at_its_start(file, monkeypatch):
    read = []
    dataset = SequenceDataset(file, obs_keys=("joints", "camera"))
    field = dataset.store.field

    def counted(key, rows):
        read.extend(rows if key == "obs/camera" else ())
        return field(key, rows)

    monkeypatch.setattr(dataset.store, "field", counted)
    observation_statistics(dataset)
    assert len(dataset.store) > len(read) == 100
