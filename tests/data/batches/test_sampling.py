from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imitate.data import ShuffledBatches


def first(batches, count):
    return [batch.tolist() for batch in islice(batches, count)]


@given(
    num_samples=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    start=st.integers(0, 50),
    drop_last=st.booleans(),
)
def test_a_later_start_goes_on_exactly(num_samples, batch_size, seed, start, drop_last):
    whole = first(ShuffledBatches(num_samples, batch_size, seed, drop_last=drop_last), start + 5)
    late = first(ShuffledBatches(num_samples, batch_size, seed, start, drop_last), 5)
    assert late == whole[start:]


@given(num_samples=st.integers(1, 40), batch_size=st.integers(1, 12), seed=st.integers(0, 99))
def test_each_pass_visits_every_sample_once(num_samples, batch_size, seed):
    per_pass = -(-num_samples // batch_size)
    batches = first(ShuffledBatches(num_samples, batch_size, seed), 3 * per_pass)
    for number in range(3):
        visited = sum(batches[number * per_pass : (number + 1) * per_pass], [])
        assert sorted(visited) == list(range(num_samples))


def test_passes_and_seeds_differ():
    one = first(ShuffledBatches(50, 50, seed=1), 2)
    assert one[0] != one[1]
    assert first(ShuffledBatches(50, 50, seed=2), 1)[0] != one[0]
    assert first(ShuffledBatches(50, 50, seed=1), 2) == one


def test_drop_last_makes_batches_equal_in_size():
    batches = first(ShuffledBatches(10, 4, seed=0, drop_last=True), 4)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4]
    assert len(set(batches[0] + batches[1])) == 8
    assert [len(b) for b in first(ShuffledBatches(10, 4, seed=0), 4)] == [4, 4, 2, 4]
    assert [len(b) for b in first(ShuffledBatches(3, 4, seed=0, drop_last=True), 2)] == [3, 3]


def test_weights_are_relative_probabilities():
    weights = [0.0, 1.0, 3.0]
    drawn = np.concatenate(list(islice(ShuffledBatches(3, 3, seed=0, weights=weights), 4000)))
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    # 12,000 draws: the standard deviation of a share of 0.25 is 0.004.
    np.testing.assert_allclose(shares, [0.0, 0.25, 0.75], atol=0.016)


@pytest.mark.parametrize(
    "arguments",
    [(0, 1, 0), (1, 0, 0), (3, 1, 0, 0, False, [1.0]), (2, 1, 0, 0, False, [0.0, 0.0])],
)
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match="expected"):
        ShuffledBatches(*arguments)
