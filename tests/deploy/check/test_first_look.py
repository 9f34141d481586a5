"""Before a robot moves: degrees, another order, exchanged cameras are reported, and a new scene is not."""

from dataclasses import replace

import numpy as np
import pytest

from imitate.deploy.check.first_look import (
    LaterLook,
    check_sizes,
    first_look,
    look_at_actions,
    look_at_pose,
)
from imitate.deploy.check.inputs import Severity
from imitate.deploy.check.statistics import Range, TrainingObservations
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.schema import ObservedKey, Schema
from imitate.errors import UserError
from tests.deploy.fake_robot import FakeRobot

SEEN = {"state": ObservedKey((2,)), "camera": ObservedKey((4, 4, 3), "rgb")}


def schema(size=2, **observations):
    return Schema({**SEEN, **observations}, size, (-1.0,) * size, (1.0,) * size)


def test_sizes_that_agree_and_what_is_not_known_yet_pass():
    check_sizes(FakeRobot(), schema(), False)
    check_sizes(FakeRobot(), None, False)
    check_sizes(FakeRobot(), schema(camera=ObservedKey((2, 2, 3), "rgb")), resizes=True)

    class Late(FakeRobot):
        limits = property(lambda self: self.unknown, lambda self, value: None)

    check_sizes(Late(), schema(7), False)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (schema(3), "takes actions of 2 numbers, but the policy returns 3"),
        (schema(state=ObservedKey((8,))), "'state' of the robot has 2 numbers, but the policy was trained with 8"),
        (schema(camera=ObservedKey((8, 4, 3), "rgb")), "of the robot is 4 x 4 x 3, but .* 8 x 4 x 3: use --resize"),
    ],
)  # fmt: skip
def test_other_sizes_are_refused(wanted, words):
    robot = FakeRobot(ActionLimits(np.full(2, -1.0), np.full(2, 1.0)))
    with pytest.raises(UserError, match=words):
        check_sizes(robot, wanted, resizes=False)
    assert robot.calls == []  # nothing of its driver was called


MEAN = np.array([0.1, -0.4, 0.0, -1.8, 0.0, 1.5, 0.7])
STD = np.array([0.3, 0.2, 0.05, 0.2, 0.05, 0.1, 0.15])
FRONT, WRIST = np.array([0.3, 0.4, 0.25]), np.array([0.2, 0.2, 0.36])
KINDS = {"joints": "low_dim", "front": "rgb", "wrist": "rgb"}


def around(mean, std):
    return Range(mean, std, mean - 2.5 * std, mean + 2.5 * std)


TRAINING = TrainingObservations(
    {"joints": around(MEAN, STD), "front": around(FRONT, 0.1), "wrist": around(WRIST, 0.1)},
    "the checkpoint",
)


def begun(low, high):
    """Two numbers in [-1, 1] with mean 0, which begin in a range of their own."""
    known = Range(np.zeros(2), np.full(2, 0.5), np.full(2, -1.0), np.full(2, 1.0))
    first = np.array([low, low]), np.array([high, high])
    return TrainingObservations({"joints": replace(known, first=first)}, "")


@pytest.mark.parametrize(
    ("x", "named"),
    [
        (
            [0.4, -0.3],
            None,
        ),  # within a tenth of the whole range, 0.2, of where demonstrations began
        ([0.42, 0.0], "joints[0]"),
        ([0.0, -0.33], "joints[1]"),
        ([0.5, -0.6], "joints[0, 1]"),
    ],
)
def test_a_pose_at_which_no_demonstration_began_is_a_warning(x, named):
    found = first_look({"joints": np.array(x)}, KINDS, begun(-0.1, 0.2))
    assert [(one.level, one.kind, one.key) for one in found] == (
        [(Severity.warning, "begin", "joints")] if named else []
    )
    assert not named or found[0].words.startswith(f"{named} is unlike the first steps")


def test_the_words_on_a_pose_name_the_farthest_number():
    (found,) = first_look({"joints": np.array([0.5, -0.6])}, KINDS, begun(-0.1, 0.2))
    assert found.words == (
        "joints[0, 1] is unlike the first steps of the demonstrations: number 1 is -0.6, and they began at -0.1 to "
        "0.2; bring the robot and the objects to where demonstrations began"
    )
    (found,) = first_look({"joints": np.array([5.5, 0.0])}, KINDS, begun(-0.1, 0.2))
    assert found.kind == "units"  # values that no training has are not reported as a place


def picture(mean, seed=0):
    noise = np.random.default_rng(seed).normal(0, 0.02, (24, 32, 3))
    return np.clip(255 * (mean + noise), 0, 255).astype(np.uint8)


def found(**changed):
    seen = {"joints": MEAN + STD, "front": picture(FRONT + 0.03), "wrist": picture(WRIST - 0.03)}
    return first_look({**seen, **changed}, KINDS, TRAINING)


def problems(**changed):
    return [entry.words for entry in found(**changed) if entry.level is Severity.problem]


def test_a_scene_as_in_training_is_without_findings():
    assert (found(), found(joints=MEAN - 2 * STD, front=picture(FRONT - 0.05))) == ([], [])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"joints": np.degrees(MEAN + STD)}, "degrees instead of radians"),
        ({"joints": 1000.0 * MEAN}, "millimetres instead of metres"),
        ({"joints": (MEAN + STD)[[1, 0, 2, 5, 4, 3, 6]]}, "fit the training only in the order 1, 0, 2, 5, 4, 3, 6"),
        ({"joints": MEAN[::-1]}, "check the order of joints"),
        ({"joints": MEAN[[6, 1, 2, 3, 4, 5, 0]]}, "only in the order 6, 1, 2, 3, 4, 5, 0;"),  # one is in its range
        ({"joints": MEAN * [1, -1, 1, 1, 1, -1, 1]}, "joints[1, 5] fit the training only with the opposite sign"),
        ({"front": picture(WRIST), "wrist": picture(FRONT)}, "'front' and 'wrist' look exchanged"),
        ({"wrist": picture(WRIST[::-1])}, "'wrist': red and blue seem to be swapped"),
        ({"joints": np.zeros(7)}, "'joints' is exactly 0 in all numbers"),
        ({"front": np.zeros((24, 32, 3), np.uint8)}, "'front': all images are black"),
        ({"joints": np.rint(MEAN).astype(int)}, "'joints' has whole numbers (int64), unlike in training"),
    ],
)  # fmt: skip
def test_what_the_robot_must_not_move_with(changed, words):
    told = problems(**changed)
    assert len(told) == 1 and words in told[0]


@pytest.mark.parametrize(
    ("low", "high", "count"),
    [([0, 0], [3, 5], 0), ([0, 0.5], [3, 5], 1), ([-np.inf] * 2, [1.5] * 2, 0)],
)
def test_whole_numbers_are_a_fault_only_where_the_training_had_others(low, high, count):
    known = Range(np.ones(2), np.ones(2), np.array(low), np.array(high))
    told = first_look(
        {"n": np.ones(2, int)}, {"n": "low_dim"}, TrainingObservations({"n": known}, "")
    )
    assert [entry.kind for entry in told] == ["rounded"] * count
    assert not first_look(
        {"n": np.ones(2)}, {"n": "low_dim"}, TrainingObservations({"n": known}, "")
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"joints": MEAN + [0, 0, 0.4, 0, 0, 0, 0]},  # outside of the range, and no unit explains it
        {
            "joints": MEAN + [0, 1.2, 0, 0, 0, 0, 0]
        },  # nor is it the value of another or its own with another sign
        {"front": picture(FRONT + 0.3)},  # another light
    ],
)
def test_another_place_or_light_is_a_warning(changed):
    assert problems(**changed) == [] and len(found(**changed)) == 1


@pytest.mark.parametrize(
    ("joints", "words"),
    [
        (MEAN + STD, ""),
        (MEAN + [0, 0, 0.58, 0, 0, 0, 0], ""),  # one that hardly moved in training is guided away
        (MEAN[::-1], ""),  # with a policy that strays, several numbers may fit another order
        (np.full(7, np.nan), ""),
        (MEAN * [1, 1, 1, 1, 1, 100, 1], "joints[5] are more than 10 standard deviations"),
        (np.zeros(7), "'joints' is exactly 0"),
    ],
)
def test_a_later_observation_is_not_acted_on_where_it_cannot_be(joints, words):
    look = LaterLook(KINDS, TRAINING)
    told = look({"joints": joints, "front": picture(WRIST)})
    assert told.startswith(words) and bool(told) == bool(words)
    assert look({"joints": 1.01 * joints}) == told  # the same words, to be counted


def test_actions_of_another_unit_are_a_problem_and_smaller_motions_or_no_limits_are_not():
    arm = ActionLimits(low=[-2.6, -2.6, 0.0], high=[2.6, np.inf, 1.0])
    told = look_at_actions([-90.0, -90.0, 0.0], [90.0, 90.0, 1.0], arm)
    assert len(told) == 1 and told[0].level is Severity.problem
    assert "34.6 times as large as the robot's limits in dimension 0;" in told[0].words
    assert look_at_actions([-0.1, -2.0, 0.0], [0.1, 2.0, 1.0], arm) == []
    assert look_at_actions([-np.inf] * 3, [np.inf] * 3, arm) == []
    for low, dims in (([-2.9, -3.5, -0.2], "1, 2"), ([-3.2, -2.6, 0.0], "0")):
        (told,) = look_at_actions(low, [2.6, 2.6, 1.0], arm)
        assert (
            told.level is Severity.warning
            and f"robot's limits in dimension {dims}, so" in told.words
        )


@pytest.mark.parametrize(
    ("pose", "low", "high", "words"),
    [
        ([0, 0, 0], [0.2, -0.6, -1], [1.2, -0.2, 1], "pose() gives zeros"),
        ([0, 0.01, 0], [0.2, -0.6, -1], [1.2, -0.2, 1], ""),  # measured
        ([0, 0, 0], [0.2, -1, -1], [1.2, 1, 1], ""),  # one that is only pushed forward
        ([0, 0, 0], [0.01, -0.6, -1], [1.2, -0.01, 1], ""),
        (None, [0.2, -0.6, -1], [1.2, -0.2, 1], ""),
    ],
)
def test_a_pose_of_zeros_is_none_of_position_targets(pose, low, high, words):
    told = look_at_pose(None if pose is None else np.array(pose), low, high)
    assert len(told) == bool(words) and all(entry.words.startswith(words) for entry in told)


def test_a_switch_with_its_other_value_has_no_opposite_sign():
    told = first_look(
        {"on": np.array([-1.0, 1.0])},
        {"on": "low_dim"},
        TrainingObservations({"on": around(np.ones(2), 1e-4)}, ""),
    )
    assert [entry.kind for entry in told] != ["sign"]


def test_what_has_no_statistics_or_is_not_finite_is_not_judged():
    assert first_look({"joints": np.full(7, 1e9)}, KINDS, TrainingObservations({}, "")) == []
    assert found(joints=np.full(7, np.nan)) == []


# ---- limits from both sides ----------------------------------------------------------------------


def judged(x, mean, std, low, high):
    """Kinds of what is found in a vector, problems with a mark."""
    known = Range(*(np.array(values, float) for values in (mean, std, low, high)))
    told = first_look(
        {"v": np.array(x, float)}, {"v": "low_dim"}, TrainingObservations({"v": known}, "")
    )
    return [f"{entry.kind}{'!' * (entry.level is Severity.problem)}" for entry in told]


@pytest.mark.parametrize(
    ("x", "mean", "std", "low", "high", "kinds"),
    [
        # More than ten deviations away, and beyond a tenth of the range.
        ([24.1], [0], [1], [-20], [20], ["units!"]),
        ([-24.1], [0], [1], [-20], [20], ["units!"]),
        ([23.9], [0], [1], [-20], [20], []),
        ([9.9], [0], [1], [-2], [2], ["range"]),
        ([11], [0], [1], [-np.inf], [np.inf], ["units!"]),
        ([9.9], [0], [1], [-np.inf], [np.inf], []),
        # Zeros.
        ([0, 0], [1.5, 0], [0.2, 1], [1, -1], [2, 1], ["zeros!"]),
        ([0, 0], [0.5, 0], [0.2, 1], [0.09, -1], [1, 1], []),  # nearly within the range
        # Two numbers outside: an order in which all are likely.
        ([10, 0], [0, 10], [1, 1], [-2.5, 7.5], [2.5, 12.5], ["order!"]),
        ([12.5, 0], [0, 10], [1, 1], [-2.5, 7.5], [2.5, 12.5], ["order!"]),
        ([12.6, 0], [0, 10], [1, 1], [-2.5, 7.5], [2.5, 12.5], ["units!", "range"]),
        ([13, 0], [0, 10], [1, 1], [-4, 6], [4, 14], ["order!"]),
        ([13.1, 0], [0, 10], [1, 1], [-4, 6], [4, 14], ["units!", "range"]),  # three deviations
        # One number outside: two that each are near the other's mean.
        ([10, 0], [0, 10], [1, 5], [-2.5, -5], [2.5, 25], ["order!"]),
        ([15, 0], [0, 10], [1, 5], [-2.5, -5], [2.5, 25], ["order!"]),
        ([15.1, 0], [0, 10], [1, 5], [-2.5, -5], [2.5, 25], ["units!"]),
        ([10, 1.1], [0, 10], [1, 5], [-2.5, -5], [2.5, 25], ["range"]),
        # The opposite sign.
        ([-3], [3], [1], [0.5], [5.5], ["sign!"]),
        ([-4], [3], [1], [0.5], [5.5], ["sign!"]),
        ([-4.1], [3], [1], [0.5], [5.5], ["range"]),
        ([-4], [4], [0.041], [3.9], [4.1], ["sign!"]),
        ([-4], [4], [0.04], [3.9], [4.1], ["units!"]),  # it hardly varies: a switch
        ([-3, 9], [3, 0], [1, 1], [0.5, -2], [5.5, 2], ["range"]),  # that explains one of two
    ],
)
def test_a_vector_by_hand(x, mean, std, low, high, kinds):
    assert judged(x, mean, std, low, high) == kinds


@pytest.mark.parametrize(("second", "odd"), [(2.01, True), (-2.01, True), (1.99, False)])
def test_a_number_that_hardly_varied_has_a_fifth_of_the_largest_deviation(second, odd):
    known = Range(np.zeros(2), np.array([1.0, 0.05]), np.full(2, -1.0), np.full(2, 1.0))
    look = LaterLook({"v": "low_dim"}, TrainingObservations({"v": known}, ""))
    assert bool(look({"v": [0.5, second]})) == odd
    known = Range(np.zeros(2), np.array([4.0, 0.05]), np.full(2, -1.0), np.full(2, 1.0))
    look = LaterLook({"v": "low_dim"}, TrainingObservations({"v": known}, ""))
    assert bool(look({"v": [0.5, 4 * second]})) == odd
    assert look({}) == look({"v": [0.5]}) == ""


@pytest.mark.parametrize(
    ("high", "level"),
    [(1.1, None), (1.3, "warning"), (18.9, "warning"), (19.1, "problem")],
)
def test_actions_beyond_the_limits(high, level):
    told = look_at_actions([-1.0], [high], ActionLimits(low=[-1.0], high=[1.0]))
    assert [entry.level.value for entry in told] == ([level] if level else [])


@pytest.mark.parametrize(("low", "odd"), [(0.11, True), (0.09, False)])
def test_actions_near_zero(low, odd):
    for sign in (1, -1):
        ends = sorted([sign * low, sign * (low + 1)])
        assert bool(look_at_pose(np.zeros(2), ends[:1] * 2, ends[1:] * 2)) == odd


@pytest.mark.parametrize(
    ("a", "b", "exchanged"),
    [
        ([0.4, 0.5, 0.6], [0.24, 0.3, 0.5], True),
        ([0.4, 0.5, 0.6], [0.26, 0.4, 0.5], False),  # no channel differs by more than 0.15
        ([0.6, 0.5, 0.2], [0.2, 0.5, 0.6], False),  # the other order of colours explains it as well
    ],
)
@pytest.mark.parametrize(("off", "is_near"), [(0.0, True), (0.06, True), (0.07, False)])
def test_exchanged_cameras_by_hand(a, b, exchanged, off, is_near):
    a, b = np.array(a), np.array(b)
    noise = 0.05 * np.array([-1.0, 1.0]).reshape(1, 2, 1)
    known = TrainingObservations({"x": around(a, 0.1), "y": around(b, 0.1)}, "")
    seen = {"x": b + noise + off, "y": a + noise}  # a third of the difference of 0.2 may remain
    told = [entry.kind for entry in first_look(seen, {"x": "rgb", "y": "rgb"}, known)]
    assert ("exchanged" in told) == (exchanged and is_near)


# ---- by hand: both sides of each limit -----------------------------------------------------------


def kinds_of(x, mean, std, low, high):
    """Kinds of what is found in one observation."""
    known = Range(*(np.array(part, dtype=float) for part in (mean, std, low, high)))
    seen = {"n": np.array(x, dtype=float)}
    return [
        f.kind for f in first_look(seen, {"n": "low_dim"}, TrainingObservations({"n": known}, ""))
    ]


@pytest.mark.parametrize(
    ("x", "mean", "std", "low", "high", "kinds"),
    [
        ([-1.125], [1.0], [0.125], [0.8], [1.2], ["sign"]),  # within a deviation of -1
        ([-1.13], [1.0], [0.125], [0.8], [1.2], ["units"]),
        ([-1.0], [1.0], [0.0101], [0.99], [1.01], ["sign"]),
        ([-1.0], [1.0], [0.01], [0.99], [1.01], ["units"]),  # a switch
        ([-0.13], [0.1875], [0.125], [0.1], [0.3], ["sign"]),
        ([-0.125], [0.1875], [0.125], [0.1], [0.3], ["range"]),  # 2.5 deviations from its mean
        ([13.0, 0.0], [0, 10], [1, 1], [-5, 5], [5, 15], ["order"]),  # three deviations
        ([13.1, 0.0], [0, 10], [1, 1], [-5, 5], [5, 15], ["units", "range"]),
        ([10.0, 0.0], [0, 10], [1, 1], [-5, 5], [5, 9], ["range"]),  # not in the range of the other
        ([10.0, 0.5], [0, 10], [1, 9], [-5, 0], [5, 15], ["order"]),  # one is in its range
        ([10.0, 1.5], [0, 10], [1, 9], [-5, 0], [5, 15], ["range"]),
        ([0.0, 0.0], [0, 10], [1, 1], [-5, 5], [5, 15], ["zeros"]),
        ([0.0, 0.0], [0, 5], [1, 1], [-5, 0], [5, 15], []),
        ([10.0], [0], [1], [-5], [5], ["range"]),  # ten deviations
        ([10.1], [0], [1], [-5], [5], ["units"]),
        ([10.1], [0], [1], [-5], [10], []),  # far, but within a tenth of the range beyond it
        ([10.1], [0], [1], [-np.inf], [np.inf], ["units"]),
    ],
)
def test_vectors_by_hand(x, mean, std, low, high, kinds):
    assert kinds_of(x, mean, std, low, high) == kinds


def cameras(first, second, trained_first, trained_second):
    """Kinds of what is found in two grey or coloured pictures, besides their own colours."""
    means = {"a": (first, trained_first), "b": (second, trained_second)}
    ranges, seen = {}, {}
    for key, (mean, trained) in means.items():
        trained = np.broadcast_to(np.array(trained, float), (3,))
        ranges[key] = Range(trained, np.full(3, 0.1), np.zeros(3), np.ones(3))
        seen[key] = np.broadcast_to(np.array(mean, float), (4, 4, 3)).astype(np.float32)
    told = first_look(seen, dict.fromkeys(means, "rgb"), TrainingObservations(ranges, ""))
    return [finding.key for finding in told if finding.kind == "exchanged"]


RED, BLUE = (0.8, 0.5, 0.2), (0.2, 0.5, 0.8)


@pytest.mark.parametrize(
    ("pictures", "exchanged"),
    [
        ((0.6, 0.2, 0.2, 0.6), True),
        ((0.36, 0.2, 0.2, 0.36), True),
        ((0.34, 0.2, 0.2, 0.34), False),  # too much alike
        ((0.51, 0.29, 0.2, 0.6), True),  # 0.09 and 0.31
        ((0.49, 0.31, 0.2, 0.6), False),  # 0.11 and 0.29
        ((0.2, 0.6, 0.2, 0.6), False),
        ((BLUE, RED, RED, BLUE), False),  # or their colours are in the other order
    ],
)
def test_cameras_by_hand(pictures, exchanged):
    assert cameras(*pictures) == (["a, b"] if exchanged else [])


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([0.0, 1.9], ""),
        ([0.0, 2.1], "n[1] are more than 10"),
        ([0.0, -2.1], "n[1] are more than 10"),
    ],
)
def test_a_number_that_hardly_varied_counts_with_a_fifth_of_the_largest_deviation(x, words):
    known = Range(np.zeros(2), np.array([1, 0.01]), np.array([-3, -0.03]), np.array([3, 0.03]))
    look = LaterLook({"n": "low_dim", "m": "low_dim"}, TrainingObservations({"n": known}, ""))
    assert look({"n": np.array(x)}).startswith(words) and bool(look({"n": np.array(x)})) == bool(
        words
    )
    assert look({}) == look({"n": [5.0]}) == ""


@pytest.mark.parametrize(
    ("low", "high", "least", "kinds"),
    [
        ([-1.0], [1.0], [-0.8], []),  # a tenth of the range beyond the limit
        ([-1.0], [1.0], [-0.79], ["warning"]),
        ([-10.0], [10.0], [-1.0], ["warning"]),
        ([-10.1], [10.1], [-1.0], ["problem"]),  # more than ten times the range
        ([5.0], [5.0], [-1.0], []),  # it did not move
        ([-np.inf], [np.inf], [-1.0], []),
    ],
)
def test_ranges_of_actions_by_hand(low, high, least, kinds):
    found = look_at_actions(low, high, ActionLimits(low=least, high=[1.0]))
    assert [finding.level.value for finding in found] == kinds


@pytest.mark.parametrize(
    ("pose", "low", "high", "found"),
    [
        ([0.0, 0.0], [0.11, 0.11], [1.11, 1.11], True),
        ([0.0, 0.0], [0.1, 0.1], [1.1, 1.1], False),
        ([0.0, 0.0], [-1.11, 0.11], [-0.11, 1.11], True),
        ([0.0, 0.0], [0.11, -1.0], [1.11, 1.0], False),  # of one number alone it may be by chance
        ([0.0, 0.1], [0.11, 0.11], [1.11, 1.11], False),
        (None, [0.11, 0.11], [1.11, 1.11], False),
    ],
)
def test_poses_of_zeros_by_hand(pose, low, high, found):
    pose = None if pose is None else np.array(pose)
    assert [finding.kind for finding in look_at_pose(pose, low, high)] == ["pose"] * found
