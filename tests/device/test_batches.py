"""Preparing a batch does not wait for the device: steps on actions, colours, data that lie there."""

import numpy as np
import pytest
import torch

from imitate.config.data_needs import Returns
from imitate.data.batches.rewards import ReturnTable
from imitate.models.preprocess import Preprocess
from imitate.models.randomizers import adjust_hue
from tests.device.simulated_gpu import NAME

SHAPES = {"pos": (3,), "quat": (4,)}
STEPS = {
    "relative": {"step": "relative_actions", "observation": "pos", "dims": [2, 0, 6], "observation_dims": [0, 2, 1]},
    "delta": {"step": "delta_actions", "observation": "pos"},
    "binary": {"step": "binary_actions", "dims": [6, 0], "values": [0, 1]},
    "rotation_6d": {"step": "rotation_6d", "dims": [3, 4, 5]},
    "relative_pose": {"step": "relative_pose", "position": "pos", "rotation": "quat"},
}  # fmt: skip


def test_the_hue_of_images(transfers):
    images, turn = torch.rand(2, 3, 4, 4), torch.tensor([0.1, 0.4])
    on_device = images.to(NAME), turn.to(NAME)
    transfers.waits.clear()
    found = adjust_hue(*on_device)
    assert not transfers.waits
    torch.testing.assert_close(found.cpu(), adjust_hue(images, turn))


def test_returns_that_lie_on_the_device(transfers):
    rewards, terminals = np.ones(2, np.float32), np.array([0.0, 1.0], np.float32)
    table = ReturnTable(rewards, terminals, np.array([0]), np.array([2]), Returns(0.9))
    table.to(NAME)
    transfers.waits.clear()
    found = table.at(np.array([0, 1]))
    assert not transfers.waits
    torch.testing.assert_close(found["returns"].cpu(), torch.tensor([1.9, 1.0]))


@pytest.mark.parametrize("name", STEPS)
def test_steps_on_actions(name, transfers):
    chosen = Preprocess(
        SHAPES, dict.fromkeys(SHAPES, "low_dim"), {"actions": 7}, steps=[STEPS[name]]
    )
    obs = chosen.prepare_obs({"pos": np.full((2, 3), 0.5), "quat": np.full((2, 4), 0.5)})
    actions = torch.linspace(-1, 1, 42).view(2, 3, 7)
    wanted = chosen.normalize_actions(actions, obs)
    chosen.to(NAME)
    there, obs_there = actions.to(NAME), {key: value.to(NAME) for key, value in obs.items()}
    transfers.waits.clear()
    learned = chosen.normalize_actions(there, obs_there)
    assert not transfers.waits
    chosen.unnormalize_actions(learned, obs_there)
    assert not transfers.waits
    torch.testing.assert_close(learned.cpu(), wanted)
