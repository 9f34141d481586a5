import numpy as np
import pytest

from imitate.functional.advantages import generalized_advantages, lambda_returns


def column(*values):
    return np.array(values, dtype=np.float32)[:, None]


def flags(*values):
    return np.array(values, dtype=bool)[:, None]


REWARDS = column(1, 2, 4, 8)
VALUES = column(0.5, 1, 1.5, 2)
NONE = flags(0, 0, 0, 0)


def test_gae_without_ends():
    # Errors with discount 0.5: 1 + 0.5 - 0.5, 2 + 0.75 - 1, 4 + 1 - 1.5, 8 + 1.5 - 2; then 0.25 of the next one each.
    following = column(1, 1.5, 2, 3)
    found = generalized_advantages(REWARDS, VALUES, following, NONE, NONE, 0.5, 0.5)
    assert found[:, 0].tolist() == [1 + 0.25 * 3.09375, 1.75 + 0.25 * 5.375, 3.5 + 0.25 * 7.5, 7.5]


def test_gae_of_a_single_step():
    found = generalized_advantages(
        column(1), column(0.5), column(3), flags(0), flags(0), discount=0.5, trace=0.5
    )
    assert found.tolist() == [[1 + 1.5 - 0.5]]


def test_gae_stops_at_a_terminal_and_bootstraps_at_a_timeout():
    following = column(1, 100, 10, 3)  # 100: after a terminal; 10: where the clock cut
    found = generalized_advantages(
        REWARDS, VALUES, following, flags(0, 1, 0, 0), flags(0, 0, 1, 0), 0.5, 0.5
    )
    assert found[:, 0].tolist() == [1 + 0.25 * 1, 2 - 1, 4 + 5 - 1.5, 7.5]


def test_gae_with_trace_one_is_the_return_and_with_zero_the_error():
    following = column(1, 1.5, 2, 3)
    whole = generalized_advantages(REWARDS, VALUES, following, NONE, NONE, 0.5, 1.0)
    assert (whole + VALUES)[:, 0].tolist() == [
        1 + 1 + 1 + 1 + 3 / 16,
        2 + 2 + 2 + 3 / 8,
        4 + 4 + 0.75,
        9.5,
    ]
    error = generalized_advantages(REWARDS, VALUES, following, NONE, NONE, 0.5, 0.0)
    assert error[:, 0].tolist() == [1, 1.75, 3.5, 7.5]


def test_environments_do_not_mix():
    both = np.concatenate([REWARDS, 2 * REWARDS], axis=1)
    zeros = np.zeros_like(both)
    ends = np.concatenate([NONE, flags(0, 1, 0, 0)], axis=1)
    found = generalized_advantages(both, zeros, zeros, ends, np.zeros_like(ends), 0.5, 1.0)
    assert found.tolist() == [[4, 4], [6, 4], [8, 16], [8, 16]]


def test_lambda_returns_by_hand():
    following = column(1, 1.5, 2, 3)
    # From behind: 8 + 0.5 * 3; 4 + 0.5 (0.5 * 2 + 0.5 * 9.5); ...
    last = 9.5
    third = 4 + 0.5 * (1 + 0.5 * last)
    second = 2 + 0.5 * (0.75 + 0.5 * third)
    first = 1 + 0.5 * (0.5 + 0.5 * second)
    found = lambda_returns(REWARDS, following, NONE, NONE, 0.5, 0.5)
    assert found[:, 0].tolist() == pytest.approx([first, second, third, last])


@pytest.mark.parametrize("trace", [0.0, 0.3, 1.0])
def test_lambda_returns_are_advantages_plus_values(trace):
    rng = np.random.default_rng(0)
    shape = (30, 4)
    rewards, values = rng.normal(size=(2, *shape)).astype(np.float32)
    terminals = rng.random(shape) < 0.1
    timeouts = (rng.random(shape) < 0.1) & ~terminals
    following = np.concatenate([values[1:], rng.normal(size=(1, 4))]).astype(np.float32)
    following[timeouts] = 7.0
    advantages = generalized_advantages(rewards, values, following, terminals, timeouts, 0.9, trace)
    returns = lambda_returns(rewards, following, terminals, timeouts, 0.9, trace)
    np.testing.assert_allclose(advantages + values, returns, rtol=1e-4, atol=1e-4)
