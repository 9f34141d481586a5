"""Poses relative to another pose, by hand and back."""

import pytest
import torch

from imitate.functional.poses import (
    Pose,
    absolute_from_frame,
    absolute_from_world,
    relative_in_frame,
    relative_in_world,
)
from imitate.functional.rotations import axis_angle_to_matrix

QUARTER_Z = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
QUARTER_X = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
BASE = Pose(torch.tensor([1.0, 2.0, 3.0]), QUARTER_Z)
GOAL = Pose(torch.tensor([1.0, 4.0, 3.5]), QUARTER_X @ QUARTER_Z)


def test_in_the_frame_of_the_base():
    # The base's x axis is the world's y: 2 ahead along y is 2 along its own x.
    found = relative_in_frame(GOAL, BASE)
    torch.testing.assert_close(found.position, torch.tensor([2.0, 0.0, 0.5]))
    # A quarter turn about the world's x is one about the base's -y.
    turn = axis_angle_to_matrix(torch.tensor([0.0, -torch.pi / 2, 0.0]))
    torch.testing.assert_close(found.rotation, turn, atol=1e-6, rtol=0)


def test_along_the_axes_of_the_world():
    found = relative_in_world(GOAL, BASE)
    assert found.position.tolist() == [0.0, 2.0, 0.5]
    torch.testing.assert_close(found.rotation, QUARTER_X)


@pytest.mark.parametrize(
    ("there", "back"),
    [(relative_in_frame, absolute_from_frame), (relative_in_world, absolute_from_world)],
)
def test_back(there, back):
    draw = torch.Generator().manual_seed(0)
    goal, base = (
        Pose(
            torch.randn(5, 3, generator=draw).double(),
            axis_angle_to_matrix(torch.randn(5, 3, generator=draw).double()),
        )
        for _ in range(2)
    )
    found = back(there(goal, base), base)
    torch.testing.assert_close(found.position, goal.position, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.rotation, goal.rotation, atol=1e-12, rtol=0)
