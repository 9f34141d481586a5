"""Images of the steps that a policy looks at, and no others."""

import numpy as np
import pytest
import torch

from imitate.config import load_config
from imitate.data import DatasetWriter, Episode, SequenceDataset
from imitate.data.batches.build import build_datasets

META = {"type": 2, "env_name": "none", "env_kwargs": {}}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "images.hdf5"
    with DatasetWriter(path, META) as writer:
        for demo in range(2):
            steps = 10
            image = np.zeros((steps, 4, 4, 3), dtype=np.uint8)
            image += (10 * demo + np.arange(steps, dtype=np.uint8))[:, None, None, None]
            ends = np.zeros(steps, dtype=bool)
            writer.append_episode(
                Episode(
                    {"camera": image, "state": np.arange(steps, dtype=np.float32)[:, None]},
                    np.zeros((steps, 2), np.float32),
                    np.zeros(steps, np.float32),
                    ends,
                    ends,
                )
            )
    return path


@pytest.mark.parametrize("cache_mode", ["all", "low_dim"])
def test_the_first_images_of_whole_windows(path, cache_mode):
    def windows(image_steps):
        dataset = SequenceDataset(
            path,
            obs_keys=("camera", "state"),
            frame_stack=2,
            seq_length=6,
            hdf5_cache_mode=cache_mode,
            load_next_obs=True,
            image_steps=image_steps,
        )
        return dataset[np.array([0, 4, 13])]

    whole, some = windows(None), windows(2)
    assert whole["obs"]["camera"].shape == (3, 7, 4, 4, 3)
    for group in ("obs", "next_obs"):
        assert torch.equal(some[group]["camera"], whole[group]["camera"][:, :2])
        assert torch.equal(some[group]["state"], whole[group]["state"])
    assert some["obs"]["camera"][1, :, 0, 0, 0].tolist() == [3, 4]


def test_a_policy_that_predicts_chunks_reads_its_frames_only(path):
    config = load_config(
        {
            "algo_name": "flow_policy",
            "train": {"data": str(path)},
            "observation": {"modalities": {"obs": {"low_dim": ["state"], "rgb": ["camera"]}}},
        }
    )
    dataset, _ = build_datasets(config)
    batch = dataset[np.array([5])]
    assert batch["obs"]["camera"].shape[1] == 2
    assert batch["actions"].shape[1] == 17
