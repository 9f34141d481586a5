import math

import numpy as np
import pytest

from imitate.envs.experts import find_expert
from imitate.envs.experts.expert import CLOSE, OPEN, gripper_down

from .hands import PLAIN

PEG = np.array([0.23, 0.1])
HANDLE_M = 0.06


def pose(x, y, z, angle):
    return np.array([x, y, z, 0.0, 0.0, math.sin(angle / 2), math.cos(angle / 2)])


def held(nut, angle, width=0.032):
    """The gripper around the handle of the square nut."""
    along = np.array([math.cos(angle), math.sin(angle), 0.0])
    yaw = (angle + math.pi / 2) % math.pi - math.pi / 2
    return {
        "robot0_eef_pos": nut[:3] + HANDLE_M * along,
        "robot0_eef_quat": gripper_down(yaw),
        "robot0_gripper_qpos": np.array([width / 2, -width / 2]),
        "object": np.array([*np.zeros(7), *nut]),
    }


@pytest.mark.parametrize(
    ("angle", "turn"), [(1.2, 1), (1.8, -1), (0.3, 1), (-0.3, -1), (2.6, 1), (math.pi / 2, 0)]
)
def test_the_nut_is_turned_to_the_nearest_fitting_angle_that_the_arm_reaches(angle, turn):
    expert = find_expert("NutAssemblySquare")(PLAIN)
    action = expert.act(held(pose(0.0, 0.2, 1.01, angle), angle))
    assert np.sign(round(action[5], 3)) == turn


def test_it_rises_before_it_goes_sideways_and_sinks_where_the_hole_fits():
    expert = find_expert("NutAssemblySquare")(PLAIN)
    fits = math.pi / 2
    low = expert.act(held(pose(0.0, 0.2, 0.85, fits), fits))
    assert low[2] > 0.5
    assert abs(low[:2]).max() < 0.01
    assert expert.act(held(pose(*PEG, 1.01, fits), fits))[2] < -0.5
    assert expert.act(held(pose(*PEG, 1.01, fits - 0.2), fits - 0.2))[2] > -0.01
    beside = expert.act(held(pose(PEG[0] - 0.02, PEG[1], 1.01, fits), fits))
    assert beside[0] > 0.3 and beside[2] > -0.01


def test_a_nut_on_its_peg_is_let_go():
    expert = find_expert("NutAssemblySquare")(PLAIN)
    assert expert.act(held(pose(*PEG, 0.85, 0.0), 0.0))[6] == OPEN
    assert expert.act(held(pose(*PEG, 0.85, 0.0), 0.0, width=0.08))[2] > 0.5


def test_of_two_nuts_the_square_one_comes_first():
    expert = find_expert("NutAssembly")(PLAIN)
    square, round_nut = pose(-0.1, 0.2, 0.83, 1.0), pose(-0.1, -0.2, 0.83, 1.0)
    obs = held(square, 1.0, width=0.08)
    obs["object"] = np.array([*np.zeros(7), *square, *np.zeros(7), *round_nut])
    obs["robot0_eef_pos"] = np.array([-0.1, 0.0, 0.95])
    assert expert.act(obs)[1] > 0
    obs["object"][7:14] = pose(*PEG, 0.83, 0.0)
    obs["robot0_eef_pos"] = np.array([-0.1, 0.0, 0.95])
    assert expert.act(obs)[1] < 0


def test_the_gripper_turns_no_further_than_its_joint():
    expert = find_expert("NutAssemblySquare")(PLAIN)
    nut = pose(-0.1, 0.2, 0.83, 3.0)  # across the handle at a yaw of 3.0 or of -0.14
    obs = held(nut, 3.0, width=0.08)
    obs["robot0_eef_quat"] = gripper_down(1.6)
    obs["robot0_eef_pos"] = np.array([-0.1, 0.0, 0.95])
    assert expert.act(obs)[5] == -1.0  # back, although 3.0 is nearer
    assert expert.act(obs)[6] == OPEN
    assert expert.act(held(nut, 3.0, width=0.05))[6] == CLOSE


def test_it_lets_go_and_rises_from_among_the_pegs_before_it_goes_back():
    expert = find_expert("NutAssemblySquare")(PLAIN)
    obs = held(pose(-0.1, 0.2, 0.83, 1.0), 1.0, width=0.03)
    obs["robot0_eef_pos"] = np.array([0.2, 0.0, 0.85])
    closed = expert.act(obs)
    assert closed[6] == OPEN
    np.testing.assert_allclose(closed[:3], 0.0, atol=1e-9)  # the fingers open first
    obs["robot0_gripper_qpos"] = np.array([0.04, -0.04])
    away = expert.act(obs)
    assert away[2] > 0.5
    assert away[0] < -0.1  # straight up, the elbow would stay stretched
    obs["robot0_eef_pos"][2] = 1.0
    assert expert.act(obs)[0] < -0.3
