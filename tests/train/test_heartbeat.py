"""A rank that works is alive, one that is silent ends the others."""

import re
from pathlib import Path

import pytest

from imitate.train.ranks import Heartbeat
from tests.rank_processes import ended, started_ranks

PROGRAM = Path(__file__).parent / "rank_programs" / "silence.py"

SILENCE_S = 40.0
LATEST_S = SILENCE_S + 5.0 + 0.5
"""Last beats are read up to 5 s later, and looked at each 0.5 s."""


class Store:
    """The store of a rendezvous as ranks see it; those that are cut off do not reach it."""

    def __init__(self):
        self.values, self.cut_off = {}, set()

    def set(self, key, value):
        if key in self.cut_off:
            raise RuntimeError("connection refused")
        self.values[key] = value.encode()

    def multi_get(self, keys):
        return [self.values[key] for key in keys]


@pytest.fixture
def start(virtual_time):
    """Starts the heartbeats of ranks; returns them and [(time, rank, line)] of those that end their process."""
    made = []

    def start(store, world):
        ended = []

        def note(rank):
            return lambda line: ended.append((virtual_time.now_s, rank, line))

        made.extend(
            Heartbeat(store, rank, world, silence_s=SILENCE_S, end=note(rank))
            for rank in range(world)
        )
        for heartbeat in made:
            heartbeat.start()
        return made, ended

    yield start
    for heartbeat in made:
        heartbeat.close()


def test_a_rank_without_signs_of_life_is_named_by_the_others(start, virtual_time):
    store = Store()
    _, ended = start(store, 3)
    virtual_time.sleep(3 * SILENCE_S)
    assert ended == [], "all are alive"
    store.cut_off.add("alive/1")
    began = virtual_time.now_s
    virtual_time.sleep(2 * SILENCE_S)
    words = {rank: line for _, rank, line in ended}
    assert SILENCE_S - 5 <= ended[0][0] - began <= LATEST_S
    assert re.match(r"rank 0: no heartbeat of rank 1 on \S+ for 40 s", words[0])
    assert re.match(r"rank 2: no heartbeat of rank 1 on \S+ for 40 s", words[2])
    assert "--resume" in words[0]


def test_a_rank_that_has_left_is_not_missed(start, virtual_time):
    (_, second), ended = start(Store(), 2)
    virtual_time.sleep(6)
    second.close()
    virtual_time.sleep(3 * SILENCE_S)
    assert ended == []


def test_a_store_that_is_gone_counts_as_silence_of_all(start, virtual_time):
    store = Store()
    _, ended = start(store, 3)
    store.cut_off = {"alive/0", "alive/1", "alive/2"}
    began = virtual_time.now_s
    virtual_time.sleep(2 * SILENCE_S)
    assert {rank for _, rank, _ in ended} == {0, 1, 2}
    assert all(0 <= when - began - SILENCE_S <= 1.0 for when, _, _ in ended)
    assert "no heartbeat of rank 1, 2 for" in dict((rank, line) for _, rank, line in ended)[0]


def test_a_process_that_was_stopped_itself_first_listens_again(start, virtual_time):
    _, ended = start(Store(), 2)
    virtual_time.sleep(7)
    virtual_time.now_s += 1000.0  # all threads of it stood still
    virtual_time.sleep(SILENCE_S)
    assert ended == []


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        pytest.param("stopped", "no heartbeat of rank 1", marks=pytest.mark.nightly),
        ("killed", "another process of this training is gone"),
    ],
)
def test_the_others_end_when_a_rank_is_stopped_or_killed(fate, words, capfd):
    with started_ranks(PROGRAM, fate) as (first, _):
        assert ended([first]) == [1]
    out, err = capfd.readouterr()
    assert "rank 0 goes on" in out, "rank 1 waited for rank 0, which was busy"
    assert words in err
    assert "Traceback" not in err
