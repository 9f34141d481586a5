"""Demonstrations that are too few, and observations that are missing."""

import numpy as np
import pytest

from imitate.checks.fitted import (
    LeftOut,
    are_two_groups,
    of_motion,
    of_number,
    of_unobserved,
    standardized,
)
from imitate.deploy.check.deploy_check import CheckedDemo


def reached(number, seen=("pos", "goal"), seed=0, steps=12):
    """Demonstrations of a point that goes to its goal in the plane, and their goals."""
    rng = np.random.default_rng(seed)
    demos, goals = [], rng.uniform(-1, 1, (number, 2))
    for n, goal in enumerate(goals):
        pos, obs, actions = rng.uniform(-1, 1, 2), [], []
        for _ in range(steps):
            actions.append(0.5 * (goal - pos))
            obs.append(np.concatenate([pos, goal]))
            pos = pos + actions[-1]
        both = {"pos": np.array(obs)[:, :2], "goal": np.array(obs)[:, 2:]}
        demos.append(CheckedDemo(f"demo_{n}", {key: both[key] for key in seen}, np.array(actions)))
    return demos, goals


def left_out(number, seen=("pos", "goal")):
    demos, goals = reached(number, seen)
    return LeftOut(demos, seen), goals


def test_three_demonstrations_are_few_and_thirty_are_not():
    few, many = left_out(3)[0], left_out(30)[0]
    assert of_number(few, 0.1).is_named and not of_number(many, 0.1).is_named
    assert "of the 3 demonstrations" in of_number(few, 0.1).words
    assert few.novelty() > 0.4 and many.novelty() < 1e-9
    assert many.errors().max() < 0.2 < few.errors().min()
    assert of_number(few, 2.0).score == 0  # a policy that errs more has another fault


@pytest.mark.slow("regressions without each demonstration")
def test_a_goal_that_is_not_observed():
    blind, goals = left_out(30, ("pos",))
    rng = np.random.default_rng(1)
    in_file = list(of_unobserved(blind, {"noise": rng.normal(size=(30, 2)), "goal": goals}, False))
    assert [one.is_named for one in in_file] == [True] and "'goal'" in in_file[0].words
    (by_its_end,) = of_unobserved(blind, {}, False)
    assert by_its_end.is_named and "goal as an observation" in by_its_end.advice
    seeing, goals = left_out(30)
    assert not any(one.is_named for one in of_unobserved(seeing, {"goal": goals}, False))
    assert seeing.surprise(seeing.last)[0] < 0.5 < blind.surprise(blind.last)[0]


def parted(ends):
    """Demonstrations from similar starts that pass an obstacle on one of two sides, and end apart or together."""
    rng, demos = np.random.default_rng(0), []
    for n in range(30):
        side, x = 2.0 * (n % 3 > 0) - 1.0, np.linspace(0, 1, 16)
        y = rng.uniform(-0.2, 0.2) + side * (x if ends else np.sin(np.pi * x))
        pos = np.stack([x, y], axis=1)
        demos.append(CheckedDemo(f"demo_{n}", {"pos": pos}, np.gradient(pos, axis=0)))
    return LeftOut(demos, ("pos",))


@pytest.mark.parametrize(("ends", "place"), [(True, "last"), (False, "middle")])
def test_people_who_act_in_two_ways_from_the_same_state(ends, place):
    named = [one for one in of_unobserved(parted(ends), {}, False) if one.is_named]
    assert [one.kind for one in named][:1] == ["inconsistent"] and place in named[0].words
    assert not any(one.is_named for one in of_unobserved(parted(ends), {}, True))


@pytest.mark.parametrize(
    ("values", "two"),
    [
        (np.linspace(-1, 1, 20), False),
        ([-1.0] * 10 + [1.0] * 10, True),
        ([-1.0] * 17 + [1.0] * 3, True),
        ([-1.0] * 18 + [1.0] * 2, False),
        ([-1.1, -0.9] * 5 + [0.9, 1.1] * 5, True),
        ([0.0] * 20, False),
    ],
)
def test_two_groups_of_numbers(values, two):
    assert are_two_groups(np.array(values)) == two


def test_velocities_that_are_not_observed():
    """A swing is braked: the action is against the velocity, which one position does not tell."""
    rng, demos = np.random.default_rng(0), []
    for n in range(20):
        phase, width = rng.uniform(0, 6), rng.uniform(0.5, 1.5)
        angle = width * np.sin(phase + 0.3 * np.arange(30))
        speed = np.concatenate([[0.0], np.diff(angle)])
        obs = {"angle": angle[:, None], "speed": speed[:, None]}
        demos.append(CheckedDemo(f"demo_{n}", obs, -3 * speed[:, None]))
    for keys, named in ((["angle"], True), (["angle", "speed"], False)):
        cause = of_motion(LeftOut(demos, keys), LeftOut(demos, keys, before=True))
        assert (cause.kind, cause.is_named) == ("unobserved", named)


def test_left_out_errors_are_those_of_a_fit_without_the_demonstration():
    demos, _ = reached(4, steps=3)
    data = LeftOut(demos, ("pos", "goal"))
    x, y, of = data.states, data.actions, data.of

    def kernel(a, b, width):
        squares = ((a[:, None] - b) ** 2).mean(axis=2)
        return np.exp(-squares / (2 * width**2)) + 0.05 * a @ b.T / a.shape[1] + 1

    errors = []
    for width, ridge in ((1.5, 0.01), (1.5, 0.3), (1.5, 1.0), (5.0, 0.01), (5.0, 0.3)):
        left = np.empty_like(y)
        for number in range(4):
            own, rest = of == number, of != number
            gram = kernel(x[rest], x[rest], width) + ridge * np.eye(rest.sum())
            left[own] = y[own] - kernel(x[own], x[rest], width) @ np.linalg.solve(gram, y[rest])
        errors.append(np.abs(left).mean(axis=0) / np.abs(y).mean(axis=0))
    assert data.errors() == pytest.approx(min(errors, key=np.sum), rel=1e-6)


def test_numbers_that_do_not_vary_become_zero():
    values = np.array([[1.0, 5.0], [3.0, 5.0]])
    assert standardized(values).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
