import math

import numpy as np
import pytest

from imitate.envs.experts import find_expert
from imitate.envs.experts.expert import CLOSE, OPEN, gripper_down, tilted, turned

from .hands import PLAIN, aside, fingerprint, near, rotation

DOOR = np.array([-0.2, -0.35, 1.1])


def holding(turn=0.0, opened=0.0, width=0.055, below=0.0, aside=0.0):
    """The gripper at the handle of a door that opens towards +y; the end of its handle points along -x."""
    pivot = DOOR + np.array([0.175, 0.10, -0.025])
    handle = pivot + 0.125 * np.array([-math.cos(turn), 0.0, -math.sin(turn)])
    return {
        "robot0_eef_pos": handle - np.array([aside, 0.0, 0.012 + below]),
        "robot0_eef_quat": tilted(gripper_down(0.0), np.array([-0.45, 0.0, 0.0])),
        "robot0_gripper_qpos": np.array([width / 2, -width / 2]),
        "object": np.array([*DOOR, *handle, opened, *np.zeros(6), turn]),
    }


def act(**where):
    return find_expert("Door")(PLAIN).act(holding(**where))


def test_a_level_handle_is_turned_down_and_the_door_is_not_pulled():
    action = act()
    assert action[2] < -0.5
    assert abs(action[0]) < 0.01  # the circle about the pivot begins straight down
    assert abs(action[1]) < 0.01
    assert action[6] == CLOSE
    assert np.abs(action[3:6]).max() < 1e-6  # leans away from the door as it should


def test_the_way_down_follows_the_circle_about_the_pivot():
    action = act(turn=0.8)
    # at an angle of 0.8 the tangent is (sin 0.8, -cos 0.8) in x and z: towards the pivot's x
    assert action[0] / -action[2] == pytest.approx(math.tan(0.8), rel=1e-6)


def test_a_free_latch_is_pulled_and_an_open_door_needs_no_latch():
    assert act(turn=1.3)[1] > 0.5
    opened = act(turn=0.2, opened=0.1)
    assert opened[1] > 0.5
    assert abs(opened[2]) < 0.01


def test_fingers_that_slipped_off_open_and_draw_back_from_below():
    action = act(width=0.001, below=0.03)
    assert action[6] == OPEN and action[1] > 0.5
    assert abs(action[2]) < 0.01


@pytest.mark.parametrize(
    ("where", "held"),
    [
        ({"aside": 0.02}, True),  # fingers about something may have slid along the handle
        ({"aside": 0.02, "width": 0.08}, False),
        ({"aside": 0.02, "width": 0.08, "opened": 0.04}, True),
        ({"aside": 0.036}, False),
        ({"aside": 0.011, "width": 0.08}, True),
    ],
)
def test_the_handle_is_held_or_approached(where, held):
    assert act(**where)[6] == (CLOSE if held else OPEN)


def test_near_the_free_latch_the_handle_turns_slower_while_the_door_is_pulled():
    action = act(turn=1.2)
    # half of the turn's 0.06 m along (sin 1.2, -cos 1.2) in x and z, and 0.08 m outward
    assert action[2] / action[1] == pytest.approx(-0.03 * math.cos(1.2) / 0.08, rel=1e-6)
    # at 1.0 a quarter of the pull: (1.0 - 1.15 + 0.2) / 0.2
    action = act(turn=1.0)
    assert action[2] / action[1] == pytest.approx(-0.06 * math.cos(1.0) / 0.02, rel=1e-6)


def drawn(random):
    """A hand near the thresholds at a handle that is at 0, of a door in any direction."""
    turn, yaw = near(random, 0.0, 0.95, 1.15, 1.25), random.uniform(-4.0, 4.0)
    hand = -aside(random, 0.0, 0.012, 0.02, 0.03, 0.035, 0.05, 0.06, 0.12)
    width = near(random, 0.08, 0.065, 0.055, 0.015)
    handle = np.array([0.0, 0.0, 0.012])
    door = handle - turned(np.array([-0.175 - 0.125 * math.cos(turn), -0.1, 0.0]), yaw)
    lean = rotation(random, 0.0, 0.45)
    return {
        "robot0_eef_pos": hand,
        "robot0_eef_quat": tilted(gripper_down(random.uniform(-2.0, 2.0)), lean),
        "robot0_gripper_qpos": np.array([width / 2, -width / 2]),
        "object": np.array([*door, *handle, near(random, 0.0, 0.03, 0.06), *np.zeros(6), turn]),
    }


def test_actions_are_the_same_in_each_version():
    expert = find_expert("Door")
    assert (expert.horizon, expert.carry_steps) == (400, 60)
    assert fingerprint(expert, drawn, 600) == pytest.approx(-22.542843617, abs=1e-6)
