"""A rank that works is alive, one that is silent ends the others."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore

from imitate.train.heartbeat import Heartbeat

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "rank_programs" / "silence.py"

pytestmark = pytest.mark.alone  # a busy machine is as silent as a lost one


@pytest.fixture
def store():
    return PrefixStore("test", TCPStore("127.0.0.1", 0, is_master=True))


def heartbeats(store, world, lines, silence_s=1.0):
    made = [
        Heartbeat(
            store,
            rank,
            world,
            silence_s=silence_s,
            end=lambda line, at=rank: lines[at].append(line),
        )
        for rank in range(world)
    ]
    for heartbeat in made:
        heartbeat.start()
    return made


def test_a_rank_without_signs_of_life_is_named_by_the_others(store):
    lines = {rank: [] for rank in range(3)}
    all_three = heartbeats(store, 3, lines)
    time.sleep(2.5)
    assert lines == {0: [], 1: [], 2: []}, "all are alive"
    all_three[1]._stop.set()  # its threads end without a farewell
    deadline = time.monotonic() + 20
    while not (lines[0] and lines[2]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [len(lines[rank]) for rank in range(3)] == [1, 0, 1]
    assert re.match(r"rank 0: no sign of life of rank 1 on \S+ for 1 s", lines[0][0])
    assert "--resume" in lines[0][0]
    for heartbeat in all_three:
        heartbeat.close()


def test_a_rank_that_has_left_is_not_missed(store):
    lines = {rank: [] for rank in range(2)}
    first, second = heartbeats(store, 2, lines)
    time.sleep(0.6)
    second.close()
    time.sleep(3)
    assert lines == {0: [], 1: []}
    first.close()


def test_a_store_that_is_gone_counts_as_silence_of_all():
    class Gone:
        def set(self, key, value):
            if not value.startswith("0 "):
                raise RuntimeError("connection refused")

    lines = []
    heartbeat = Heartbeat(Gone(), 0, 3, silence_s=1.0, end=lines.append)
    heartbeat.start()
    deadline = time.monotonic() + 20
    while not lines and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "no sign of life of rank 1, 2 for" in lines[0]
    heartbeat.close()


def test_a_process_that_was_stopped_itself_first_listens_again(store):
    lines = {rank: [] for rank in range(2)}
    first, second = heartbeats(store, 2, lines, silence_s=2.0)
    now = time.monotonic
    leap = [0.0]
    import imitate.train.heartbeat as module

    class Clock:
        @staticmethod
        def monotonic():
            return now() + leap[0]

    original, module.time = module.time, Clock
    try:
        time.sleep(1)
        leap[0] = 1000.0
        time.sleep(1.4)
        assert lines == {0: [], 1: []}
    finally:
        module.time = original
        for heartbeat in (first, second):
            heartbeat.close()


@pytest.mark.parametrize(
    ("fate", "words", "within_s"),
    [
        ("stopped", "no sign of life of rank 1", 12.0),
        ("killed", "another process of this training is gone", 4.0),
    ],
)
def test_the_others_end_when_a_rank_is_stopped_or_killed(fate, words, within_s):
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    shared = {**os.environ, **address, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    first, second = (
        subprocess.Popen(
            [sys.executable, str(PROGRAM), fate],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    )
    try:
        out, err = first.communicate(timeout=120)
        ended = time.time()
    finally:
        second.kill()
        silent, _ = second.communicate()
    assert "rank 0 goes on" in out, "rank 1 waited for rank 0, which was busy"
    assert first.returncode == 1
    assert words in err
    assert "Traceback" not in err
    assert ended - float(silent.split("silent at ")[1]) < within_s


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
