"""Rotations: numbers worked out by hand, scipy's, and what must hold for all."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from imitate.functional import rotations as rot

HALF = math.sqrt(0.5)
# A quarter turn about z: x goes to y.
AXIS_ANGLE = (0.0, 0.0, math.pi / 2)
QUATERNION = (0.0, 0.0, HALF, HALF)
MATRIX = ((0.0, -1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0))
ROTATION_6D = (0.0, -1.0, 0.0, 1.0, 0.0, 0.0)

ANGLES = [0.0, 1e-300, 1e-12, 1e-9, 1e-7, 1e-3, 1.0, math.pi - 1e-7, math.pi - 1e-12, math.pi]

axes = st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda axis: math.hypot(*axis) > 1e-3)
angles = st.one_of(st.floats(0, math.pi), st.sampled_from(ANGLES))


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def axis_angles(axis, angle):
    axis = double(axis)
    return axis / axis.norm() * angle


def close(got, expected, tolerance=1e-14):
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("convert", "given_values", "expected"),
    [
        (rot.axis_angle_to_quaternion, AXIS_ANGLE, QUATERNION),
        (rot.quaternion_to_axis_angle, QUATERNION, AXIS_ANGLE),
        (rot.quaternion_to_axis_angle, (0, 0, -3 * HALF, -3 * HALF), AXIS_ANGLE),
        (rot.axis_angle_to_matrix, AXIS_ANGLE, MATRIX),
        (rot.matrix_to_axis_angle, MATRIX, AXIS_ANGLE),
        (rot.quaternion_to_matrix, QUATERNION, MATRIX),
        (rot.matrix_to_quaternion, MATRIX, QUATERNION),
        (rot.matrix_to_rotation_6d, MATRIX, ROTATION_6D),
        (rot.rotation_6d_to_matrix, ROTATION_6D, MATRIX),
        (rot.axis_angle_to_rotation_6d, AXIS_ANGLE, ROTATION_6D),
        (rot.rotation_6d_to_axis_angle, ROTATION_6D, AXIS_ANGLE),
        (rot.euler_to_matrix, AXIS_ANGLE, MATRIX),
        (rot.matrix_to_euler, MATRIX, AXIS_ANGLE),
    ],
)
def test_a_quarter_turn_about_z(convert, given_values, expected):
    close(convert(double(given_values)), double(expected))


def test_gram_schmidt_by_hand():
    # (2, 0, 0) is the first row at length 1; (5, 0, 3) less its part along it is (0, 0, 3); x cross z is -y.
    got = rot.rotation_6d_to_matrix(double((2, 0, 0, 5, 0, 3)))
    close(got, double(((1, 0, 0), (0, 0, 1), (0, -1, 0))))


@given(axes, angles)
def test_every_representation_and_back(axis, angle):
    start = axis_angles(axis, angle)
    matrix = rot.axis_angle_to_matrix(start)
    close(rot.quaternion_to_matrix(rot.matrix_to_quaternion(matrix)), matrix)
    close(rot.rotation_6d_to_matrix(rot.matrix_to_rotation_6d(matrix)), matrix)
    close(rot.euler_to_matrix(rot.matrix_to_euler(matrix)), matrix)
    back = rot.matrix_to_axis_angle(matrix)
    if angle < math.pi - 1e-6:
        close(back, start)
    else:  # at pi both directions of the axis are the same rotation
        close(rot.axis_angle_to_matrix(back), matrix)


@pytest.mark.parametrize("angle", ANGLES)
def test_scipy_agrees(angle):
    axes = np.random.default_rng(0).normal(size=(50, 3))
    vectors = axes / np.linalg.norm(axes, axis=1, keepdims=True) * angle
    theirs, ours = Rotation.from_rotvec(vectors), torch.from_numpy(vectors)
    matrix = torch.from_numpy(theirs.as_matrix())
    close(rot.axis_angle_to_matrix(ours), matrix)
    close(rot.axis_angle_to_quaternion(ours), torch.from_numpy(theirs.as_quat(canonical=True)))
    euler = torch.from_numpy(theirs.as_euler("XYZ"))
    close(rot.euler_to_matrix(euler), matrix)
    close(rot.matrix_to_euler(matrix), euler, 1e-13)


def test_near_zero_nothing_is_lost():
    tiny = double((3e-12, -4e-12, 0.0))
    assert torch.equal(rot.quaternion_to_axis_angle(rot.axis_angle_to_quaternion(tiny)), tiny)


def test_small_angles_are_exact_to_the_last_digits():
    # sin x is x (1 - x^2 / 6): 3e-14 less than x at half of 9e-7, which is more than float64 rounds.
    quaternion = rot.axis_angle_to_quaternion(double((9e-7, 0.0, 0.0)))
    assert quaternion[0].item() == pytest.approx(math.sin(4.5e-7), rel=1e-15)
    back = rot.quaternion_to_axis_angle(double((9e-7, 0.0, 0.0, math.sqrt(1 - 81e-14))))
    assert back[0].item() == pytest.approx(2 * math.asin(9e-7), rel=1e-15)


def test_a_half_turn_keeps_its_axis():
    # Both directions are the same rotation; w is 0, so that none of the two has to be turned around.
    for axis in ((1.0, 0.0, 0.0), (0.0, 0.0, -1.0)):
        close(rot.quaternion_to_axis_angle(double((*axis, 0.0))), math.pi * double(axis))


@given(st.tuples(*[st.floats(-5, 5)] * 6))
def test_any_six_numbers_make_a_rotation(numbers):
    first, second = double(numbers[:3]), double(numbers[3:])
    assume(torch.linalg.cross(first, second).norm() > 1e-3)  # else there is no such rotation
    matrix = rot.rotation_6d_to_matrix(double(numbers))
    close(matrix @ matrix.T, torch.eye(3, dtype=torch.float64), 1e-9)
    close(torch.linalg.det(matrix), double(1.0), 1e-9)
    close(matrix[0], first / first.norm(), 1e-9)


@pytest.mark.parametrize("b", [math.pi / 2, -math.pi / 2, math.pi / 2 - 1e-9])
def test_euler_at_gimbal_lock(b):
    matrix = rot.euler_to_matrix(double((0.4, b, -1.1)))
    got = rot.matrix_to_euler(matrix)
    close(rot.euler_to_matrix(got), matrix, 1e-15 * 4)


@pytest.mark.parametrize("batch", [(), (0,), (2, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_leading_dimensions_and_types(batch, dtype):
    vectors = torch.randn(*batch, 3, dtype=dtype)
    six = rot.axis_angle_to_rotation_6d(vectors)
    assert six.shape == (*batch, 6)
    assert six.dtype == dtype
    back = rot.rotation_6d_to_axis_angle(six)
    assert back.shape == vectors.shape
    assert rot.matrix_to_euler(rot.rotation_6d_to_matrix(six)).shape == vectors.shape


def test_gradients_at_no_rotation_are_finite():
    vector = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    rot.rotation_6d_to_axis_angle(rot.axis_angle_to_rotation_6d(vector)).sum().backward()
    torch.testing.assert_close(vector.grad, torch.ones(3, dtype=torch.float64))
