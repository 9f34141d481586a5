"""Late observations and actions are found in motions that are not linear; noise and other motions are not late."""

from dataclasses import replace

import numpy as np
import pytest

from imitate.checks.execution_causes import of_blocked, of_lateness
from imitate.deploy.check.deploy_check import CheckedDemo

KEYS = ["angle", "speed"]


def swing(rng, late=(), by=0, acting=0, steps=40):
    """A pendulum under random torques; the vectors ``late`` are ``by`` steps old, and torques act ``acting`` late."""
    angle, speed, seen = rng.uniform(-3, 3), 0.0, []
    torques = np.repeat(rng.uniform(-1, 1, steps), 3)[:steps, None]
    for step in range(steps):
        seen.append((np.cos(angle), np.sin(angle), speed))
        torque = torques[max(step - acting, 0), 0]
        speed += 0.3 * np.sin(angle) + 0.4 * torque - 0.1 * speed
        angle += 0.3 * speed
    at = np.array(seen)
    obs = {"angle": at[:, :2], "speed": at[:, 2:]}
    for key in late:
        obs[key] = obs[key][np.maximum(np.arange(steps) - by, 0)]
    return CheckedDemo("demo", obs, torques)


def found(number=6, keys=KEYS, **fault):
    shown, failed = (np.random.default_rng(seed) for seed in (0, 1))
    trained = [swing(shown) for _ in range(20)]
    return of_lateness([swing(failed, **fault) for _ in range(number)], trained, keys)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"late": ["angle"], "by": 3}, "'angle' is 3 steps old"),
        ({"late": ["speed"], "by": 2}, "'speed' is 2 steps old"),
        ({"acting": 4}, "the robot acts 4 steps late"),
        ({"late": KEYS, "by": 5}, "the robot acts 5 steps late"),
    ],
)
def test_what_is_late_is_named_with_its_delay(fault, words):
    cause = found(**fault)
    assert cause.kind == "delay" and cause.is_named and words in cause.words, cause


def test_nothing_is_late():
    cause = found()
    assert cause.score == 0.0 and "old" in cause.words


def test_too_few_steps_or_changes_at_random_show_nothing():
    assert found(1, steps=20) is None
    assert found(keys=[]) is None
    rng = np.random.default_rng(0)
    noise = [
        CheckedDemo("demo", {"angle": rng.normal(size=(40, 1))}, np.zeros((40, 1)))
        for _ in range(5)
    ]
    still = [CheckedDemo("demo", {"angle": np.ones((40, 1))}, np.zeros((40, 1)))] * 5
    steady = [replace(one, obs={"angle": one.obs["angle"].cumsum(axis=0)}) for one in noise]
    for episodes in (steady, still):
        assert of_lateness(episodes, episodes, ["angle"]) is None
    other = [replace(swing(rng), actions=np.zeros((40, 2)))]
    assert of_lateness(other, [swing(rng) for _ in range(3)], KEYS) is None
    assert of_lateness([swing(rng)], [swing(rng, steps=1)] * 3, KEYS) is None


def descent(rng, floor=0.0, down=-0.8, steps=40):
    """A hand that goes down from about 1 to the floor and then, if it reaches 0.1, up again; actions and heights."""
    heights, actions, height, way = [], [], 1 + 0.05 * rng.normal(), down
    for _ in range(steps):
        heights.append([height])
        way = 0.8 if height < 0.1 else way
        actions.append([way + 0.1 * rng.normal()])
        height = max(height + 0.08 * actions[-1][0], floor)
    return np.array(actions), np.array(heights)


@pytest.mark.parametrize(
    ("fault", "named"),
    [({"floor": 0.3}, True), ({}, False), ({"down": -0.1}, False), ({"floor": 0.05}, False)],
)
def test_a_floor_that_demonstrations_do_not_have_stops_the_hand(fault, named):
    shown, failed = (np.random.default_rng(seed) for seed in (0, 1))
    trained = [descent(shown) for _ in range(10)]
    cause = of_blocked([descent(failed, **fault) for _ in range(6)], trained)
    assert (cause is not None and cause.is_named) == named
    if named:
        assert cause.kind == "limits" and "position 0 stays at 0.3 in" in cause.words


def test_places_that_differ_between_episodes_are_not_a_limit():
    shown, failed = (np.random.default_rng(seed) for seed in (0, 1))
    trained = [descent(shown) for _ in range(10)]
    cause = of_blocked([descent(failed, floor=0.2 + 0.1 * n) for n in range(6)], trained)
    assert cause is None
    mirrored = [(-u, -q) for u, q in [descent(failed, floor=0.3) for _ in range(6)]]
    turned = of_blocked(mirrored, [(-u, -q) for u, q in trained])
    assert turned is not None and "stays at -0.3 in" in turned.words


def test_a_frozen_sensor_is_not_a_limit():
    shown, failed = (np.random.default_rng(seed) for seed in (0, 1))
    trained = [descent(shown) for _ in range(10)]
    frozen = [(u, np.full_like(q, 0.3)) for u, q in [descent(failed) for _ in range(6)]]
    assert of_blocked(frozen, trained) is None
