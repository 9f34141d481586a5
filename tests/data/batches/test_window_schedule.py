"""The order of shards, windows and batches."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imitate.data import ShuffledBatches
from imitate.data.batches.window_schedule import WindowSchedule


def first_batches(schedule, count, start=0):
    """The first so many batches, as (shards, samples)."""
    flat = ((turn.shards, batch.tolist()) for turn in schedule.turns(start) for batch in turn)
    return list(itertools.islice(flat, count))


def test_a_pass_visits_each_sample_of_each_shard_once():
    samples = [7, 5, 9, 4, 6]
    schedule = WindowSchedule(samples, window=2, batch_size=4, seed=3)

    for number in range(3):
        windows = schedule.windows(number)
        assert sorted(shard for window in windows for shard in window) == [0, 1, 2, 3, 4]
        assert [len(window) for window in windows] == [2, 2, 1]
    turns = list(itertools.islice(schedule.turns(), 3))
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
    expected = [((0, 1, 2), batch.tolist()) for batch in itertools.islice(whole, 20)]
    assert first_batches(schedule, 20) == expected


def test_parts_of_processes_make_up_the_batch():
    samples = [8, 8, 8]
    whole = first_batches(WindowSchedule(samples, 2, 4, 5, drop_last=True), 9)
    halves = [
        first_batches(WindowSchedule(samples, 2, 4, 5, drop_last=True, part=part), 9)
        for part in (slice(0, 2), slice(2, 4))
    ]
    for (shards, batch), (_, first), (_, second) in zip(whole, *halves, strict=True):
        assert np.concatenate([first, second]).tolist() == batch
        assert shards
