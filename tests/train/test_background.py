import threading
import time
from pathlib import Path

from imitate.train.background import BackgroundEvaluations, Request


def request(epoch):
    return Request(epoch, epoch * 10, Path(f"{epoch}.pth"))


def collect(evaluations):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        outcome = evaluations.collect(timeout_s=0.1)
        if outcome is not None:
            return outcome
    raise AssertionError("nothing ended")


def test_one_runs_one_waits_and_a_newer_one_takes_its_place():
    gate, done = threading.Semaphore(0), []

    def evaluate(request):
        gate.acquire()
        done.append(request.epoch)
        return ()

    evaluations = BackgroundEvaluations(evaluate)
    assert evaluations.collect() is None
    assert evaluations.request(request(1)) is None
    assert evaluations.request(request(2)) is None
    assert evaluations.request(request(3)).epoch == 2
    assert evaluations.busy_with == 1
    assert evaluations.pending == {1, 3}
    assert evaluations.collect() is None
    gate.release()
    assert collect(evaluations).request.epoch == 1
    gate.release()
    assert collect(evaluations).request.epoch == 3
    assert evaluations.pending == set()
    assert done == [1, 3]


def test_a_failure_is_an_outcome():
    def evaluate(request):
        raise ValueError("no such thing")

    evaluations = BackgroundEvaluations(evaluate)
    evaluations.request(request(1))
    outcome = collect(evaluations)
    assert outcome.error == "ValueError: no such thing"
    assert outcome.results == ()
