"""Chunks become one stream of actions, whenever they arrive."""

import numpy as np
import pytest

from imitate.errors import UserError
from imitate.policy.asynchronous import ChunkCounts, ChunkPlayer, DelayEstimate, Ticket


def chunk(first, count=6):
    """A chunk (count, 1) that rises by 1 a step."""
    return (first + np.arange(count, dtype=float))[:, None]


def taken(player, count):
    return [None if a is None else a.item() for a in (player.next() for _ in range(count))]


def test_the_first_chunk_is_executed_from_its_first_action_however_late_it_is():
    player = ChunkPlayer("replace")
    ticket = player.request()
    assert taken(player, 3) == [None, None, None]  # nothing was executed meanwhile
    assert player.accept(chunk(0), ticket)
    assert taken(player, 7) == [0, 1, 2, 3, 4, 5, None]
    assert player.counts.empty == 4


@pytest.mark.parametrize(
    ("first", "before", "during", "second", "after", "outdated"),
    [
        (6, 2, [2, 3, 4], 6, [103, 104], 0),  # its first three actions are over
        (2, 0, [0, 1, None, None, None], 6, [102], 0),  # five steps, two actions
        (8, 0, [0, 1, 2, 3], 4, [4], 1),  # it is over
    ],
)
def test_actions_that_were_executed_during_the_prediction_are_dropped(
    first, before, during, second, after, outdated
):
    player = ChunkPlayer("replace")
    player.accept(chunk(0, first), player.request())
    taken(player, before)
    ticket = player.request()
    assert taken(player, len(during)) == during
    assert player.accept(chunk(100, second), ticket) == (not outdated)
    assert player.counts.outdated == outdated
    assert taken(player, len(after)) == after


def test_a_late_chunk_does_not_replace_a_newer_one():
    player = ChunkPlayer("replace")
    old, new = player.request(), player.request()
    assert player.accept(chunk(100), new) and not player.accept(chunk(0), old)
    assert not player.accept(chunk(0), new)  # nor the same one twice
    assert player.counts.older == 2
    assert taken(player, 1) == [100]


def test_after_clear_an_earlier_request_is_void():
    player = ChunkPlayer("replace")
    ticket = player.request()
    player.clear()
    assert not player.accept(chunk(0), ticket) and player.accept(chunk(5), player.request())
    assert taken(player, 1) == [5]


@pytest.mark.parametrize(
    ("join", "steps", "old", "played", "new", "wanted"),
    [
        # Weights 1/4, 2/4, 3/4, then the new chunk alone.
        ("blend", 3, [0.0] * 6, 0, [1.0] * 6, [0.25, 0.5, 0.75, 1.0, 1.0]),
        ("blend", 10, [0.0], 0, [1.0] * 4, [0.5, 1.0, 1.0]),  # it ends where the old plan ends
        # The jump of -4 is left by 3/4, 2/4, 1/4.
        ("fade", 3, [0.0, 9.0, 9.0], 0, [4.0, 5.0, 6.0, 7.0, 8.0], [1.0, 3.0, 5.0, 7.0, 8.0]),
        ("fade", 1, [0.0], 1, [2.0, 4.0, 6.0], [1.0, 4.0]),  # from the last action: no plan is left
    ],
)
def test_chunks_are_joined_as_worked_out_by_hand(join, steps, old, played, new, wanted):
    player = ChunkPlayer(join, steps=steps)
    player.accept(np.array(old)[:, None], player.request())
    taken(player, played)
    given = np.array(new)[:, None]
    player.accept(given, player.request())
    np.testing.assert_allclose(taken(player, len(wanted)), wanted)
    assert given[:, 0].tolist() == new  # not changed


def test_a_join_takes_four_steps_unless_more_are_given():
    player = ChunkPlayer()
    assert player.planned == 0 and player.request() == Ticket(1, 0)
    for value in (0.0, 10.0):
        assert player.accept(np.full((6, 1), value), player.request())
    assert taken(player, 2) == [2.0, 4.0] and player.request() == Ticket(4, 2)
    assert player.counts == ChunkCounts(accepted=2)
    player.clear()
    assert player.request() == Ticket(5, 0) and player.counts == ChunkCounts(accepted=2)
    assert taken(player, 1) == [None]


def test_after_clear_nothing_is_faded_from_the_last_action():
    player = ChunkPlayer("fade")
    player.accept(chunk(0), player.request())
    assert taken(player, 1) == [0]
    player.clear()
    player.accept(chunk(50), player.request())
    assert taken(player, 2) == [50, 51]


def test_the_rest_of_a_plan_is_a_copy():
    player = ChunkPlayer()
    assert player.remaining() is None
    player.accept(chunk(0, 3), player.request())
    taken(player, 1)
    rest = player.remaining()
    rest[:] = 9.0
    assert taken(player, 3) == [1, 2, None]
    assert player.remaining() is None and player.planned == 0


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((0, 2)), np.full((2, 2), np.nan)])
def test_what_is_no_chunk_is_refused(bad):
    player = ChunkPlayer()
    with pytest.raises(UserError, match="chunk"):
        player.accept(bad, player.request())


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="unknown join of chunks 'blent'.*blend"):
        ChunkPlayer("blent")
    with pytest.raises(UserError, match="at least 1"):
        ChunkPlayer("blend", 0)


def test_the_delay_is_a_high_quantile_of_the_latest_predictions():
    delay = DelayEstimate(period_s=0.05, window=4, warm_up=1)
    assert delay.steps == 0
    delay.add(10.0)  # the warm-up
    assert delay.steps == 0
    for seconds in (0.06, 0.10, 0.20):
        delay.add(seconds)
    assert delay.steps == 4
    for _ in range(4):
        delay.add(0.04)
    assert delay.steps == 1  # the slow ones are forgotten


def test_the_delay_is_the_largest_but_one_of_twenty_predictions_after_the_first():
    delay = DelayEstimate(1.0)
    delay.add(50.0)
    assert delay.steps == 0
    delay.add(100.0)
    assert delay.steps == 100
    for seconds in range(1, 21):
        delay.add(seconds)
    assert delay.steps == 19


@pytest.mark.parametrize(("seconds", "steps"), [(3.0 + 1e-12, 3), (3.0 + 1e-7, 4), (0.5, 1)])
def test_a_part_of_a_step_counts_as_one_unless_it_is_a_rounding_error(seconds, steps):
    delay = DelayEstimate(1.0, warm_up=0)
    delay.add(seconds)
    assert delay.steps == steps
