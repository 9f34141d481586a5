"""Training on images: where they lie is said, and changes nothing else."""

import io

import numpy as np
import pytest
import torch

from imitate.data.batches.placement import frames_folder
from imitate.errors import DatasetError
from imitate.train.batch_source import make_loader
from imitate.train.trainer import train
from tests.demo_files import episode, write_demos
from tests.refusals import refused
from tests.tiny import tiny_tree

from .conftest import assert_same_nets, env_meta

# 12 demos of 10 steps with images of 40 x 40: 576,000 bytes.


def write(path, storage):
    random = np.random.default_rng(0)

    def demonstration():
        row = random.integers(0, 200, (10, 1, 1, 3)) + np.arange(40)[:, None, None]
        camera = np.broadcast_to(row, (10, 40, 40, 3)).astype(np.uint8)
        obs = {"pos": random.uniform(-1, 1, (10, 2)), "camera": camera}
        return episode(10, obs, random.uniform(-1, 1, (10, 2)), "timeout")

    made = (demonstration() for _ in range(12))
    return write_demos(path, made, env_meta(), image_storage=storage)


ENCODER = {
    "core_class": "VisualCore",
    "core_kwargs": {"backbone_class": "ShallowConv", "feature_dimension": 8},
}


def run(path, folder, **settings):
    """Train for three updates; the run, and its lines that begin so."""
    short = {"epoch_every_n_steps": 3}
    keys = {"num_epochs": 1, "batch_size": 4, **settings}
    shapes = {"pos": 2, "camera": (3, 40, 40)}
    stream = io.StringIO()
    seen = {"encoder": {"rgb": ENCODER}}
    tree = tiny_tree(obs=shapes, data=path, experiment=short, train=keys, observation=seen)
    result = train(tree, output_dir=folder, stream=stream)
    assert result.exit_code == 0
    return result, stream.getvalue().splitlines()


def line_of(said):
    (line,) = [line for line in said if line.startswith("images")]
    return line


def test_ram_file_and_workers_give_equal_weights_and_are_told(tmp_path):
    path = write(tmp_path / "a.hdf5", "raw")
    in_ram, said = run(path, tmp_path / "auto")
    assert line_of(said).startswith("images: 576 kB in RAM (of ")
    assert line_of(said).endswith(" GB free)")
    in_file, said = run(path, tmp_path / "file", hdf5_cache_mode="low_dim", num_data_workers=1)
    assert line_of(said).startswith("images stay in the file: 576 kB, ")
    assert_same_nets(in_ram, in_file)


def test_jpegs_are_decoded_once_and_it_is_told(tmp_path):
    path = write(tmp_path / "a.hdf5", "jpeg")
    in_ram, said = run(path, tmp_path / "all", hdf5_cache_mode="all")
    assert not any(line.startswith("obs/camera") for line in said)
    decoded, said = run(path, tmp_path / "low_dim", hdf5_cache_mode="low_dim")
    (cached,) = frames_folder().iterdir()
    assert f"obs/camera was decoded once into {cached} (576 kB)" in said
    again, said = run(path, tmp_path / "again", hdf5_cache_mode="low_dim")
    assert f"obs/camera is read decoded from {cached} (576 kB)" in said
    assert_same_nets(in_ram, decoded)
    assert_same_nets(in_ram, again)


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("imitate.data.batches.store.free_memory", lambda: 500_000)
    path = write(tmp_path / "a.hdf5", "raw")
    with refused("takes 579 kB of RAM and 500 kB are free: set it to 'auto'", error=DatasetError):
        run(path, tmp_path / "runs", hdf5_cache_mode="all")
    assert not (tmp_path / "runs").exists()
    _, said = run(path, tmp_path / "runs")
    assert "images stay in the file: 576 kB, 500 kB free" in said


class PinnedOnDemand(list):
    """Stands for a dataset."""

    is_pinned = False

    def pin_batches(self):
        self.is_pinned = True


@pytest.mark.parametrize(
    ("workers", "device", "settings"),
    [
        (0, "cpu", (False, False, None)),
        (0, "cuda", (False, False, None)),
        (2, "cpu", (False, True, 4)),
        (2, "cuda", (True, True, 4)),
    ],
)
def test_settings_of_the_loader(workers, device, settings):
    data = PinnedOnDemand([0, 1])
    loader = make_loader(data, [[0], [1]], workers, torch.device(device))
    assert data.is_pinned == (device == "cuda" and workers == 0)
    assert (loader.pin_memory, loader.persistent_workers, loader.prefetch_factor) == settings
    assert loader.num_workers == workers
