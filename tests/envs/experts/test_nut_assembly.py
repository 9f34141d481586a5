import math

import numpy as np
import pytest

from imitate.envs.experts import find_expert
from imitate.envs.experts.expert import CLOSE, OPEN, gripper_down

from .hands import BESIDE, PLAIN, aside, fingerprint, near

X = np.array([1.0, 0.0, 0.0])
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


def command(displacement, speed=0.6 * 1.4):
    """Commands of a displacement: 30 per metre, shortened to the speed."""
    command = 30.0 * np.asarray(displacement)
    return command * min(1.0, speed / np.linalg.norm(command))


@pytest.mark.parametrize(
    ("where", "width", "grip", "free", "height"),
    [
        ((0.0, 0.2, 0.9), 0.036, 1.0, 0.0, 1.015),  # rises first
        ((0.0, 0.2, 0.98), 0.036, 1.0, 0.5, 1.015),
        ((0.0, 0.2, 1.0), 0.036, 1.0, 1.0, 1.015),
        ((0.0, 0.2, 0.98), 0.041, 0.5, 0.5, 1.015),  # half closed
        ((0.0, 0.2, 0.98), 0.046, 0.0, 0.5, 1.015),
        ((0.225, 0.1, 1.0), 0.036, 1.0, 1.0, 0.838),  # the hole fits
        ((0.223, 0.1, 1.0), 0.036, 1.0, 1.0, 1.015),
        ((0.219, 0.1, 0.949), 0.036, 1.0, 1.0, 0.838),  # around the peg's top
        ((0.217, 0.1, 0.949), 0.036, 1.0, 0.0, 1.015),
    ],
)
def test_the_way_of_a_held_nut_by_hand(where, width, grip, free, height):
    fits = math.pi / 2
    nut = pose(*where, fits)
    action = find_expert("NutAssemblySquare")(PLAIN).act(held(nut, fits, width))
    goal = [*(free * (PEG - nut[:2])), height - nut[2]]
    np.testing.assert_allclose(action[:3], command(grip * np.array(goal) + 1e-15), atol=1e-6)
    assert action[6] == CLOSE


@pytest.mark.parametrize(("misfit", "lowers"), [(0.049, True), (0.051, False), (-0.049, True)])
def test_the_hole_fits_within_a_twentieth_of_a_radian(misfit, lowers):
    angle = math.pi / 2 - misfit
    action = find_expert("NutAssemblySquare")(PLAIN).act(held(pose(*PEG, 1.0, angle), angle))
    assert (action[2] < 0) == lowers
    assert action[5] == pytest.approx(2 * misfit, abs=1e-6)


@pytest.mark.parametrize(
    ("apart", "height", "width", "released"),
    [
        (0.029, 0.867, 0.05, True),
        (0.031, 0.867, 0.05, False),
        (0.029, 0.869, 0.05, False),
        (0.029, 0.867, 0.08, True),
    ],
)
def test_a_nut_on_its_peg_is_released(apart, height, width, released):
    fits = math.pi / 2
    nut = pose(PEG[0] + apart, PEG[1], height, fits)
    action = find_expert("NutAssemblySquare")(PLAIN).act(held(nut, fits, width))
    assert action[6] == (OPEN if released else CLOSE)
    if released:
        rise = min(1.0, (width - 0.04) / 0.02)
        np.testing.assert_allclose(
            action[:3], command(rise * np.array([-0.06, 0, 0.15])), atol=1e-6
        )


def test_both_nuts_are_put_on_their_pegs_the_square_one_first():
    expert = find_expert("NutAssembly")(PLAIN)
    assert expert.horizon == 800
    on, off = pose(0.23, 0.1, 0.86, 1.0), pose(0.0, 0.2, 0.83, 1.0)
    round_ = pose(0.0, -0.2, 0.83, 0.0)
    for square, handle in (
        (off, off[:3] + 0.06 * np.array([math.cos(1.0), math.sin(1.0), 0])),
        (on, round_[:3] + [0.066, 0, 0]),
    ):
        obs = {
            "robot0_eef_pos": handle,
            "robot0_eef_quat": gripper_down(1.0 if square is off else 0.0),
            "robot0_gripper_qpos": np.array([0.04, -0.04]),
            "object": np.array([*np.zeros(7), *square, *np.zeros(7), *round_]),
        }
        action = expert.act(obs)
        assert action[6] == CLOSE
        np.testing.assert_allclose(action[:3], 0.0, atol=1e-9)
    alone = find_expert("NutAssemblyRound")(PLAIN)
    assert alone.act({**obs, "object": np.array([*np.zeros(7), *round_])})[6] == CLOSE


def drawn(random):
    """A hand near the thresholds at a nut's handle at 0, at a nut near its peg, or among the pegs."""
    angle = random.choice([0.0, math.pi / 2, math.pi, -1.0, 3.0]) + BESIDE * near(random, 0.0, 0.05)
    along = np.array([math.cos(angle), math.sin(angle), 0.0])
    place = random.integers(3)
    nut = -HANDLE_M * along - place * X
    if place == 1:
        nut = np.array([*PEG, 0.0]) - aside(random, 0.0, 0.006, 0.012, 0.03, 0.2)
        nut[2] = random.choice([0.868, 0.95, 0.97, 0.99, 1.01]) + random.choice([0.0, 0.01, -0.01])
    obs = held(pose(*nut, angle), angle, near(random, 0.08, 0.075, 0.06, 0.046, 0.04, 0.036))
    off = -aside(random, 0.0, 0.01, 0.025, 0.1)
    obs["robot0_eef_pos"] = off if place == 0 else obs["robot0_eef_pos"] + off
    if place == 2:
        obs["robot0_eef_pos"] = np.array([near(random, 0.1), 0.0, random.choice([0.98, 0.99, 1.0])])
    yaw = (angle + math.pi / 2) % math.pi - math.pi / 2
    yaw += BESIDE * near(random, -0.3, 0.0, 0.15, 0.3)
    return {**obs, "robot0_eef_quat": gripper_down(yaw)}


def test_actions_are_the_same_in_each_version():
    assert fingerprint(find_expert("NutAssemblySquare"), drawn, 500) == pytest.approx(
        5.2217555, abs=1e-6
    )
