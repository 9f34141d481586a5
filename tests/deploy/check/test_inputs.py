"""Observations beside the training's statistics: units, ranges, still and constant numbers, colours."""

import numpy as np
import pytest

from imitate.deploy.check.inputs import (
    DeployFinding,
    Severity,
    image_findings,
    vector_findings,
    verdict,
)
from imitate.deploy.check.statistics import Range


def training(mean=0.0, std=1.0, low=-2.0, high=2.0):
    return Range(*(np.atleast_1d(np.float64(x)) for x in (mean, std, low, high)))


def found(values, known=None, names=()):
    values = np.array(values, float).reshape(len(values), -1)
    return vector_findings("s", values, known or training(), names)


def kinds(findings):
    return [finding.kind for finding in findings]


@pytest.mark.parametrize(
    ("levels", "result"),
    [([], "ok"), (["note"], "ok"), (["note", "warning"], "warnings"), (["problem", "warning"], "fails")],
)  # fmt: skip
def test_verdicts(levels, result):
    assert verdict(DeployFinding(Severity(level), "", "", "") for level in levels) == result


SPREAD = [-1.0, 1.0] * 10


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (SPREAD, []),
        ([*SPREAD[:18], 11.0, 11.0], []),  # a tenth of the steps
        ([*SPREAD[:17], 11.0, 11.0, 11.0], ["units"]),
        ([*SPREAD[:17], 10.0, 10.0, 10.0], ["range"]),
        ([*SPREAD[:18], 2.5, 2.5], []),
        ([*SPREAD[:17], 2.41, 2.41, 2.41], ["range"]),
        ([*SPREAD[:17], 2.4, 2.4, 2.4], []),  # a tenth of the range beyond it
        ([*SPREAD[:17], -2.41, -2.41, -2.41], ["range"]),
        ([*SPREAD[:17], -2.4, -2.4, -2.4], []),
        ([*SPREAD * 5, *[11.0] * 13], ["units"]),  # 11.5 % of the steps
        ([*SPREAD * 5, *[2.41] * 13], ["range"]),
        ([0.049, -0.049] * 10, ["still"]),
        ([0.05, -0.05] * 10, []),
    ],
)
def test_a_number_beside_its_training(values, expected):
    assert kinds(found(values)) == expected


@pytest.mark.parametrize(
    ("std", "low", "high", "values", "expected"),
    [
        (0.0, 0.0, 0.0, [0.001] * 3, []),
        (0.0, 0.0, 0.0, [0.0, 0.0011, 0.0], ["constant"]),
        (0.0, 0.0, 1e-6, [0.5] * 3, ["constant"]),
        (1e-6, 0.0, 2e-6, [0.5] * 3, ["units"]),
        (1e-6, -np.inf, np.inf, [0.5] * 3, ["constant"]),
        (1.0, -np.inf, np.inf, [5.0, 7.0] * 3, []),  # an unknown range
    ],
)
def test_numbers_that_were_constant(std, low, high, values, expected):
    assert kinds(found(values, training(0.0, std, low, high))) == expected


@pytest.mark.parametrize(("value", "expected"), [(100.09, []), (100.11, ["constant"])])
def test_large_constants_may_differ_by_a_thousandth(value, expected):
    assert kinds(found([value] * 3, training(100.0, 0.0, 100.0, 100.0 + 5e-5))) == expected


def test_each_kind_names_its_own_numbers():
    known = Range(
        np.zeros(5), np.array([1, 1, 0, 1, 1.0]), *np.array([-2, 2.0])[:, None] * [1, 1, 0, 1, 1]
    )
    steps = [[20, 20, 0.5, 2.5, 0.01], [20, 1, 0.5, -2.5, -0.01]] * 2
    units, outside, constant, still = found(steps, known)
    assert units.words.startswith("s[0, 1] are more than 10 standard deviations")
    assert "in 100% of the steps" in units.words
    assert outside.words.startswith("s[3] are outside the training's range in 100% of")
    assert constant.words.startswith("s[2] were constant in training")
    assert still.words.startswith("s[4] vary less than a twentieth")
    assert "(about 0.01 times the deviation: metres instead of centimetres?)" in still.words
    levels = [finding.level.value for finding in (units, outside, constant, still)]
    assert levels == ["problem", "warning", "warning", "warning"]


def test_words_name_the_numbers():
    known = Range(np.zeros(2), np.ones(2), np.full(2, -2.0), np.full(2, 2.0))
    (finding,) = found([[20.0, 0.5], [20.0, -0.5]], known, ["a", "b"])
    assert (finding.level, finding.key) == (Severity.problem, "s")
    assert finding.words.startswith("s[0 (a)] are more than 10 standard deviations")
    assert "in 100% of the steps" in finding.words


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (57.3, "degrees instead of radians"),
        (92, "centimetres instead of metres"),
        (180, None),
        (0.0175, "radians instead of degrees"),
        (0.0278, "radians instead of degrees"),
        (1000, "millimetres instead of metres"),
        (601, "millimetres instead of metres"),
        (600, None),
        (1600, None),
        (1599, "millimetres instead of metres"),
        (0.00061, "metres instead of millimetres"),
        (110, "centimetres instead of metres"),
        (0.0061, "metres instead of centimetres"),
        (10, None),
    ],
)
def test_a_change_of_units_is_proposed(times, words):
    (finding,) = found([float(times)], training(1.0, 1e-5, 0.9, 1.1))
    assert finding.kind == "units"
    assert (words or "compare units") in finding.words
    assert ("instead of" in finding.words) == (words is not None)
    assert words is None or f"about {float(times):.3g} times the training's mean" in finding.words


def test_one_value_beside_a_mean_of_zero_has_no_unit():
    (finding,) = found([0.05], training(0.0, 1e-5, -1e-4, 1e-4))
    assert finding.kind == "units" and "instead of" not in finding.words


def images(*means, steps=1, noise=0.0):
    """Images of 4 pixels whose channels have these means."""
    pattern = noise * np.array([-1.0, 1.0, -1.0, 1.0]).reshape(1, 2, 2, 1)
    return [np.tile(np.array(means, np.float64) + pattern, (steps, 1, 1, 1))]


def seen(demos, *means):
    known = training(means, 0.1, 0.0, 1.0) if means else None
    return image_findings("cam", demos, known)


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.zeros((1, 2, 2, 1), np.uint8), "all images are black"),
        (np.ones((1, 2, 2, 1), np.uint8), "integer pixels from 1 to 1: expected 0 to 255"),
        (np.full((1, 2, 2, 1), 2, np.uint8), None),
        (np.full((1, 2, 2, 1), 2 / 255), "perhaps they were divided by 255 twice"),
        (np.full((1, 2, 2, 1), 2.1 / 255), None),
        (np.full((1, 2, 2, 1), 1.01), None),
        (np.full((1, 2, 2, 1), 1.02), "the policy expects uint8, or floats from 0 to 1"),
        (np.array([-0.01, 0.5]).reshape(1, 1, 2, 1), None),
        (np.array([-0.02, 0.5]).reshape(1, 1, 2, 1), "from -0.02 to 0.5: the policy expects uint8"),
    ],
)
def test_the_range_of_pixels(pixels, words):
    findings = seen([pixels])
    if words is None:
        assert "image range" not in kinds(findings)
        return
    assert [finding.level for finding in findings] == [Severity.problem]
    assert words in findings[0].words


@pytest.mark.parametrize(
    ("blank", "steps", "level"),
    [(1, 20, None), (11, 200, "warning"), (10, 20, "warning"), (11, 20, "problem")],
)
def test_images_of_a_single_colour(blank, steps, level):
    good = (
        images(0.5, noise=0.1, steps=steps - blank)[0]
        + np.arange(steps - blank).reshape(-1, 1, 1, 1) * 1e-3
    )
    findings = seen([np.concatenate([good, images(0.5, steps=blank)[0]])])
    assert [finding.level.value for finding in findings] == ([] if level is None else [level])


@pytest.mark.parametrize(("steps", "frozen"), [(10, False), (11, True)])
def test_an_image_that_never_changes(steps, frozen):
    moving = images(0.5, noise=0.1, steps=20)[0] + np.arange(20).reshape(-1, 1, 1, 1) * 1e-3
    findings = seen([images(0.5, noise=0.1, steps=steps)[0], moving])
    assert kinds(findings) == (["frozen image"] if frozen else [])
    if frozen:
        assert "in 1 of 2 demos" in findings[0].words


@pytest.mark.parametrize(
    ("means", "trained", "expected"),
    [
        ((0.64,), (0.5,), []),
        ((0.66,), (0.5,), ["brightness"]),
        ((0.3,), (0.5,), ["brightness"]),
        ((0.7, 0.5, 0.3), (0.3, 0.5, 0.7), ["channels"]),
        ((0.7, 0.5, 0.3), (0.7, 0.5, 0.3), []),
        ((0.5, 0.5, 0.5), (0.4, 0.5, 0.6), []),
        ((0.5, 0.5, 0.5), (0.51, 0.5, 0.5), ["channels"]),  # a note: both are equally bright
        ((0.9, 0.5, 0.5), (0.51, 0.5, 0.5), ["channels", "brightness"]),
        ((0.5, 0.5, 0.5), (0.521, 0.5, 0.5), []),
        ((0.58, 0.5, 0.42), (0.3, 0.5, 0.7), ["channels"]),  # 3/7 as far from the swapped ones
        ((0.54, 0.5, 0.46), (0.3, 0.5, 0.7), ["brightness"]),  # 2/3
        ((0.5, 0.5), (0.5,), []),  # another number of channels
    ],
)
def test_colours(means, trained, expected):
    findings = seen(images(*means, noise=0.05), *trained)
    assert kinds(findings) == expected
    if expected[:1] == ["channels"]:
        swapped = "BGR instead of RGB" in findings[0].words
        assert findings[0].level == (Severity.problem if swapped else Severity.note)


def test_a_difference_of_brightness_of_fifteen_percent_is_allowed():
    for mean, expected in ((0.15, []), (0.1501, ["brightness"])):
        pixel = np.full((1, 1, 1, 1), mean)
        findings = [f for f in seen([pixel], 0.0) if f.kind != "blank image"]
        assert kinds(findings) == expected


def test_a_difference_of_colours_of_two_percent_is_enough():
    assert seen(images(0.02, 0.0, 0.0, noise=0.005), 0.02, 0.0, 0.0) == []


@pytest.mark.parametrize("odd", [1.5, -0.5])
def test_pixels_of_every_demo_are_in_range(odd):
    demos = [*images(0.5, noise=0.1), *images(odd), *images(0.5, noise=0.1)]
    assert kinds(seen(demos)) == ["image range"]


def test_a_still_picture_of_one_colour_is_reported_once():
    assert kinds(seen(images(0.5, steps=11))) == ["blank image"]
    one_channel = images(0.5, 0.5, 0.5, steps=2)[0]
    one_channel[:, 0, 0, 1] = 0.6
    assert seen([one_channel]) == []


def test_a_large_number_has_a_deviation_of_at_least_a_millionth_of_it():
    known = training(1e6, 0.5, 1e6 - 2, 1e6 + 2)
    assert kinds(found([1e6 - 8.0, 1e6 + 8.0] * 2, known)) == ["range"]
    assert kinds(found([1e6 - 11.0, 1e6 + 11.0] * 2, known)) == ["units"]


def test_a_frozen_image_is_reported_beside_a_blank_one():
    moving = images(0.5, noise=0.1, steps=20)[0] + np.arange(20).reshape(-1, 1, 1, 1) * 1e-3
    moving[0] = 0.5
    assert kinds(seen([images(0.5, noise=0.1, steps=11)[0], moving])) == ["frozen image"]


def test_without_a_known_factor_no_unit_is_named():
    (finding,) = found([10.0], training(1.0, 1e-5, 0.9, 1.1), ["x"])
    assert finding.words == (
        "s[0 (x)] are more than 10 standard deviations from the training's mean in 100% of the steps: compare units "
        "and frames"
    )
    (finding,) = found([0.04, -0.04] * 5, training())
    assert finding.words == (
        "s[0] vary less than a twentieth as much as in training; check the sensor and the units"
    )
