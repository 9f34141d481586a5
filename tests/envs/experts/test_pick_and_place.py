"""Experts that grasp and move a cube or a can: their motions by hand."""

import numpy as np
import pytest

from imitate.envs.experts.expert import CLOSE, OPEN
from imitate.envs.experts.pick_and_place import LiftExpert, PickPlaceCanExpert, StackExpert

from .hands import PLAIN, aside, fingerprint, near

FLAT = (0.0, 0.0, 0.0, 1.0)
UP = np.array([0.0, 0.0, 1.0])


def view(to_object, width, objects):
    """A hand from which the first object is ``to_object`` away; all objects lie flat."""
    first = np.array(objects[0])
    return {
        "robot0_eef_pos": first - to_object,
        "robot0_eef_quat": np.array([1.0, 0.0, 0.0, 0.0]),
        "robot0_gripper_qpos": np.array([width / 2, -width / 2]),
        "object": np.array([x for place in objects for x in (*place, *FLAT)]),
    }


def command(displacement, speed):
    """30 per metre, shortened to the speed."""
    found = 30.0 * np.asarray(displacement)
    return found * min(1.0, speed / max(np.linalg.norm(found), 1e-9))


EDGES = [
    # sideways, vertical, width: the cube is between the open fingers, or the fingers close already
    (0.0125, 0.0, 0.08, True),
    (0.0135, 0.0, 0.08, False),
    (0.0, 0.0135, 0.08, False),
    (0.021, 0.0, 0.074, True),
    (0.021, 0.0, 0.076, False),
    (0.023, 0.0, 0.074, False),
    (0.0, 0.021, 0.074, True),
    (0.0, -0.023, 0.074, False),
]


@pytest.mark.parametrize(("sideways", "vertical", "width", "closes"), EDGES)
def test_the_cube_is_reached(sideways, vertical, width, closes):
    obs = view(np.array([0.0, sideways, vertical]), width, [(0.0, 0.0, 0.82)])
    assert LiftExpert(PLAIN).act(obs)[6] == (CLOSE if closes else OPEN)


@pytest.mark.parametrize(
    ("width", "rise"), [(0.07, 0.0), (0.068, 0.0), (0.065, 0.25), (0.062, 0.5), (0.056, 1.0), (0.05, 1.0)]
)  # fmt: skip
def test_the_cube_is_raised_as_the_fingers_grip_it(width, rise):
    to_cube = np.array([0.004, 0.0, -0.002])
    action = LiftExpert(PLAIN).act(view(to_cube, width, [(0.0, 0.0, 0.82)]))
    wanted = command((1 - rise) * to_cube + 0.05 * rise * UP, 0.6)
    np.testing.assert_allclose(action, [*wanted, 0, 0, 0, CLOSE], atol=1e-9)


def stack(a_to_b, above, width, to_a=(0.0, 0.0, 0.0)):
    a = np.array([0.0, 0.0, 0.9])
    b = a + [*a_to_b, -above]
    return StackExpert(PLAIN).act(view(np.array(to_a), width, [a, b]))


def separate(displacement, limit=0.6 * 1.3):
    """Commands with sideways and vertical motion limited by themselves."""
    found = 30.0 * np.asarray(displacement)
    across = found[:2] * min(1.0, limit / max(np.linalg.norm(found[:2]), 1e-9))
    return [*across, np.clip(found[2], -limit, limit)]


@pytest.mark.parametrize(
    ("gap", "above", "free", "lift"),
    [
        (0.1, 0.02, 0.0, 0.03),
        (0.1, 0.05, 0.5, 0.03),
        (0.1, 0.06, 1.0, 0.03),
        (0.1, 0.09, 1.0, 0.03),
        (0.017, 0.06, 1.0, 0.015),
        (0.0125, 0.06, 1.0, 0.0015),
        (0.011, 0.055, 1.0, 0.0),  # over B: lowered without a further lift
        (0.0, 0.02, 1.0, 0.0),
    ],
)
def test_a_cube_is_carried_over_the_other(gap, above, free, lift):
    goal = [free * gap, 0.0, 0.03 + 1.5 * lift - above]
    action = stack((gap, 0.0), above, 0.05)
    np.testing.assert_allclose(action[:3], separate(goal), atol=1e-9)
    assert action[6] == CLOSE


@pytest.mark.parametrize(("width", "grip"), [(0.07, 0.0), (0.062, 0.0), (0.058, 0.5), (0.054, 1.0)])
def test_the_cube_moves_as_the_fingers_grip_it(width, grip):
    to_a, goal = np.array([0.004, 0.0, -0.004]), np.array([0.0, 0.0, 0.03 + 0.045 - 0.02])
    action = stack((0.1, 0.0), 0.02, width, to_a)
    np.testing.assert_allclose(action[:3], separate((1 - grip) * to_a + grip * goal), atol=1e-9)


@pytest.mark.parametrize(
    ("gap", "above", "width", "rise"),
    [
        (0.0, 0.049, 0.05, 0.0),
        (0.0, 0.049, 0.06, 0.05),
        (0.0, 0.031, 0.08, 0.1),
        (0.0149, 0.045, 0.08, 0.1),
        (0.0151, 0.045, 0.061, 0.1),  # released nearby: the open hand rises at once
        (0.029, 0.031, 0.061, 0.1),
        (0.029, 0.049, 0.061, 0.1),
    ],
)
def test_a_cube_on_the_other_is_released(gap, above, width, rise):
    action = stack((gap, 0.0), above, width)
    np.testing.assert_allclose(action[:3], separate(rise * UP), atol=1e-9)
    assert action[6] == OPEN


@pytest.mark.parametrize(
    ("gap", "above", "width"),
    [(0.0, 0.051, 0.05), (0.0, 0.029, 0.05), (0.0151, 0.045, 0.059), (0.031, 0.045, 0.061), (0.02, 0.051, 0.061)],
)  # fmt: skip
def test_a_cube_beside_or_above_the_other_is_kept(gap, above, width):
    assert stack((gap, 0.0), above, width)[6] == CLOSE


def can(place, width, to_grasp=(0.0, 0.0, 0.0)):
    """The can is the second object; it is grasped a centimetre above its centre."""
    place = np.array(place)
    obs = view(np.zeros(3), width, [np.zeros(3), place])
    obs["robot0_eef_pos"] = place + 0.01 * UP - np.array(to_grasp)
    return PickPlaceCanExpert(PLAIN).act(obs)


BIN = np.array([0.1975, 0.4025])
SPEED = 0.6 * 1.5


@pytest.mark.parametrize(
    ("place", "free", "height"),
    [
        ((0.1, -0.2, 0.86), 0.0, 1.02),
        ((0.1, -0.2, 0.98), 0.5, 1.02),
        ((0.1, -0.2, 1.02), 1.0, 1.02),
        ((*BIN, 1.02), 1.0, 0.865),
        ((0.1975 - 0.069, 0.4025 + 0.089, 1.0), 1.0, 0.865),
        ((0.1975 - 0.071, 0.4025, 1.0), 1.0, 1.02),
        ((0.1975, 0.4025 - 0.091, 1.0), 1.0, 1.02),
    ],
)
def test_a_can_is_carried_into_the_bin(place, free, height):
    goal = [*(free * (BIN - place[:2])), height - place[2]]
    action = can(place, 0.062)
    np.testing.assert_allclose(action[:3], command(goal, SPEED), atol=1e-9)
    assert action[6] == CLOSE


@pytest.mark.parametrize(("width", "grip"), [(0.07, 0.0), (0.068, 0.0), (0.065, 0.5), (0.062, 1.0)])
def test_the_can_moves_as_the_fingers_grip_it(width, grip):
    to_grasp, goal = np.array([0.002, 0.0, -0.004]), np.array([0.0, 0.0, 1.02 - 0.86])
    action = can((0.1, -0.2, 0.86), width, to_grasp)
    wanted = command((1 - grip) * to_grasp + grip * goal, SPEED)
    np.testing.assert_allclose(action[:3], wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("height", "width", "rise"),
    [(0.884, 0.06, 0.0), (0.884, 0.068, 0.075), (0.884, 0.074, 0.15), (0.886, 0.06, None)],
)
def test_a_can_in_the_bin_is_released(height, width, rise):
    action = can((*BIN, height), width)
    assert action[6] == (CLOSE if rise is None else OPEN)
    if rise is not None:
        np.testing.assert_allclose(action[:3], command(rise * UP, SPEED), atol=1e-9)


@pytest.mark.parametrize(
    ("expert", "name", "horizon", "steps", "clearance"),
    [
        (LiftExpert, "Lift", 200, 12, 0.05),
        (StackExpert, "Stack", 300, 25, 0.05),
        (PickPlaceCanExpert, "PickPlaceCan", 400, 60, 0.09),
    ],
)
def test_numbers_of_the_tasks(expert, name, horizon, steps, clearance):
    assert (expert.env_name, expert.horizon) == (name, horizon)
    assert (expert.carry_steps, expert.clearance_m) == (steps, clearance)
    assert (expert.motion_axes, expert.acts_as_person) == (6, True)
    assert expert.dense_kwargs == {"reward_shaping": True}


def turned_pose(random, place):
    yaw = random.uniform(-2.0, 2.0)
    return [*place, 0.0, 0.0, np.sin(yaw), np.cos(yaw)]


def lifting(random):
    obs = view(np.zeros(3), near(random, 0.08, 0.075, 0.068, 0.056), [np.zeros(3)])
    return {**obs, "robot0_eef_pos": -aside(random, 0.0, 0.013, 0.022, 0.05)}


def stacking(random):
    obs = view(np.zeros(3), near(random, 0.08, 0.075, 0.062, 0.06, 0.054, 0.05), [np.zeros(3)])
    gap = aside(random, 0.0, 0.012, 0.012 + 0.003, 0.03, 0.1)
    b = [*gap[:2], -random.choice([near(random, 0.03, 0.04), near(random, 0.045 + 0.005, 0.06)])]
    return {
        **obs,
        "robot0_eef_pos": -aside(random, 0.0, 0.0, 0.012, 0.022, 0.05),
        "object": np.array([*turned_pose(random, np.zeros(3)), *turned_pose(random, b)]),
    }


def carrying(random):
    place = np.array([0.0, 0.0, -0.01])
    if random.random() < 0.5:
        place = np.array([*BIN, 0.0]) - aside(random, 0.0, 0.06, 0.07, 0.08, 0.09, 0.3)
        place[2] = random.choice([0.885, 0.9, 1.02 - 0.06, 1.0, 1.02]) + near(random, 0.0, 0.01)
    obs = view(np.zeros(3), near(random, 0.08, 0.075, 0.068, 0.062), [np.zeros(3), place])
    off = aside(random, 0.0, 0.0, 0.012, 0.015, 0.022, 0.03)
    return {**obs, "robot0_eef_pos": place + 0.01 * UP - off}


@pytest.mark.parametrize(
    ("expert", "draw", "total"),
    [
        (LiftExpert, lifting, -15.474538004),
        (StackExpert, stacking, -2.178293101),
        (PickPlaceCanExpert, carrying, -0.380882579),
    ],
)
def test_actions_are_the_same_in_each_version(expert, draw, total):
    assert fingerprint(expert, draw, 400) == pytest.approx(total, abs=1e-6)
