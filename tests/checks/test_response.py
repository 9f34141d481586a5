"""Delays are found from short episodes without a rate, for velocities, lags and position targets."""

import numpy as np
import pytest

from imitate.checks.response import of_delay, of_gain, of_order, of_shift, reach_of


def moved(u, delay=0, pull=0.0, lag=0.0, rng=None):
    """Positions after actions: q' = q + 0.1 s - pull q, with s a lag of the actions `delay` steps before."""
    q, s = np.zeros_like(u), np.zeros(u.shape[1])
    for step in range(len(u) - 1):
        s = lag * s + (1 - lag) * (u[step - delay] if step >= delay else 0)
        q[step + 1] = q[step] + 0.1 * s - pull * q[step]
    return q + (0 if rng is None else rng.normal(0, 1e-3, q.shape))


def episodes(number=20, steps=14, seed=0, size=2, **robot):
    rng = np.random.default_rng(seed)
    smooth = [np.cumsum(rng.normal(0, 0.3, (steps, size)), axis=0) for _ in range(number)]
    return [(u, moved(u, rng=rng, **robot)) for u in smooth]


ROBOTS = {"velocity": {}, "target": {"pull": 0.1}, "lag": {"lag": 0.5, "pull": 0.2}}


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_the_delay_of_a_recording(robot, delay):
    trained = episodes(**ROBOTS[robot])
    found = of_delay(episodes(4, 30, seed=1, delay=delay, **ROBOTS[robot]), trained)
    assert found.is_named == (delay > 0), found
    assert f"actions {delay} steps later" in found.words


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("ahead", [-1, 0, 1, 2])
def test_observations_ahead_of_their_actions_are_shifted(robot, ahead):
    pairs = episodes(30, 20, **ROBOTS[robot])
    size = abs(ahead)
    if ahead > 0:
        pairs = [(u[: len(u) - size], q[size:]) for u, q in pairs]
    elif ahead < 0:
        pairs = [(u[size:], q[: len(q) - size]) for u, q in pairs]
    found = of_shift(pairs)
    assert found.is_named == (ahead > 0), found  # one step later is a delay that robots have
    assert f"actions {-max(ahead, 0)} steps earlier" in found.words


def test_positions_that_no_action_moves_show_nothing():
    rng = np.random.default_rng(0)
    noise = [(rng.normal(size=(20, 2)), rng.normal(size=(20, 2))) for _ in range(20)]
    still = [(u, np.zeros_like(q)) for u, q in noise]
    for pairs in (noise, still, []):
        for found in (of_delay(pairs, pairs), of_shift(pairs), of_order(pairs, pairs)):
            assert found is None or found.score == 0
    assert of_delay(noise, episodes()).score == 0
    assert [reach_of([(np.zeros((n, 1)), None)]) for n in (5, 10, 14, 99)] == [0, 2, 3, 6]


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 0, 1]])
def test_positions_in_another_order(order):
    trained, recorded = (episodes(size=3, seed=seed) for seed in (0, 1))
    found = of_order([(u, q[:, order]) for u, q in recorded], trained)
    back = ", ".join(str(order.index(n)) for n in range(3))
    assert found is None if order == [0, 1, 2] else f"in the order {back} (" in found.words
    assert of_order([(u, q[:, :2]) for u, q in recorded], trained) is None


@pytest.mark.parametrize("flipped", [[], [1], [0, 2]])
def test_positions_with_the_other_sign(flipped):
    trained, recorded = (episodes(size=3, seed=seed) for seed in (0, 1))
    signs = [-1 if n in flipped else 1 for n in range(3)]
    found = of_order([(u, q * signs) for u, q in recorded], trained)
    if not flipped:
        assert found is None
        return
    named = ", ".join(f"{'-' if n in flipped else ''}{n}" for n in range(3))
    assert found.kind == "sign" and f"in the order {named} (" in found.words


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("gain", [1.0, 0.5, 2.0])
def test_the_gain_of_a_recording(robot, gain):
    trained, recorded = episodes(**ROBOTS[robot]), episodes(6, 30, seed=1, **ROBOTS[robot])
    found = of_gain([(u / gain, q) for u, q in recorded], trained)
    assert found.is_named == (gain != 1), found
    if robot == "velocity" and gain != 1:
        assert f"moves {gain:.2f} times as far" in found.words
        assert found.score == pytest.approx(np.log(2) / np.log(1.4), rel=0.1)
    assert of_gain(recorded, []) is None
