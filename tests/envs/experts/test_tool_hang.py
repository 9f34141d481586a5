import math

import numpy as np
import pytest

from imitate.envs.experts import find_expert
from imitate.envs.experts.expert import CLOSE, OPEN, gripper_down, rotated, tilted

from .hands import BESIDE, PLAIN, aside, fingerprint, near, rotation

X, Y, Z = np.eye(3)
BASE = np.array([-0.08, 0.0, 0.805])
TUBE = BASE + [0.0, 0.045, 0.155]  # middle of its upper end
TIP_M, GRIP_M = 0.2207, 0.04  # from the hook's corner, along the rod
ROD_UPRIGHT = np.array([0.0, 0.0, 1.0, 0.0])  # the hook's arm points to +x
EYE_M = 0.0935  # from the wrench's middle
LEVEL = np.array([0.0, 0.0, 0.0, 1.0])  # the wrench's eye is at its end towards -x


def observe(corner, frame, tool, tool_quat, hand, hand_quat, *, width, inserted):
    pieces = np.zeros(44)
    pieces[7:10], pieces[13] = BASE, 1.0
    pieces[21:24], pieces[24:28] = corner, frame
    pieces[35:38], pieces[38:42] = tool, tool_quat
    pieces[42] = inserted
    return {
        "robot0_eef_pos": np.array(hand),
        "robot0_eef_quat": hand_quat,
        "robot0_gripper_qpos": np.array([width / 2, -width / 2]),
        "object": pieces,
    }


def with_rod(tip, *, turn=0.0):
    """Hold the rod upright with its tip at a place; ``turn`` is a tilt about x, in rad."""
    quat = tilted(ROD_UPRIGHT, turn * X)
    corner = np.asarray(tip) + rotated(quat, TIP_M * Z)
    hand = corner - rotated(quat, GRIP_M * Z)
    leaning = tilted(gripper_down(math.pi / 2), (0.7 - math.pi / 2) * X)
    away = np.array([0.05, -0.2, 0.815])
    return observe(corner, quat, away, LEVEL, hand, leaning, width=0.0254, inserted=0.0)


def with_wrench(eye, *, tilt=0.0, width=0.03):
    """Hold the wrench with its eye relative to the foot of the prong of the inserted hook."""
    corner = TUBE + [0.0, 0.0, 0.071]
    foot = corner + [0.0837, 0.0, 0.0037]
    quat = tilted(LEVEL, tilt * Y)
    middle = foot + eye + rotated(quat, EYE_M * X)
    hand_quat = tilted(gripper_down(math.pi), tilt * Y)
    return observe(corner, ROD_UPRIGHT, middle, quat, middle, hand_quat, width=width, inserted=1.0)


def act(obs):
    return find_expert("ToolHang")(PLAIN).act(obs)


def test_the_rod_sinks_only_where_it_is_upright_and_over_the_tube():
    over = TUBE + [0.0, 0.0, 0.02]
    sinks = act(with_rod(over))
    assert sinks[2] < -0.5 and sinks[6] == CLOSE
    assert act(with_rod(over + [0.005, 0.0, 0.0]))[2] == pytest.approx(0.0, abs=1e-6)
    leaning = act(with_rod(over, turn=0.2))
    assert leaning[3] < -0.1  # it is turned back
    assert leaning[2] > -0.5


def test_a_low_rod_rises_before_it_goes_sideways():
    action = act(with_rod(TUBE + [0.0, -0.1, -0.1]))
    assert action[2] > 0.5
    assert abs(action[:2]).max() < 1e-6


def test_the_eye_sinks_over_the_prong_and_not_beside_it():
    assert act(with_wrench([0.0, 0.0, 0.045]))[2] < -0.2
    beside = act(with_wrench([0.0, 0.01, 0.045]))
    assert beside[2] > 0.0 and beside[1] < -0.2


def test_a_threaded_wrench_is_tipped_and_then_let_go():
    threaded = act(with_wrench([0.0, 0.0, 0.0065]))
    assert threaded[6] == CLOSE
    assert threaded[4] > 0.2  # the handle goes down
    assert act(with_wrench([0.0, 0.0, -0.001], tilt=0.7))[6] == OPEN


def test_the_hand_leaves_the_inserted_rod_backwards():
    obs = with_rod(TUBE - [0.0, 0.0, 0.15])
    obs["object"][42] = 1.0
    obs["robot0_gripper_qpos"] = np.array([0.04, -0.04])
    action = act(obs)
    assert action[6] == OPEN
    np.testing.assert_allclose(
        action[:3] / np.linalg.norm(action[:3]), rotated(obs["robot0_eef_quat"], -Z), atol=1e-6
    )


def inserting(random):
    """A hand at or near the rod, whose tip is near the tube's upper end."""
    quat = tilted(ROD_UPRIGHT, rotation(random, 0.0, 0.0, 0.05, 0.5))
    rod = rotated(quat, -Z)
    lift = random.choice([0.0, 0.0, 0.75, 0.8])
    corner = random.choice([GRIP_M, TIP_M]) * Z + lift * Z
    beside = 1.0 if (quat == ROD_UPRIGHT).all() else BESIDE
    hand = corner + GRIP_M * rod - beside * aside(random, 0.0, 0.0, 0.01, 0.03)
    posture = tilted(gripper_down(math.atan2(rod[1], rod[0])), 0.7 * np.cross(rod, Z))
    hand_quat = tilted(posture, rotation(random, 0.0, 0.15, 0.6))
    width = near(random, 0.0254, 0.0274, 0.0354, 0.075)
    obs = observe(corner, quat, Z, LEVEL, hand, hand_quat, width=width, inserted=0.0)
    top = corner + TIP_M * rod + beside * aside(random, 0.0, 0.0, 0.0025, 0.006, 0.03)
    top += (beside - 1.0) * 0.01 * Z
    obs["object"][7:10] = top - [0.0, 0.045, 0.155]
    return obs


def hanging(random, near_place, held=0.03, tilts=(0.0, 0.1, 0.3)):
    """A hand at or near the wrench, whose eye is near its place on the prong."""
    frame = tilted(ROD_UPRIGHT, rotation(random, 0.0, 0.1))
    corner = near(random, 0.0, 1.03) * Z
    foot = corner + rotated(frame, np.array([-0.0837, 0.0, 0.0037]))
    tilt = BESIDE * near(random, *tilts)
    quat = tilted(tilted(LEVEL, tilt * Y), rotation(random, 0.0, 0.1, 0.2))
    middle = foot + BESIDE * near_place(random) + rotated(quat, EYE_M * X)
    hand = middle - BESIDE * aside(random, *[0.0] * 5, held, 0.01)
    hand_quat = tilted(tilted(gripper_down(math.pi), tilt * Y), rotation(random, 0.0, 0.1, 0.15))
    width = near(random, 0.03, 0.032, 0.04, 0.075)
    obs = observe(corner, frame, middle, quat, hand, hand_quat, width=width, inserted=1.0)
    obs["object"][43] = random.random() < 0.05
    return obs


def lowering(random):
    height = near(random, 0.02, 0.0225, 0.027, 0.0405, 0.045)
    return hanging(random, lambda r: aside(r, 0.0, 0.003, 0.006, 0.02) * [1, 1, 0] + height * Z)


def tipping(random):
    tilts = (0.1, 0.3, 0.35, 0.65, 0.785, 1.05, 1.57)
    return hanging(random, lambda r: aside(r, 0.0, 0.001, 0.003, 0.007), tilts=tilts)


def fetching(random):
    obs = hanging(random, lambda r: aside(r, 0.1, 0.3))
    obs["object"][21:24] = [0.0, 0.0, GRIP_M + random.choice([0.0, 1.0])]
    obs["object"][24:28] = ROD_UPRIGHT
    obs["robot0_eef_pos"] = aside(random, 0.1, 0.12, 0.3)
    obs["robot0_eef_pos"][2] += random.choice([0.0, 1.08, 1.11])
    return obs


@pytest.mark.parametrize(
    ("draw", "total"),
    [
        (inserting, -16.334454085),
        (lowering, -20.61018987),
        (tipping, 12.477026432),
        (fetching, -9.388696066),
    ],
)
def test_actions_are_the_same_in_each_version(draw, total):
    assert fingerprint(find_expert("ToolHang"), draw) == pytest.approx(total, abs=1e-6)


def test_the_attempt_is_given_its_time_and_no_shaped_reward():
    expert = find_expert("ToolHang")
    assert (expert.horizon, expert.carry_steps, expert.dense_kwargs) == (700, 100, None)
