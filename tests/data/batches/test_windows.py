"""Windows of steps, and the order in which batches visit them: shuffled, or shard after shard."""

import itertools
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imitate.data import ShuffledBatches
from imitate.data.batches.sampling import WindowSchedule
from imitate.data.batches.windows import Windows

TWO = (np.array([0, 3]), np.array([3, 5]))
"""Starts and ends of two demos of 3 and 2 steps."""


def naive(lengths, frame_stack, seq_length, pad_front, pad_back):
    """Every window as a list of (demo, step, real), one Python step at a time."""
    windows = []
    for demo, length in enumerate(lengths):
        for step in range(length):
            window = [
                (demo, min(max(at, 0), length - 1), 0 <= at < length)
                for at in range(step - frame_stack + 1, step + seq_length)
            ]
            reaches_before = step - frame_stack + 1 < 0
            reaches_beyond = step + seq_length > length
            if (pad_front or not reaches_before) and (pad_back or not reaches_beyond):
                windows.append((step, window))
    return windows


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    frame_stack=st.integers(1, 5),
    seq_length=st.integers(1, 6),
    pad_front=st.booleans(),
    pad_back=st.booleans(),
)
def test_windows_equal_a_naive_loop(lengths, frame_stack, seq_length, pad_front, pad_back):
    ends = np.cumsum(lengths)
    starts = ends - lengths
    windows = Windows(starts, ends, frame_stack, seq_length, pad_front, pad_back)
    wanted = naive(lengths, frame_stack, seq_length, pad_front, pad_back)
    assert len(windows) == len(wanted)
    assert windows.length == frame_stack - 1 + seq_length
    if not wanted:
        return
    got = windows.rows(np.arange(len(wanted)))
    demo, row = windows.steps(np.arange(len(wanted)))
    for i, (step, window) in enumerate(wanted):
        assert row[i] - starts[demo[i]] == step
        assert [
            (got.demo[i], r - starts[got.demo[i]], real)
            for r, real in zip(got.rows[i], got.real[i], strict=True)
        ] == window
        assert got.last[i, 0] == ends[got.demo[i]] - 1


def test_two_demos_by_hand():
    got = Windows(*TWO, frame_stack=2, seq_length=3).rows(np.array([0, 2, 3]))
    assert got.rows.tolist() == [[0, 0, 1, 2], [1, 2, 2, 2], [3, 3, 4, 4]]
    assert got.real.astype(int).tolist() == [[0, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]]
    assert got.demo.tolist() == [0, 0, 1]
    # one step where nothing else is asked
    windows = Windows(*TWO)
    assert windows.length == 1
    got = windows.rows(np.arange(5))
    assert got.rows.tolist() == [[0], [1], [2], [3], [4]] and got.real.all()
    # windows that need padding are dropped
    windows = Windows(*TWO, 2, 2, pad_frame_stack=False, pad_seq_length=False)
    assert windows.rows(np.arange(len(windows))).rows.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("index", [[-1], [0, 5], [2, -7]])
def test_a_window_that_is_not_there_is_an_error(index):
    with pytest.raises(IndexError, match="but there are 5"):
        Windows(*TWO).rows(np.array(index))


# ---- shuffled batches ----------------------------------------------------------------------------


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
    "arguments", [(0, 1, 0), (1, 0, 0), (3, 1, 0, 0, False, [1.0]), (2, 1, 0, 0, False, [0.0, 0.0])]
)
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match="at least 1|expected"):
        ShuffledBatches(*arguments)


# ---- windows of shards ---------------------------------------------------------------------------


def first_batches(schedule, count, start=0):
    """The first so many batches, as (shards, samples)."""
    flat = ((turn.shards, batch.tolist()) for turn in schedule.turns(start) for batch in turn)
    return list(islice(flat, count))


def test_a_pass_visits_each_sample_of_each_shard_once():
    samples = [7, 5, 9, 4, 6]
    schedule = WindowSchedule(samples, window=2, batch_size=4, seed=3)
    for number in range(3):
        windows = schedule.windows(number)
        assert sorted(shard for window in windows for shard in window) == [0, 1, 2, 3, 4]
        assert [len(window) for window in windows] == [2, 2, 1]
    turns = list(islice(schedule.turns(), 3))
    for turn, window in zip(turns, schedule.windows(0), strict=True):
        assert turn.shards == window
        visited = [int(sample) for batch in turn for sample in batch]
        assert sorted(visited) == list(range(sum(samples[shard] for shard in window)))


def test_passes_and_seeds_have_different_orders():
    schedules = [WindowSchedule([5] * 8, 2, 4, seed) for seed in (0, 1)]
    orders = [schedule.windows(number) for schedule in schedules for number in (0, 1)]
    assert all(a != b for a, b in itertools.combinations(orders, 2))


@given(
    samples=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    window=st.integers(1, 7),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    start=st.integers(0, 60),
)
def test_the_kth_batch_does_not_depend_on_the_start(samples, window, batch_size, drop_last, start):
    schedule = WindowSchedule(samples, window, batch_size, seed=1, drop_last=drop_last)
    assert first_batches(schedule, 10, start) == first_batches(schedule, start + 10)[start:]


@pytest.mark.parametrize("drop_last", [False, True])
def test_one_window_gives_the_batches_of_the_whole(drop_last):
    schedule = WindowSchedule([7, 5, 9], window=3, batch_size=4, seed=2, drop_last=drop_last)
    whole = ShuffledBatches(21, 4, 2, drop_last=drop_last)
    assert first_batches(schedule, 20) == [((0, 1, 2), batch) for batch in first(whole, 20)]


def test_parts_of_processes_make_up_the_batch():
    samples = [8, 8, 8]
    whole = first_batches(WindowSchedule(samples, 2, 4, 5, drop_last=True), 9)
    halves = [
        first_batches(WindowSchedule(samples, 2, 4, 5, drop_last=True, part=part), 9)
        for part in (slice(0, 2), slice(2, 4))
    ]
    for (shards, batch), (_, one), (_, two) in zip(whole, *halves, strict=True):
        assert np.concatenate([one, two]).tolist() == batch
        assert shards
