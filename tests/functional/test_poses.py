"""Poses and commands of them, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imitate.functional.rotations import (
    CommandRange,
    HandPoses,
    Pose,
    absolute_from_frame,
    absolute_from_world,
    axis_angle_to_matrix,
    commands_to,
    goals_of,
    relative_in_frame,
    relative_in_world,
)

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
    places, turns = torch.randn(2, 2, 5, 3, generator=draw).double()
    goal, base = (
        Pose(x, axis_angle_to_matrix(turn)) for x, turn in zip(places, turns, strict=True)
    )
    found = back(there(goal, base), base)
    torch.testing.assert_close(found.position, goal.position, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.rotation, goal.rotation, atol=1e-12, rtol=0)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


FURTHEST = double([0.05] * 3 + [0.5] * 3)
LIMITS = CommandRange(double([-1.0] * 6), double([1.0] * 6), -FURTHEST, FURTHEST)
QUARTER_TURN = double([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
EYE = torch.eye(3, dtype=torch.float64)


def test_a_command_by_hand():
    """Half a command along x is 2.5 cm; in a frame turned by a quarter about z it points along y."""
    command = double([[0.5, 0, 0, 0, 0, 0]])
    hands = HandPoses(double([[1.0, 2.0, 3.0]]), EYE[None], EYE)
    position, rotation = goals_of(command, hands, LIMITS)
    torch.testing.assert_close(position, double([[1.025, 2.0, 3.0]]))
    torch.testing.assert_close(rotation, EYE[None])
    turned = HandPoses(hands.position, hands.rotation, QUARTER_TURN)
    torch.testing.assert_close(goals_of(command, turned, LIMITS)[0], double([[1.0, 2.025, 3.0]]))


def test_rotations_are_about_the_frames_axes_and_come_last():
    """A command of 1 about z is half a radian, applied to the hand from the left."""
    hands = HandPoses(double([[0.0, 0.0, 0.0]]), QUARTER_TURN[None], EYE)
    _, rotation = goals_of(double([[0, 0, 0, 0, 0, 1.0]]), hands, LIMITS)
    further = axis_angle_to_matrix(double([[0.0, 0.0, math.pi / 2 + 0.5]]))
    torch.testing.assert_close(rotation, further)
    _, rotation = goals_of(double([[0, 0, 0, 1.0, 0, 0]]), hands, LIMITS)
    about_x = axis_angle_to_matrix(double([0.5, 0, 0]))
    torch.testing.assert_close(rotation[0], about_x @ QUARTER_TURN)


def test_commands_beyond_the_limits_go_as_far_as_the_limit():
    hands = HandPoses(double([[0.0, 0.0, 0.0]]), EYE[None], EYE)
    position, _ = goals_of(double([[3.0, -3.0, 0, 0, 0, 0]]), hands, LIMITS)
    torch.testing.assert_close(position, double([[0.05, -0.05, 0.0]]))
    wanted = commands_to(double([[0.15, 0.0, 0.0]]), EYE[None], hands, LIMITS)
    torch.testing.assert_close(wanted, double([[3.0, 0, 0, 0, 0, 0]]))


def test_uneven_limits():
    """Inputs in [0, 2] for motions in [-0.1, 0.3]: 0.5 is a quarter of the way, 0."""
    limits = CommandRange(*(double([number] * 6) for number in (0.0, 2.0, -0.1, 0.3)))
    torch.testing.assert_close(limits.to_motion(double([0.5] * 6)), double([0.0] * 6))
    torch.testing.assert_close(limits.to_commands(double([0.3] * 6)), double([2.0] * 6))


numbers = st.floats(-1, 1)


@given(
    st.tuples(*[numbers] * 6),
    st.tuples(*[st.floats(-3, 3)] * 3),
    st.tuples(*[st.floats(-1.5, 1.5)] * 3),
    st.tuples(*[st.floats(-1.5, 1.5)] * 3),
)
def test_there_and_back(command, position, turn, frame):
    turn, frame = axis_angle_to_matrix(double([turn])), axis_angle_to_matrix(double(frame))
    hands = HandPoses(double([position]), turn, frame)
    command = double([command])
    back = commands_to(*goals_of(command, hands, LIMITS), hands, LIMITS)
    torch.testing.assert_close(back, command, rtol=0, atol=1e-11)


def test_batches_of_several_axes_are_batches_of_one():
    random = torch.Generator().manual_seed(0)
    commands, turns = torch.rand(2, 2, 3, 6, generator=random, dtype=torch.float64) - 0.5
    first, last = turns[..., :3], turns[..., 3:]
    hands = HandPoses(first, axis_angle_to_matrix(last), axis_angle_to_matrix(first))
    position, rotation = goals_of(commands, hands, LIMITS)
    back = commands_to(position, rotation, hands, LIMITS)
    torch.testing.assert_close(back, commands, rtol=0, atol=1e-11)
    for i in range(2):
        for j in range(3):
            one = HandPoses(*(part[i, j] for part in (hands.position, hands.rotation, hands.frame)))
            found = goals_of(commands[i, j], one, LIMITS)
            torch.testing.assert_close(found[0], position[i, j])
            torch.testing.assert_close(found[1], rotation[i, j])
