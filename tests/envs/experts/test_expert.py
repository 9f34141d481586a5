import math
from dataclasses import replace
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from imitate.envs.experts import QUALITIES, Style, expert
from imitate.envs.experts.expert import (
    ExpertLayout,
    expert_of_package,
    gripper_down,
    gripper_yaw,
    nearest_turn,
    opening,
    quat_product,
    rotated,
    rotation_error,
    square_yaw,
    tilted,
    turned,
    yaw_of,
)
from imitate.envs.experts.pick_and_place import LiftExpert, PickPlaceCanExpert
from imitate.errors import EnvError

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


@pytest.mark.parametrize(
    ("quality", "speed", "offset", "detour", "hesitation"),
    [
        ("better", (0.5, 0.8), 0.003, 0.01, 0.0),
        ("okay", (0.35, 0.55), 0.006, 0.08, 0.02),
        ("worse", (0.4, 0.8), 0.008, 0.03, 0.01),
        ("noise", (0.5, 0.8), 0.003, 0.01, 0.0),
    ],
)
def test_ranges_of_the_styles(quality, speed, offset, detour, hesitation):
    rng = np.random.default_rng(0)
    styles = [Style.sample(rng, quality) for _ in range(2000)]
    assert {style.hesitation for style in styles} == {hesitation}
    assert {style.margin_m for style in styles} == {0.0}
    for values, low, high in (
        ([style.speed for style in styles], *speed),
        ([style.hover_m for style in styles], 0.06, 0.09),
        ([style.grasp_offset_m for style in styles], -offset, offset),
        ([style.detour_m for style in styles], -detour, detour),
    ):
        edge = 0.01 * (high - low)
        assert low <= np.min(values) < low + edge and high - edge < np.max(values) <= high
    assert (styles[0].grasp_offset_m.shape, styles[0].detour_m.shape) == ((3,), (2,))
    assert Style.sample(np.random.default_rng(1)) != Style.sample(np.random.default_rng(2))


@pytest.mark.parametrize(
    ("layout", "size", "motion", "gripper"),
    [
        (ExpertLayout(), 7, [[0, 1, 2, 3, 4, 5]], [6]),
        (ExpertLayout(2), 7, [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]], [6, 13]),
        (ExpertLayout(2, grippers=False), 6, [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]], []),
    ],
)
def test_places_of_numbers_in_an_action(layout, size, motion, gripper):
    assert layout.arm_size == size
    assert layout.motion.tolist() == motion and layout.gripper.tolist() == gripper


def test_rotations_turn_vectors_and_each_other():
    about_x, about_z = np.array([HALF, 0, 0, HALF]), np.array([0, 0, HALF, HALF])
    y = np.array([0.0, 1.0, 0.0])
    np.testing.assert_allclose(rotated(about_x, y), [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(rotated(about_z, y), [-1, 0, 0], atol=1e-12)
    # first about x, then about z: y -> z -> z; z -> -y -> x
    both = quat_product(about_z, about_x)
    np.testing.assert_allclose(rotated(both, y), [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(rotated(both, np.array([0.0, 0.0, 1.0])), [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(both, [0.5, 0.5, 0.5, 0.5], atol=1e-12)
    general = quat_product(np.array([0.1, 0.2, 0.3, 0.9]), np.array([0.4, -0.5, 0.6, 0.7]))
    by_hand = [
        0.9 * 0.4 + 0.1 * 0.7 + 0.2 * 0.6 + 0.3 * 0.5,
        0.9 * -0.5 - 0.1 * 0.6 + 0.2 * 0.7 + 0.3 * 0.4,
        0.9 * 0.6 - 0.1 * 0.5 - 0.2 * 0.4 + 0.3 * 0.7,
        0.9 * 0.7 - 0.1 * 0.4 + 0.2 * 0.5 - 0.3 * 0.6,
    ]
    np.testing.assert_allclose(general, by_hand, atol=1e-12)
    identity = np.array([0.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(tilted(identity, np.array([math.pi / 2, 0, 0])), about_x, atol=1e-12)
    np.testing.assert_allclose(tilted(about_z, np.zeros(3)), about_z, atol=1e-12)
    np.testing.assert_allclose(turned(y, math.pi / 2), [-1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(turned(np.eye(3), 0.0), np.eye(3), atol=1e-12)
    tilt = np.array([0.0, 0.0, math.sin(1.9), math.cos(1.9)])  # 3.8 rad, or back by the rest
    found = rotation_error(tilt, identity)
    np.testing.assert_allclose(found, [0, 0, 3.8 - 2 * math.pi], atol=1e-12)
    tiny = np.array([1e-12, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(rotation_error(tiny, identity), [2e-12, 0, 0], atol=1e-15)
    leaning = np.array([math.sin(0.2), 0, 0, math.cos(0.2)])
    assert yaw_of(quat_product(np.array([0, 0, math.sin(0.3), math.cos(0.3)]), leaning)) == (
        pytest.approx(0.6)
    )


@pytest.mark.parametrize(
    ("angle", "period", "near", "found"),
    [(2.0, 3.0, 0.0, -1.0), (-2.0, 3.0, 0.0, 1.0), (2.0, 3.0, 2.5, 2.0), (7.0, 3.0, 0.0, 1.0)],
)
def test_the_nearest_turn(angle, period, near, found):
    assert nearest_turn(angle, period, near) == pytest.approx(found)


def test_turns_are_commanded_and_limited():
    expert = LiftExpert(PLAIN)
    down = observation(quat=gripper_down(0.0))
    assert expert.move(down, np.zeros(3), 1.0, yaw=0.2)[5] == pytest.approx(0.4)  # 0.5 rad per unit
    assert expert.move(down, np.zeros(3), 1.0, yaw=1.0)[5] == 1.0
    assert expert.move(down, np.zeros(3), 1.0, yaw=-1.0)[5] == -1.0
    posture = tilted(gripper_down(0.0), np.array([0.1, 0.0, 0.0]))
    found = expert.move(down, np.zeros(3), 1.0, yaw=9.0, posture=posture)
    np.testing.assert_allclose(found[3:6], [0.2, 0, 0], atol=1e-9)
    np.testing.assert_allclose(found[:3], 0.0)


@pytest.mark.parametrize(
    ("sideways", "height", "bend"),
    [
        (0.005, 0.0, 0.0),
        (0.02, 0.02, 0.0),  # twice what is beyond 1 cm
        (0.04, 0.06, 0.2),
        (0.08, 0.08, 1.0),  # as high as the style wants
        (0.2, 0.08, 1.0),
    ],
)
def test_an_approach_descends_in_a_funnel_and_bends_aside(sideways, height, bend):
    expert = LiftExpert(replace(PLAIN, detour_m=np.array([0.0, 0.01])))
    action = expert.approach(observation(), np.array([sideways, 0.0, -0.1]))
    wanted = np.array([sideways, 0.01 * bend, height - 0.1])
    scale = 30.0 * min(1.0, 0.6 / (30.0 * np.linalg.norm(wanted)))
    np.testing.assert_allclose(action[:3], scale * wanted, atol=1e-9)
    assert action[6] == -1.0


def test_an_environment_without_an_expert():
    with pytest.raises(EnvError, match="entry point 'gym_x' in the group imitate.experts"):
        expert_of_package("gym_x:Task-v0", {"Lift": None})
    with pytest.raises(EnvError, match="did you mean 'Lift'.*entry point 'your_package'"):
        expert_of_package("Lif", {"Lift": None})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module:find", "No module named 'no_such_module'"),
        ("json:__version__", "the entry point is not a function"),
    ],
)
def test_an_expert_that_cannot_be_loaded_is_named(monkeypatch, value, why):
    monkeypatch.setattr(expert, "installed_points", lambda group: [EntryPoint("toy", value, group)])
    words = f"toy:A: the expert is registered as {value}, which cannot be loaded .{why}.: repair or reinstall"
    with pytest.raises(EnvError, match=words):
        expert.expert_of_package("toy:A", {})
