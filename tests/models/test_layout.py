"""Actions as stored, as learned, as sent."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.layout import ActionLayout
from imitate.models.preprocess import Preprocess

AXIS_ANGLE = {"format": "rot_6d", "convert_at_runtime": "rot_axis_angle"}
QUARTER_TURN_Z = [0.0, 0.0, math.pi / 2]
ROWS = [0.0, -1.0, 0.0, 1.0, 0.0, 0.0]  # the first two rows of that rotation's matrix


def test_without_rotations_nothing_is_touched():
    layout = ActionLayout({"actions": 7})
    actions = torch.rand(2, 7)
    assert layout.to_learned(actions) is actions and layout.to_sent(actions) is actions
    assert layout.sent_dim == 7


@pytest.mark.parametrize("stored", [QUARTER_TURN_Z, ROWS])
def test_a_rotation_is_learned_as_6d_and_sent_as_the_robot_takes_it(stored):
    layout = ActionLayout.from_config(
        {"pos": 3, "rot": len(stored), "gripper": 1}, {"rot": AXIS_ANGLE}
    )
    learned = layout.to_learned(torch.tensor([[1.0, 2.0, 3.0, *stored, -1.0]]))
    torch.testing.assert_close(learned, torch.tensor([[1.0, 2.0, 3.0, *ROWS, -1.0]]))
    sent = layout.to_sent(learned)
    torch.testing.assert_close(sent, torch.tensor([[1.0, 2.0, 3.0, *QUARTER_TURN_Z, -1.0]]))
    assert layout.sent_dim == 7


def test_euler_angles():
    layout = ActionLayout({"rot": 3}, {"rot": "rot_euler"})
    angles = torch.tensor([[0.3, -0.4, 0.5]])
    torch.testing.assert_close(layout.to_sent(layout.to_learned(angles)), angles)


def test_what_a_network_predicts_need_not_be_a_rotation():
    """Rows of any length, not quite at right angles: the nearest by Gram-Schmidt."""
    layout = ActionLayout({"rot": 6}, {"rot": "rot_axis_angle"})
    sent = layout.to_sent(torch.tensor([[0.0, -3.0, 0.0, 2.0, 0.1, 0.0]]))
    torch.testing.assert_close(sent, torch.tensor([QUARTER_TURN_Z]))


def test_a_format_alone_converts_nothing():
    assert ActionLayout.from_config({"rot": 6}, {"rot": {"format": "rot_6d"}}).sent_dim == 6


def test_four_numbers_are_no_rotation():
    with pytest.raises(ConfigError, match="the data have 4 numbers there; expected 6, or 3"):
        ActionLayout.from_config({"rot": 4}, {"rot": AXIS_ANGLE})


def test_limits_of_rotations_are_their_range():
    layout = ActionLayout.from_config({"pos": 1, "rot": 6}, {"rot": AXIS_ANGLE})
    low, high = layout.sent_limits([-2.0, *[-1.0] * 6], [3.0, *[1.0] * 6])
    assert low == [-2.0, *[-math.pi] * 3]
    assert high == [3.0, *[math.pi] * 3]


def test_normalization_and_saving_know_the_layout():
    statistics = {"actions": {"pos": Range([-1.0], [3.0]), "rot": Range([0.0] * 3, [1.0] * 3)}}
    config = {"pos": {"normalization": "min_max"}, "rot": AXIS_ANGLE}
    fitted = Preprocess.from_statistics({}, {}, {"pos": 1, "rot": 3}, statistics, None, config)
    loaded = Preprocess.from_dict(fitted.to_dict())
    stored = torch.tensor([[3.0, *QUARTER_TURN_Z]])
    for preprocess in (fitted, loaded):
        normalized = preprocess.normalize_actions(stored)
        torch.testing.assert_close(normalized, torch.tensor([[0.999999, *ROWS]]))
        torch.testing.assert_close(preprocess.unnormalize_actions(normalized), stored)
        assert preprocess.action_dim == 7


class Range:
    def __init__(self, low, high):
        self.min, self.max = low, high
        self.mean = self.std = low
