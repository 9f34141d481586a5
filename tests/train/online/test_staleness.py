"""The bound on the age of weights: how many updates it allows, and when it is worth a word."""

import pytest

from imitate.train.online.seats import StalenessBound


def test_updates_are_allowed_until_the_oldest_weights_are_as_old_as_the_bound():
    bound = StalenessBound(10)
    assert (bound.allowed(25, oldest=20), bound.allowed(30, oldest=20)) == (5, 0)
    assert bound.allowed(33, oldest=20) == 0
    assert StalenessBound(None).allowed(33, oldest=0) is None


def test_the_bound_is_used_up_while_old_weights_are_out():
    bound = StalenessBound(10)
    assert not bound.is_used_up(29, [20, 25]) and bound.is_used_up(30, [20, 25])
    assert not bound.is_used_up(30, []) and not StalenessBound(None).is_used_up(30, [0])
    assert not StalenessBound(0).is_used_up(0, [0])  # before the first update


def test_the_oldest_weights_seen_are_remembered():
    bound = StalenessBound(10)
    bound.record(4, 4)
    assert bound.seen == 0
    for version, behind in ((5, 3), (9, 2), (12, 12)):
        bound.record(version, behind)
    assert bound.seen == 7


def rounds(bound, time, number, *, updates, waits_s, learns_s):
    """So many rounds of waiting and learning; return the advice of each."""
    told, version = [], 100
    for _ in range(number):
        bound.allowed(version, oldest=version)  # as many as the bound says
        version += updates
        time.sleep(learns_s)
        with bound.waiting(version):
            time.sleep(waits_s)
        told.append(bound.advice())
    return told


def test_waiting_for_the_bound_most_of_the_time_is_told_once(virtual_time):
    bound = StalenessBound(10)
    told = rounds(bound, virtual_time, 40, updates=10, waits_s=3.0, learns_s=1.0)
    words = [text for text in told if text]
    assert len(words) == 1
    assert "max_staleness 10" in words[0] and "waited 75% of the last 60 s" in words[0]


@pytest.mark.parametrize(
    ("updates", "waits_s", "learns_s"),
    [
        (9, 3.0, 1.0),  # one more was allowed: it waits for steps to learn from, not for the bound
        (10, 1.0, 3.0),  # a quarter of the time
        (10, 2.0, 2.0),  # half of it
    ],
)
def test_other_waiting_is_not_told(virtual_time, updates, waits_s, learns_s):
    bound = StalenessBound(10)
    told = rounds(bound, virtual_time, 40, updates=updates, waits_s=waits_s, learns_s=learns_s)
    assert not any(told)


def test_waiting_before_a_window_is_not_counted_in_the_next(virtual_time):
    bound = StalenessBound(10)
    assert not any(rounds(bound, virtual_time, 15, updates=10, waits_s=1.9, learns_s=2.1))
    assert not any(rounds(bound, virtual_time, 15, updates=10, waits_s=1.98, learns_s=2.02))


def test_waiting_before_the_first_update_is_not_counted(virtual_time):
    bound = StalenessBound(0)
    for _ in range(40):
        with bound.waiting(0):
            virtual_time.sleep(2.0)
        assert bound.advice() is None
    assert StalenessBound(None).advice() is None


def test_a_window_is_a_minute(virtual_time):
    bound = StalenessBound(10)
    told = rounds(bound, virtual_time, 20, updates=10, waits_s=2.5, learns_s=0.5)
    assert [number for number, text in enumerate(told) if text] == [19]  # after 20 * 3 s
