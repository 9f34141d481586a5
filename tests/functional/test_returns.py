"""Returns-to-go by hand."""

import numpy as np
import pytest

from imitate.functional.returns import returns_to_go


def compute(rewards, terminals, lengths, discount, **options):
    ends = np.cumsum(lengths)
    starts = ends - lengths
    as_array = np.array(rewards, dtype=np.float32), np.array(terminals, dtype=np.float32)
    return returns_to_go(*as_array, starts, ends, discount, **options).tolist()


def test_two_episodes_of_different_length_do_not_mix():
    # 4; 2 + 4/2; 1 + 4/2 | 10; 8 + 10/2.
    values = compute([1, 2, 4, 8, 10], [0, 0, 1, 0, 1], [3, 2], 0.5)
    assert values == [3.0, 4.0, 4.0, 13.0, 10.0]


def test_without_discount_it_is_the_sum():
    assert compute([1, 2, 3], [0, 0, 0], [3], 1.0) == [6.0, 5.0, 3.0]


def test_what_comes_after_a_terminal_does_not_count():
    assert compute([1, 2, 4], [0, 1, 0], [3], 0.5) == [2.0, 2.0, 4.0]


def test_a_truncated_episode_may_go_on_with_its_last_reward():
    # -1 for ever at discount 0.9: -10, whatever the step. The second one ended: -1.9, -1.
    values = compute([-1, -1, -1, -1], [0, 0, 0, 1], [2, 2], 0.9, continue_truncated=True)
    assert values == pytest.approx([-10.0, -10.0, -1.9, -1.0])


def test_a_solved_task_that_is_truncated_goes_on_with_nothing():
    values = compute([-1, 0], [0, 0], [2], 0.9, continue_truncated=True)
    assert values == [-1.0, 0.0]


def test_no_episodes():
    assert compute([], [], [], 0.9) == []
