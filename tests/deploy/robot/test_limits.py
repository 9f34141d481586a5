"""The limits hold for every stream of actions, whatever a policy asks for."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from imitate.deploy.robot.limits import ActionLimits, LimitError, LimitFilter
from imitate.errors import UserError

BOX = {"low": [-1.0, -2.0], "high": [1.0, 2.0]}


def box(**changes):
    return ActionLimits(**{**BOX, **changes})


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, np.nan, np.inf])
def test_a_rate_that_is_none_is_refused(rate_hz):
    with pytest.raises(UserError, match=f"the control rate is {rate_hz} Hz; wanted a number above"):
        LimitFilter(box(), rate_hz)


INFINITE = {"low": [-np.inf] * 2, "high": [np.inf] * 2}


@pytest.mark.parametrize(
    ("limits", "start", "wishes", "sent"),
    [
        ({"margin": 0.1}, None, [(0.5, -1.0)], [(0.5, -1.0)]),
        ({"margin": [0.1, 0.5]}, None, [(3.0, -3.0)], [(0.9, -1.5)]),
        # From 0 with steps of at most 0.1: (0.2, 0.1) is halved, or cut to (0.1, 0.1).
        ({"step": 0.1, "answer": "scale"}, (0, 0), [(0.2, 0.1)], [(0.1, 0.05)]),
        ({"step": 0.1, "answer": "clip"}, (0, 0), [(0.2, 0.1)], [(0.1, 0.1)]),
        ({"speed": 0.5}, (0, 0), [(1, 0)], [(0.05, 0)]),  # per second
        ({"step": 0.1}, (0, 0), [(1, 0)] * 2, [(0.1, 0), (0.2, 0)]),  # from command to command
        ({"step": 0.1}, (0.5, 0), [(-1, 0)], [(0.4, 0)]),  # the first one from the pose
        ({"step": 0.1}, None, [(5, 0)], [(1, 0)]),  # or, without a pose, put into the box
        # An acceleration of 1 changes the step by 0.01 each time, and brakes over the whole distance.
        ({"acceleration": 1.0}, (0, 0), [(1, 0)] * 3, [(0.01, 0), (0.03, 0), (0.06, 0)]),
        ({"acceleration": 1.0}, (0, 0), [(0.06, 0)] * 5, [(x, 0) for x in (0.01, 0.03, 0.05, 0.06, 0.06)]),
        ({"acceleration": 1.0, **INFINITE}, (0, 0), [(1, 0)] * 2, [(0.01, 0), (0.03, 0)]),
    ],
)  # fmt: skip
def test_commands_by_hand(limits, start, wishes, sent):
    limit = LimitFilter(box(**limits), 10.0)
    limit.start(start)
    np.testing.assert_allclose([limit(wish) for wish in wishes], sent, atol=1e-12)
    np.testing.assert_allclose(limit.last, sent[-1], atol=1e-12)
    assert (limit.counts.actions, bool(limit.counts.changed)) == (len(wishes), wishes != sent)


def test_commands_stay_near_the_measured_pose():
    limit = LimitFilter(box(from_measured=0.2), 10.0)
    np.testing.assert_allclose(limit([1.0, 0.0], measured=[0.1, 0.0]), [0.3, 0.0])
    # The box goes before the measured pose, which may be outside of it.
    np.testing.assert_allclose(limit([1.0, 0.0], measured=[1.5, 0.0]), [1.0, 0.0])


def test_a_command_brakes_for_its_target_without_overshoot():
    limit = LimitFilter(box(acceleration=1.0), 10.0)
    limit.start([-0.9, 0.0])
    sent = np.array([limit([0.5, 0.0])[0] for _ in range(80)])
    assert sent.max() <= 0.5 + 1e-9
    assert sent[-1] == pytest.approx(0.5, abs=1e-3)


def test_a_motion_within_the_acceleration_is_not_changed():
    limit = LimitFilter(box(acceleration=1.0, answer="refuse"), 10.0)  # 0.01 for each step
    limit.start([0.0, 0.0])
    wishes = [0.01, 0.02, 0.025, 0.02]
    np.testing.assert_allclose([limit([wish, 0.0])[0] for wish in wishes], wishes)
    with pytest.raises(LimitError, match="acceleration"):
        limit([0.04, 0.0])


def test_from_rest_the_speed_begins_at_zero_and_at_the_pose():
    limit = LimitFilter(box(acceleration=1.0), 10.0)
    limit.start([0.0, 0.0])
    for _ in range(3):
        limit([1.0, 0.0])
    limit.rest([0.5, 0.0])
    np.testing.assert_allclose(limit([1.0, 0.0]), [0.51, 0.0])
    limit.rest(None)
    np.testing.assert_allclose(limit([1.0, 0.0]), [0.52, 0.0])
    assert limit.counts.actions == 5
    with pytest.raises(LimitError, match="not finite"):
        limit.rest([np.nan, 0.0])


def test_what_is_beyond_may_be_refused_and_then_changes_nothing():
    limit = LimitFilter(box(step=0.1, answer="refuse"), 10.0)
    limit.start([0.0, 0.0])
    with pytest.raises(LimitError, match="step or speed"):
        limit([0.5, 0.0])
    with pytest.raises(LimitError, match="box"):
        limit([5.0, 0.0])
    np.testing.assert_array_equal(limit.last, [0.0, 0.0])
    np.testing.assert_allclose(limit([0.05, 0.0]), [0.05, 0.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_sent(bad):
    limit = LimitFilter(box(), 10.0)
    with pytest.raises(LimitError, match="not finite"):
        limit([0.0, bad])
    with pytest.raises(LimitError, match="present pose is not finite"):
        limit.start([bad, 0.0])
    assert limit.counts.actions == 0


def test_another_size_and_a_robot_that_stands_outside_are_refused():
    with pytest.raises(LimitError, match=r"shape \(3,\); wanted \(2,\)"):
        LimitFilter(box(), 10.0)([0.0, 0.0, 0.0])
    with pytest.raises(LimitError, match="dimension 1"):
        LimitFilter(box(), 10.0).start([0.0, 2.5])


def test_a_robot_at_its_edge_begins_there_whatever_the_noise_of_its_sensor():
    edge = LimitFilter(box(), 10.0)
    edge.start(np.asarray(edge.limits.high) + 0.001)
    np.testing.assert_array_equal(edge.last, edge.limits.high)


def test_a_box_without_an_upper_edge_keeps_its_lower_one():
    half = ActionLimits(low=[0.0], high=[np.inf])
    assert half.far_outside([-5.0]).all() and not half.far_outside([1e6]).any()
    with pytest.raises(LimitError, match="outside"):
        LimitFilter(half, 10.0).start([-5.0])


@pytest.mark.parametrize("edge", [-1, 1])
def test_a_robot_is_outside_by_more_than_noise_and_far_outside_by_more_than_a_tenth(edge):
    limit = LimitFilter(ActionLimits([-500.0, -500.0], [500.0, 500.0], speed=1.0), 10.0)
    limit.start([edge * 510.0, 0.0])
    assert limit.last.tolist() == [edge * 500, 0]
    with pytest.raises(LimitError, match="outside its limits in dimension 0 "):
        limit.start([edge * 510.1, 0.0])
    limit.rest([edge * 600.0, 7.0])
    assert limit.last.tolist() == [edge * 500, 7]
    with pytest.raises(LimitError, match="far outside"):
        limit.rest([edge * 600.1, 7.0])
    assert limit.limits.far_outside([edge * 600.0, edge * 600.1]).tolist() == [False, True]
    wide = ActionLimits([-1.0, -1.0], [1.0, np.inf], margin=[0.4, 0.0])
    assert wide.far_outside([edge * 1.4, -1.09]).tolist() == [False, False]
    assert wide.far_outside([edge * 1.41, -1.11]).tolist() == [True, True]
    assert wide.ranges().tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "sent"), [("scale", (0.2, 0.05)), ("clip", (0.2, 0.1)), ("refuse", None)]
)
def test_the_distance_from_the_measured_pose_in_each_answer(answer, sent):
    limit = LimitFilter(box(from_measured=[0.2, 0.1], answer=answer), 10.0)
    if sent is None:
        with pytest.raises(LimitError, match="distance from the measured pose; it was not sent"):
            limit([0.8, 0.2], measured=[0.0, 0.0])
        assert limit.counts.actions == 0
        return
    np.testing.assert_allclose(limit([0.8, 0.2], measured=[0.0, 0.0]), sent)
    assert str(limit.counts) == "of 1 actions limited by: distance from the measured pose 1"
    assert limit.counts.largest == pytest.approx(0.6)
    limit([0.1, 0.1], measured=[0.0, 0.0])
    assert str(limit.counts) == "of 2 actions limited by: distance from the measured pose 1"
    assert limit.counts.largest == pytest.approx(0.6)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_command_brakes_before_the_edge_in_both_directions(sign):
    """Changes of 0.01, 0.02 ... 0.1 ... 0.02, 0.01 add up to 1, where the edge is."""
    limit = LimitFilter(box(acceleration=1.0), 10.0)
    limit.start([0.0, 0.0])
    sent = np.array([limit([sign * 9.0, 0.0])[0] for _ in range(25)]) * sign
    steps = np.diff([0.0, *sent])
    rising = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09]
    np.testing.assert_allclose(steps, [*rising, 0.1, *rising[::-1], *[0.0] * 6], atol=1e-9)


def test_slow_motion_scales_motion_and_not_the_box():
    slow = box(speed=1.0, step=0.5, acceleration=2.0, jerk=[60.0, 30.0]).scaled(0.1)
    motion = (slow.speed, slow.step, slow.acceleration, slow.jerk)
    np.testing.assert_allclose(motion, [(0.1, 0.1), (0.05, 0.05), (0.2, 0.2), (6.0, 3.0)])
    np.testing.assert_allclose(slow.high, [1.0, 2.0])
    for factor in (0.0, 1.01):
        with pytest.raises(UserError, match="slow motion"):
            slow.scaled(factor)
    assert box().scaled(1.0).step is None
    with pytest.raises(UserError, match="none of step, speed, acceleration"):
        box().scaled(0.1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"high": [1.0]}, "high has shape"),
        ({"high": [1.0, -3.0]}, "each high must be above its low"),
        ({"margin": 1.0}, "two margins"),
        ({"margin": -0.1}, "margin"),
        ({"speed": 0.0}, "speed is"),
        ({"step": [0.1, 0.1, 0.1]}, "step has shape"),
        ({"answer": "ignore"}, "wanted scale, clip or refuse"),
        ({"low": [np.nan, 0.0]}, "each high"),
    ],
)
def test_limits_that_make_no_sense_are_refused(values, words):
    with pytest.raises(UserError, match=words):
        box(**values)


@settings(max_examples=200, deadline=None)
@given(
    wishes=arrays(np.float64, (40, 2), elements=st.floats(-1e6, 1e6)),
    start=arrays(np.float64, 2, elements=st.floats(-0.9, 0.9)),
    answer=st.sampled_from(["scale", "clip"]),
    acceleration=st.floats(0.1, 50.0),
)
def test_no_stream_of_wishes_breaks_a_limit(wishes, start, answer, acceleration):
    rate = 20.0
    limits = box(margin=0.05, speed=1.5, step=0.06, acceleration=acceleration, answer=answer)
    limit = LimitFilter(limits, rate)
    limit.start(start)
    path = np.array([start, *(limit(wish) for wish in wishes)])
    step = np.diff(path, axis=0)
    assert (np.abs(path) <= np.array([0.95, 1.95]) + 1e-9).all()
    assert (np.abs(step) <= 0.06 + 1e-9).all()
    change = np.diff(np.vstack([np.zeros((1, 2)), step]), axis=0)
    assert (np.abs(change) * rate**2 <= acceleration * (1 + 1e-9) + 1e-7).all()


OWN = {"low": [-1.0, -1.0], "high": [1.0, 1.0], "margin": 0.1, "speed": 2.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"speed": 1.0, "acceleration": 5.0, "low": [-0.5, -1.0]}, []),
        ({"low": [-0.8, -0.8], "high": 0.8, "margin": 0.0}, []),  # stricter edges than 0.9
        ({"low": [-1.0, -2.0]}, ["low [-1., -2.] (the robot's own: [-1., -1.])"]),
        ({"high": 3.0}, ["high [3., 3.] (the robot's own: [1., 1.])"]),
        ({"low": [-0.8, -0.8], "margin": 0.0}, ["margin [0., 0.] (the robot's own: [0.1, 0.1])"]),
        ({"high": 0.8, "margin": 0.0}, ["margin [0., 0.] (the robot's own: [0.1, 0.1])"]),
        ({"margin": 0.05}, ["margin [0.05, 0.05] (the robot's own: [0.1, 0.1])"]),
        ({"speed": [2.0, 2.5]}, ["speed [2. , 2.5] (the robot's own: [2., 2.])"]),
        ({"speed": None}, ["speed none (the robot's own: [2., 2.])"]),
        (
            {"high": 2.0, "speed": 3.0},
            ["high [2., 2.] (the robot's own: [1., 1.])", "speed [3., 3.] (the robot's own: [2., 2.])"],
        ),
    ],
)  # fmt: skip
def test_looser_limits_are_named_with_both_values(change, words):
    assert ActionLimits(**{**OWN, **change}).looser_than(ActionLimits(**OWN)) == words


def test_an_answer_that_lets_more_through_is_looser():
    own = ActionLimits(**OWN, answer="refuse")
    assert ActionLimits(**OWN).looser_than(own) == ["answer scale (the robot's own: refuse)"]
    assert own.looser_than(ActionLimits(**OWN)) == []
    with pytest.raises(UserError, match="for 1 numbers, the robot's for 2"):
        ActionLimits([-1.0], [1.0]).looser_than(own)


# Jerk.

SMOOTH = {**BOX, "speed": [1.5, 2.0], "acceleration": [6.0, 4.0], "jerk": [60.0, 30.0]}


def commanded(limits, targets, start=(0.0, 0.0), rate=50.0):
    """The commands (T + 1, A) for some targets, and the filter."""
    limit = LimitFilter(ActionLimits(**limits), rate)
    limit.start(start)
    return np.array([start, *(limit(target) for target in targets)]), limit


def assert_smooth(commands, limits, rate=50.0):
    """Differences of first, second and third order within the limits, and commands within the box."""
    still = np.repeat(commands[:1], 3, axis=0)  # it begins at rest
    path = np.concatenate([still, commands])
    for order, name in ((1, "speed"), (2, "acceleration"), (3, "jerk")):
        change = np.abs(np.diff(path, order, axis=0)).max(axis=0) * rate**order
        assert (change <= np.array(limits[name]) * (1 + 1e-6)).all(), (name, change)
    assert (commands >= np.array(limits["low"]) - 1e-9).all()
    assert (commands <= np.array(limits["high"]) + 1e-9).all()


@given(seed=st.integers(0, 10_000), keep=st.sampled_from([1, 2, 5, 20]))
@settings(max_examples=60, deadline=None)
def test_speed_acceleration_and_jerk_stay_within_their_limits_whatever_is_wanted(seed, keep):
    # Beyond the box too.
    targets = np.random.default_rng(seed).uniform(-3.0, 3.0, (200 // keep, 2))
    assert_smooth(commanded(SMOOTH, np.repeat(targets, keep, axis=0))[0], SMOOTH)


def test_a_policy_that_jumps_between_the_edges_does_not_leave_them():
    edges = np.tile([[1.0, 2.0], [-1.0, -2.0]], (300, 1))
    for keep in (1, 7, 23, 60):
        assert_smooth(commanded(SMOOTH, np.repeat(edges, keep, axis=0)[:600])[0], SMOOTH)


def test_the_target_is_reached_and_kept():
    commands, limit = commanded(SMOOTH, [[0.5, -1.5]] * 100)
    np.testing.assert_allclose(commands[-20:], [[0.5, -1.5]] * 20, atol=1e-9)
    assert limit.counts.changed["speed, acceleration or jerk"] < 90
    # At its limits a way of 0.5 takes at least 0.5 / 1.5 s, 17 steps, and with the ramps less than 40.
    reached = int(np.argmax(np.abs(commands[:, 0] - 0.5) < 1e-9))
    assert 17 <= reached <= 40


def test_without_a_limit_of_jerk_the_acceleration_jumps():
    """The test would notice: the same targets without ``jerk`` break the limit of the third difference."""
    without = {name: value for name, value in SMOOTH.items() if name != "jerk"}
    commands, _ = commanded(without, [[1.0, 2.0]] * 20)
    with pytest.raises(AssertionError, match="jerk"):
        assert_smooth(commands, SMOOTH)


def test_a_limit_of_a_step_bounds_the_speed_of_a_trajectory_too():
    limits = {**SMOOTH, "step": 0.01}
    commands, _ = commanded(limits, [[1.0, 2.0]] * 100)
    assert 0.0099 < np.abs(np.diff(commands, axis=0)).max() <= 0.01 + 1e-9


def test_after_a_hold_a_trajectory_begins_at_rest_at_the_pose():
    limit = LimitFilter(ActionLimits(**SMOOTH), 50.0)
    limit.start([0.0, 0.0])
    for _ in range(20):
        limit([1.0, 2.0])
    limit.rest([0.3, 0.3])
    after = np.array([[0.3, 0.3], *(limit([1.0, 2.0]) for _ in range(50))])
    assert_smooth(after, SMOOTH)


def test_a_refused_action_leaves_the_trajectory_as_it_was():
    limit = LimitFilter(ActionLimits(**SMOOTH, answer="refuse"), 50.0)
    limit.start([0.0, 0.0])
    for _ in range(3):
        with pytest.raises(LimitError, match="speed, acceleration or jerk"):
            limit([1.0, 1.0])
    np.testing.assert_allclose(limit([0.0, 0.0]), [0.0, 0.0])
    limit = LimitFilter(ActionLimits(**SMOOTH | {"jerk": 0.01}, answer="refuse"), 50.0)
    limit.start([0.0, 0.0])
    with pytest.raises(LimitError, match="speed, acceleration or jerk"):
        limit([5e-7, 0.0])  # more than it can reach in a step, little as it is


def test_a_pose_within_the_margin_is_left_smoothly():
    limits = {**SMOOTH, "margin": 0.1}
    commands, _ = commanded(limits, [[0.0, 0.0]] * 60, start=(0.95, 0.0))
    assert_smooth(commands, limits)
    np.testing.assert_allclose(commands[-1], [0.0, 0.0], atol=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"speed": None}, "speed is none: a limit of jerk also needs finite limits of speed"),
        ({"acceleration": None}, "acceleration is none"),
        ({"jerk": np.inf}, r"jerk is \[inf, inf\]"),
        ({"jerk": 0.0}, "wanted numbers above 0"),
        ({"jerk": [1.0, 1.0, 1.0]}, "wanted one number, or 2 of them"),
    ],
)
def test_a_limit_of_jerk_that_cannot_be_kept_is_refused(change, words):
    with pytest.raises(UserError, match=words):
        ActionLimits(**{**SMOOTH, **change})


def test_a_limit_of_jerk_needs_the_pose():
    limit = LimitFilter(ActionLimits(**SMOOTH), 50.0)
    with pytest.raises(LimitError, match="does not provide it"):
        limit.start(None)


def test_without_ruckig_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ruckig", None)
    LimitFilter(ActionLimits(**{**SMOOTH, "jerk": None}), 50.0)
    with pytest.raises(UserError, match=r"a limit of jerk: the package 'ruckig' .* 'ruckig>=0.14'"):
        LimitFilter(ActionLimits(**SMOOTH), 50.0)
