"""Where statistics of the training come from."""

import json
import tracemalloc

import numpy as np
import pytest
import torch

from imitate.data import DatasetFile, SequenceDataset, dataset_file
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


class Frames:
    """A file in which `demos` demos have `steps` images each."""

    demos_, steps = 3, 5

    def __init__(self, path):
        assert path == "a.hdf5"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def demos(self):
        return [f"demo_{number}" for number in range(self.demos_)]

    def has(self, demo, key):
        return key == "obs/camera"

    def length(self, demo):
        return self.steps

    def read(self, demo, key, start, stop):
        return (demo, key, int(start), int(stop))


@pytest.mark.parametrize(
    ("demos", "steps", "count", "first", "last"),
    [(3, 5, 15, 0, 14), (3, 1000, 99, 0, 2999), (200, 3, 100, 0, 597), (101, 1, 100, 0, 100)],
)
def test_at_most_a_hundred_images_are_spread_over_demos_and_steps(
    monkeypatch, demos, steps, count, first, last
):
    monkeypatch.setattr(dataset_file, "DatasetFile", Frames)
    monkeypatch.setattr(statistics, "image_range", list)
    monkeypatch.setattr(Frames, "demos_", demos)
    monkeypatch.setattr(Frames, "steps", steps)
    kinds = {"camera": "rgb", "far": "depth", "state": "low_dim", "wrist": "rgb"}
    found = measured("a.hdf5", kinds)
    assert list(found) == ["camera"]
    places = [int(demo[5:]) * steps + start for demo, _, start, _ in found["camera"]]
    assert (len(places), places[0], places[-1]) == (count, first, last)
    assert places == sorted(set(places))
    assert all(key == "obs/camera" and b == a + 1 for _, key, a, b in found["camera"])


def normalized(kind, **obs):
    parts = {
        key: {"offset": torch.tensor(offset), "scale": torch.tensor(scale)}
        for key, (offset, scale) in obs.items()
    }
    config = {"algo_name": "bc", "train": {"obs_normalization": kind}}
    return {"config": json.dumps(config), "preprocess": {"obs": parts}, "rename": {"joints": "x"}}


def test_last_comes_the_normalization(file):
    obs = {
        "x": ([1.0, 2.0], [3.0, 4.0]),
        "plain": ([0.0, 0.0], [1.0, 1.0]),
        "moved": ([0.0, 1.0], [1.0, 1.0]),
        "other": ([5.0], [5.0]),
    }
    kinds = dict.fromkeys(("joints", "plain", "moved"), "low_dim")
    ckpt = normalized("mean_std", **obs)
    ckpt["provenance"] = {"datasets": [{"path": str(file)}]}
    found = training_of(ckpt, None, kinds, reads_files=False)
    assert found.origin == "the checkpoint's normalization" and set(found.ranges) == {
        "joints",
        "moved",
    }
    joints = found.ranges["joints"]
    assert [part.tolist() for part in (joints.mean, joints.std)] == [[1.0, 2.0], [3.0, 4.0]]
    assert (joints.low == -np.inf).all() and (joints.high == np.inf).all()
    without = training_of(normalized("min_max", **obs), None, kinds)
    assert (without.origin, without.ranges) == ("", {})


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
    assert recorded["camera"].first is seen["camera"].first is None
    with DatasetFile(file) as data:
        begin = np.stack([data.read(demo, "obs/joints", 0, 1)[0] for demo in data.demos()])
    for ranges in (recorded, seen):
        low, high = ranges["joints"].first
        np.testing.assert_allclose(low, begin.min(axis=0), atol=1e-6)
        np.testing.assert_allclose(high, begin.max(axis=0), atol=1e-6)


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
