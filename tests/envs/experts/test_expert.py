import math
from dataclasses import replace

import numpy as np
import pytest

from imitate.envs.experts import QUALITIES, Style
from imitate.envs.experts.expert import (
    gripper_down,
    gripper_yaw,
    opening,
    rotation_error,
    square_yaw,
    yaw_of,
)
from imitate.envs.experts.pick_and_place import LiftExpert, PickPlaceCanExpert

from .hands import PLAIN, observation

HALF = math.sqrt(0.5)


def test_rotation_error_is_the_short_turn_in_world_axes():
    identity = np.array([0.0, 0.0, 0.0, 1.0])
    quarter_about_z = np.array([0.0, 0.0, HALF, HALF])
    quarter = math.pi / 2
    for target, current, wanted in (
        (quarter_about_z, identity, quarter),
        (identity, quarter_about_z, -quarter),
        (quarter_about_z, -identity, quarter),
        (identity, identity, 0),
        (gripper_down(0.3), gripper_down(0.0), 0.3),  # both point down, turned about the vertical
    ):
        found = rotation_error(target, current)
        np.testing.assert_allclose(found, [0, 0, wanted], atol=1e-12)


def test_yaws():
    assert yaw_of(np.array([0.0, 0.0, math.sin(0.2), math.cos(0.2)])) == pytest.approx(0.4)
    assert gripper_yaw({"robot0_eef_quat": gripper_down(-0.7)}) == pytest.approx(-0.7)
    box = np.array([0.0, 0.0, math.sin(0.5), math.cos(0.5)])  # turned by 1 rad
    assert square_yaw(box) == pytest.approx(1.0 - math.pi / 2)
    assert square_yaw(box, near=0.9) == pytest.approx(1.0)


def test_opening_is_the_distance_of_the_fingers():
    assert opening(observation(width=0.043)) == pytest.approx(0.043)


def test_motion_is_limited_by_the_style_and_keeps_its_direction():
    expert = LiftExpert(PLAIN)
    action = expert.move(observation(), np.array([0.3, 0.4, 0.0]), -1.0)
    np.testing.assert_allclose(action, [0.36, 0.48, 0, 0, 0, 0, -1.0], atol=1e-12)
    near = expert.move(observation(), np.array([0.001, 0.0, 0.0]), 1.0)
    np.testing.assert_allclose(near, [0.03, 0, 0, 0, 0, 0, 1.0], atol=1e-12)  # 1.5 * 1 mm / 5 cm


def test_choices_follow_from_the_observation_alone():
    expert = LiftExpert(PLAIN)
    far = observation(eef=(0.1, 0.0, 0.95))
    ready = observation(eef=(0.0, 0.0, 0.825))
    held = observation(eef=(0.0, 0.0, 0.82), width=0.043)
    closed_elsewhere = observation(eef=(0.1, 0.0, 0.95), width=0.0)
    first = [expert.act(obs) for obs in (far, ready, held, closed_elsewhere)]
    again = [expert.act(obs) for obs in (closed_elsewhere, held, ready, far)][::-1]
    np.testing.assert_array_equal(first, again)
    assert first[0][0] < 0  # goes towards the cube
    assert [action[6] for action in first] == [-1.0, 1.0, 1.0, -1.0]
    assert first[2][2] > 0.5  # the held cube is raised


@pytest.mark.parametrize(
    ("margin", "from_the_edge", "height", "sinks"),
    [
        (0.0, 0.015, 1.02, True),
        (0.03, 0.015, 1.02, False),  # further in first
        (0.03, 0.045, 1.02, True),
        (0.03, 0.015, 0.95, True),  # low already: it does not rise again
    ],
)
def test_a_can_is_put_down_a_margin_from_the_edge(margin, from_the_edge, height, sinks):
    front_edge = 0.3125  # of the region in which the can is let go
    can = (0.1975, front_edge + from_the_edge, height)
    expert = PickPlaceCanExpert(replace(PLAIN, margin_m=margin))
    held = observation(eef=(*can[:2], height + 0.01), width=0.06)
    held["object"] = np.array([*np.zeros(7), *can, 0.0, 0.0, 0.0, 1.0])
    action = expert.act(held)
    assert action[6] == 1.0
    assert (action[2] < -0.1) == sinks
    assert action[1] >= 0.0


def test_demonstrators_differ_in_speed_and_exactness():
    draws = {
        quality: [Style.sample(np.random.default_rng(seed), quality) for seed in range(50)]
        for quality in QUALITIES
    }
    speed = {quality: np.mean([s.speed for s in draws[quality]]) for quality in QUALITIES}
    offset = [
        np.mean([np.abs(style.grasp_offset_m).mean() for style in draws[quality]])
        for quality in ("better", "okay", "worse")
    ]
    assert speed["better"] > speed["worse"] > speed["okay"]
    assert offset[0] < offset[1] < offset[2]
    assert draws["better"][0] != draws["better"][1]
