"""Batches of shuffled samples."""

from itertools import islice

import numpy as np
import pytest

from imitate.data.batches.sampling import ShuffledBatches, WindowSchedule


def first(batches, count):
    return [batch.tolist() for batch in islice(batches, count)]


@pytest.mark.parametrize(
    ("samples", "size", "drop_last", "sizes"),
    [
        (7, 3, False, [3, 3, 1]),
        (7, 3, True, [3, 3]),
        (6, 3, False, [3, 3]),
        (6, 3, True, [3, 3]),
        (2, 3, False, [2]),
        (2, 3, True, [2]),  # a small dataset is one batch
        (1, 1, True, [1]),
    ],
)
def test_a_pass(samples, size, drop_last, sizes):
    made = ShuffledBatches(samples, size, seed=0, drop_last=drop_last)
    assert made.batches_per_pass == len(sizes)
    batches = first(made, 2 * len(sizes))
    assert [len(batch) for batch in batches] == 2 * sizes
    one = sum(batches[: len(sizes)], [])
    assert len(set(one)) == len(one) and set(one) <= set(range(samples))
    if samples > 3:
        assert one != sum(batches[len(sizes) :], [])


def test_the_kth_batch_depends_on_the_seed_alone():
    whole = first(ShuffledBatches(7, 3, 1), 9)
    for start in (0, 1, 3, 5):
        assert first(ShuffledBatches(7, 3, 1, start_batch=start), 4) == whole[start : start + 4]
    assert first(ShuffledBatches(7, 3, 2), 9) != whole


def test_orders_by_seed_and_number_of_the_pass():
    """A resumed training depends on them, so that they stay the same."""
    for number in range(2):
        order = np.random.default_rng([7, number]).permutation(5)
        assert first(ShuffledBatches(5, 5, 7, start_batch=number), 1) == [order.tolist()]
        order = np.random.default_rng([7, number, 1]).permutation(3)
        windows = WindowSchedule([4, 5, 6], 2, 3, 7).windows(number)
        assert windows == [tuple(sorted(order[:2].tolist())), (int(order[2]),)]
    drawn = np.random.default_rng([7, 0]).random(3) * 6
    weighted = ShuffledBatches(3, 3, 7, weights=[1, 2, 3])
    assert first(weighted, 1) == [np.searchsorted([1, 3, 6], drawn, "right").tolist()]


def test_turns_of_windows_by_default():
    turns = list(islice(WindowSchedule([4, 4], 1, 3, 0).turns(), 4))
    assert [turn.batches for turn in turns] == [2, 2, 2, 2]
    assert [[len(batch) for batch in turn] for turn in turns] == [[3, 1]] * 4
    assert {turn.shards for turn in turns[:2]} == {(0,), (1,)}
    later = next(WindowSchedule([4, 4], 1, 3, 0).turns(3))
    assert (later.shards, later.batches) == (turns[1].shards, 1)


def test_weights_may_be_small_and_zero_but_for_the_last():
    made = ShuffledBatches(3, 3, 0, weights=[0.0, 0.0, 0.5])
    assert first(made, 1) == [[2, 2, 2]]


def test_weights_draw_with_replacement():
    made = ShuffledBatches(4, 4, 0, weights=[0.0, 1.0, 0.0, 3.0])
    drawn = np.concatenate(first(made, 1000))
    assert set(drawn) == {1, 3}
    assert np.mean(drawn == 3) == pytest.approx(0.75, abs=0.03)


def test_a_part_of_each_batch():
    whole = first(ShuffledBatches(8, 4, 0), 3)
    half = first(ShuffledBatches(8, 4, 0, part=slice(1, 3)), 3)
    assert half == [batch[1:3] for batch in whole]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"num_samples": 0}, "must be at least 1, got 0 and 2"),
        ({"batch_size": 0}, "got 3 and 0"),
        ({"weights": [1.0]}, "expected 3 weights with a positive sum"),
        ({"weights": [0.0] * 3}, "expected 3 weights with a positive sum"),
    ],
)
def test_refused(numbers, words):
    with pytest.raises(ValueError, match=words):
        ShuffledBatches(**{"num_samples": 3, "batch_size": 2, "seed": 0, **numbers})


@pytest.mark.parametrize("start", range(9))
def test_turns_continue_with_any_batch(start):
    """Passes of three shards, two at a time: 3 batches of two shards, and 1 or 2 of one."""
    schedule = WindowSchedule([4, 5, 3], 2, 3, 5)

    def batches(turns, count):
        found = []
        for turn in turns:
            for rows in islice(iter(turn), turn.batches):
                found.append((turn.shards, rows.tolist()))
                if len(found) == count:
                    return found
        return found

    whole = batches(schedule.turns(), 14)
    assert batches(schedule.turns(start), 14 - start) == whole[start:]
