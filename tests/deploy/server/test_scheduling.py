"""Requests that wait together are answered together, and fail alone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from imitate.deploy.server.session import Scheduler


def test_one_request_runs_in_its_own_thread():
    seen = []
    answer = Scheduler(lambda batch: [seen.append(threading.get_ident()) or b * 2 for b in batch])(
        3
    )
    assert (answer.reply, answer.together) == (6, 1)
    assert seen == [threading.get_ident()]


def test_those_who_wait_share_one_prediction():
    began, go = threading.Event(), threading.Event()
    sizes = []

    def predict(batch):
        sizes.append(len(batch))
        began.set()
        go.wait()
        return [10 * b for b in batch]

    scheduler = Scheduler(predict)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(scheduler, 0)
        assert began.wait()
        rest = [pool.submit(scheduler, k) for k in range(1, 9)]
        while scheduler.waiting < 8:
            time.sleep(0.001)
        go.set()
        assert first.result().reply == 0
        assert [f.result().reply for f in rest] == [10 * k for k in range(1, 9)]
    assert sizes == [1, 8]


def test_a_bad_request_fails_alone():
    def predict(batch):
        if "bad" in batch:
            raise ValueError("no")
        return [b.upper() for b in batch]

    scheduler, gate = Scheduler(predict), threading.Barrier(6)

    def ask(word):
        gate.wait()
        return scheduler(word).reply

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(ask, w) for w in ("a", "b", "bad", "c", "d", "e")]
        assert [f.result() for k, f in enumerate(futures) if k != 2] == ["A", "B", "C", "D", "E"]
        with pytest.raises(ValueError, match="no"):
            futures[2].result()
    assert scheduler("again").reply == "AGAIN"


def test_many_threads_each_get_their_own_reply():
    scheduler = Scheduler(lambda batch: [(time.sleep(0.0005), b)[1] for b in batch])
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda k: scheduler(k).reply, range(400))) == list(range(400))


def test_an_interrupt_frees_the_turn():
    calls = []

    def predict(batch):
        calls.append(batch)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return batch

    scheduler = Scheduler(predict)
    with pytest.raises(KeyboardInterrupt):
        scheduler(1)
    assert scheduler(2).reply == 2


def test_a_policy_that_answers_too_few_is_an_error():
    with pytest.raises(RuntimeError, match="1 requests got 0 replies"):
        Scheduler(lambda batch: [])(1)
