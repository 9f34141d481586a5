"""Commands and goals: numbers worked out by hand, and there and back."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from imitate.functional.pose_commands import CommandRange, HandPoses, commands_to, goals_of
from imitate.functional.rotations import axis_angle_to_matrix


def double(values):
    return torch.tensor(values, dtype=torch.float64)


LIMITS = CommandRange(
    double([-1.0] * 6),
    double([1.0] * 6),
    double([-0.05] * 3 + [-0.5] * 3),
    double([0.05] * 3 + [0.5] * 3),
)
QUARTER_Z = double([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
EYE = torch.eye(3, dtype=torch.float64)


def test_a_command_by_hand():
    """Half a command along x is 2.5 cm; in a frame turned by a quarter about z it points along y."""
    command = double([[0.5, 0, 0, 0, 0, 0]])
    hands = HandPoses(double([[1.0, 2.0, 3.0]]), EYE[None], EYE)
    position, rotation = goals_of(command, hands, LIMITS)
    torch.testing.assert_close(position, double([[1.025, 2.0, 3.0]]))
    torch.testing.assert_close(rotation, EYE[None])
    turned = HandPoses(hands.position, hands.rotation, QUARTER_Z)
    torch.testing.assert_close(goals_of(command, turned, LIMITS)[0], double([[1.0, 2.025, 3.0]]))


def test_rotations_are_about_the_frames_axes_and_come_last():
    """A command of 1 about z is half a radian, applied to the hand from the left."""
    hands = HandPoses(double([[0.0, 0.0, 0.0]]), QUARTER_Z[None], EYE)
    _, rotation = goals_of(double([[0, 0, 0, 0, 0, 1.0]]), hands, LIMITS)
    torch.testing.assert_close(
        rotation, axis_angle_to_matrix(double([[0.0, 0.0, math.pi / 2 + 0.5]]))
    )
    _, rotation = goals_of(double([[0, 0, 0, 1.0, 0, 0]]), hands, LIMITS)
    torch.testing.assert_close(rotation[0], axis_angle_to_matrix(double([0.5, 0, 0])) @ QUARTER_Z)


def test_commands_beyond_the_limits_go_as_far_as_the_limit():
    hands = HandPoses(double([[0.0, 0.0, 0.0]]), EYE[None], EYE)
    position, _ = goals_of(double([[3.0, -3.0, 0, 0, 0, 0]]), hands, LIMITS)
    torch.testing.assert_close(position, double([[0.05, -0.05, 0.0]]))
    wanted = commands_to(double([[0.15, 0.0, 0.0]]), EYE[None], hands, LIMITS)
    torch.testing.assert_close(wanted, double([[3.0, 0, 0, 0, 0, 0]]))


def test_uneven_limits():
    """Inputs in [0, 2] for motions in [-0.1, 0.3]: 0.5 is a quarter of the way, 0."""
    limits = CommandRange(
        double([0.0] * 6), double([2.0] * 6), double([-0.1] * 6), double([0.3] * 6)
    )
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
    hands = HandPoses(
        double([position]),
        axis_angle_to_matrix(double([turn])),
        axis_angle_to_matrix(double(frame)),
    )
    command = double([command])
    back = commands_to(*goals_of(command, hands, LIMITS), hands, LIMITS)
    torch.testing.assert_close(back, command, rtol=0, atol=1e-11)


def test_batches_of_several_axes_are_batches_of_one():
    random = torch.Generator().manual_seed(0)
    commands, turns = torch.rand(2, 2, 3, 6, generator=random, dtype=torch.float64) - 0.5
    hands = HandPoses(
        turns[..., :3], axis_angle_to_matrix(turns[..., 3:]), axis_angle_to_matrix(turns[..., :3])
    )
    position, rotation = goals_of(commands, hands, LIMITS)
    back = commands_to(position, rotation, hands, LIMITS)
    torch.testing.assert_close(back, commands, rtol=0, atol=1e-11)
    for i in range(2):
        for j in range(3):
            one = HandPoses(*(part[i, j] for part in (hands.position, hands.rotation, hands.frame)))
            found = goals_of(commands[i, j], one, LIMITS)
            torch.testing.assert_close(found[0], position[i, j])
            torch.testing.assert_close(found[1], rotation[i, j])
