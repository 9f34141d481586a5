"""Observations that lie ahead of a sample's step."""

import numpy as np
import pytest
import torch

from imitate import SequenceDataset
from imitate.config.data_needs import Subgoals, Transitions
from imitate.data.file.writer import DatasetWriter, Episode


def write(path, lengths=(5, 3), with_next=False):
    """Observation x of demo d at step t is 10 d + t, and one more after its last step where ``next_obs`` is there."""
    with DatasetWriter(path, {"env_name": "none", "type": 2, "env_kwargs": {}}) as writer:
        for demo, length in enumerate(lengths):
            x = 10.0 * demo + np.arange(length + 1)[:, None]
            image = np.broadcast_to(x[:, :, None, None], (length + 1, 4, 4, 3)).astype(np.uint8)
            obs = {"x": x[:-1], "image": image[:-1], "other": x[:-1]}
            ends = np.zeros(length)
            writer.append_episode(
                Episode(
                    obs=obs,
                    actions=np.zeros((length, 1)),
                    rewards=ends,
                    terminals=ends,
                    timeouts=ends,
                    next_obs={"x": x[1:], "image": image[1:], "other": x[1:]}
                    if with_next
                    else None,
                )
            )
    return path


def dataset(path, subgoals, **kwargs):
    return SequenceDataset(path, ["x", "image", "other"], subgoals=subgoals, **kwargs)


@pytest.mark.parametrize(
    ("with_next", "wanted"),
    [
        (False, [2, 3, 4, 4, 4, 12, 12, 12]),
        (True, [2, 3, 4, 5, 5, 12, 13, 13]),
    ],
)
def test_the_observation_two_steps_ahead_or_the_last_one(tmp_path, with_next, wanted):
    path = write(tmp_path / "d.hdf5", with_next=with_next)
    batch = dataset(path, Subgoals(("x", "image"), 2))[np.arange(8)]
    assert batch["subgoals"]["x"][:, 0].tolist() == wanted
    assert batch["subgoals"]["image"][:, 0, 0, 0].tolist() == wanted
    assert batch["subgoals"]["image"].dtype == torch.uint8
    assert set(batch["subgoals"]) == {"x", "image"}
    assert "next_obs" not in batch


def test_every_observation_on_the_way(tmp_path):
    data = dataset(write(tmp_path / "d.hdf5"), Subgoals(("x",), 3, every=True))
    assert data[np.array([0, 2, 6])]["subgoals"]["x"][..., 0].tolist() == [
        [1, 2, 3],
        [3, 4, 4],
        [12, 12, 12],
    ]


def test_images_on_the_way_are_not_left_out_with_those_of_the_window(tmp_path):
    wanted = Subgoals(("image",), 3, every=True)
    data = dataset(write(tmp_path / "d.hdf5"), wanted, seq_length=4, image_steps=1)
    batch = data[np.array([0])]
    assert batch["obs"]["image"].shape[1] == 1
    assert batch["subgoals"]["image"].shape == (1, 3, 4, 4, 3)


def test_frames_do_not_shift_them_and_transitions_go_with_them(tmp_path):
    data = dataset(
        write(tmp_path / "d.hdf5"),
        Subgoals(("x",), 2),
        frame_stack=2,
        seq_length=3,
        transitions=Transitions(),
    )
    batch = data[np.array([1, 5])]
    assert batch["obs"]["x"][0, :, 0].tolist() == [0, 1, 2, 3]
    assert batch["subgoals"]["x"][:, 0].tolist() == [3, 12]
    assert batch["next_obs"]["x"][0, :, 0].tolist() == [1, 2]
