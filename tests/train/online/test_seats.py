"""Seats and what their workers send, with a stand-in for the worker."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate.crew.backend import Answer, Limits, Lost, Unprepared
from imitate.errors import EnvError, UserError
from imitate.system.processes import MAKE
from imitate.train.online import seats
from imitate.train.online.seats import (
    Blueprint,
    CollectorWork,
    Seat,
    StepRequest,
    collector_limits,
    merged_parts,
)
from imitate.train.online.steps import Collected, Step

from .worlds import Line, make_algo

REQUEST = StepRequest(4, False, 0.5, weights=None)


class Worker:
    """Member and back end in one: what it was given, and the answers to give."""

    def __init__(self):
        self.given, self.answers, self.stopped, self.starts = [], [], [], 0

    def start(self, prepare):
        self.starts += 1
        return self

    def pack(self, item):
        return ("packed", item)

    def give(self, item):
        self.given.append(item)

    def answer(self):
        return self.answers.pop(0)

    def stop(self, patience_s=0.0):
        self.stopped.append(patience_s)


@pytest.fixture
def seat():
    worker = Worker()
    return Seat(SimpleNamespace(lanes=np.array([2, 3])), worker), worker


def test_a_worker_makes_its_environments_before_it_is_asked_for_steps(seat):
    seat, worker = seat
    collected = vars(Collected([], np.array([2, 3]), [], 7, (), np.array([], np.int64)))
    worker.answers = ["started", Answer(None), Answer((collected, {"begun": [4, 5]}))]
    assert worker.given == [("packed", None)] and not seat.is_ready
    assert seat.receive() is None and not seat.is_ready
    assert seat.receive() is None and seat.is_ready and seat.is_idle
    seat.send(REQUEST, "as packed")
    assert worker.given[-1] == "as packed" and not seat.is_idle
    seat.stop()
    assert seat.receive().version == 7 and seat.is_idle
    seat.stop()
    assert worker.stopped == [0.0, 2.0]  # who has work to do is not waited for


def test_another_worker_goes_on_from_the_state_with_other_seeds(seat):
    seat, worker = seat
    seat.start_anew()
    assert (seat.losses, seat.is_first, worker.starts) == (1, False, 2)
    seat.send(REQUEST, "no state yet")
    seat.restore({"begun": [4, 5], "rng": 1})
    seat.start_anew()
    for packed in ("first", "second"):
        seat.send(REQUEST, packed)
    state = {"begun": [1_000_004, 1_000_005], "rng": 1}
    assert worker.given[-2:] == [("packed", replace(REQUEST, state=state)), "second"]
    assert "no state yet" in worker.given
    seat.restore(None)
    seat.send(REQUEST, "third")
    assert worker.given[-1] == "third"


def test_a_lost_worker_is_told_from_environments_that_fail(seat):
    seat, worker = seat
    died, own = Lost("killed", died=True), UserError("of its own")
    worker.answers = [died, Lost("boom"), Lost("x", error=own), Unprepared(own)]
    assert seat.receive() is died
    with pytest.raises(EnvError, match=r"environments \[2, 3\] failed: boom"):
        seat.receive()
    for _ in range(2):
        with pytest.raises(UserError, match="of its own"):
            seat.receive()


def test_limits_of_a_worker():
    assert collector_limits(10.0, 300.0) == Limits(60.0, 10.0, start_s=300.0)


def test_environments_are_made_within_the_time_for_making(monkeypatch):
    made, told = (
        Blueprint(Line, np.array([0, 1]), {"seed": 3, "horizon": 5}, (), -1, 1, 0, 0).env_group(),
        [],
    )
    assert made.lanes.tolist() == [0, 1]
    made.close()
    collector = SimpleNamespace(close=lambda: told.append("closed"))
    blueprint = SimpleNamespace(
        seed=5,
        acting_algo=lambda: told.append("algo"),
        collector=lambda algo: told.append("made") or collector,
    )
    with torch.random.fork_rng(devices=[]):
        CollectorWork(blueprint, told.append).close()
    assert told == [MAKE, "algo", "made", "", "closed"]


def test_steps_of_several_workers_lie_in_the_order_of_their_lanes():
    def part(lane, version):
        row = np.full((1, 2), float(lane))
        flags = np.array([False])
        step = Step(
            *({"x": row}, row + 10, row[0, :1], flags, ~flags, {"x": row + 1}),
            extras={"log_prob": row[:, 0]},
            intervened=np.array([True]) if lane else None,
        )
        return Collected([step], np.array([lane]), [lane], version, (f"from {lane}",), None)

    parts = [part(1, 4), part(0, 6)]
    whole = merged_parts(parts, [3], ["first"])
    (step,) = whole.steps
    assert [step.obs["x"][:, 0].tolist(), step.next_obs["x"][:, 1].tolist()] == [[0, 1], [1, 2]]
    assert [step.actions[:, 0].tolist(), step.rewards.tolist()] == [[10, 11], [0, 1]]
    assert (step.extras["log_prob"].tolist(), step.intervened.tolist()) == ([0, 1], [False, True])
    assert (step.lost, step.signals, step.timeouts.tolist()) == (None, None, [True, True])
    assert (whole.lanes.tolist(), whole.episodes, whole.version) == ([0, 1], [0, 1], 4)
    assert (whole.messages, whole.lost_lanes.tolist()) == (("first", "from 0", "from 1"), [3])
    assert merged_parts(parts[:1], [], []).steps == parts[0].steps


def test_limits_of_weights_and_patience():
    assert (seats.MOST_IN_USE, seats.PATIENCE_S, seats.WINDOW_S, seats.MUCH) == (2, 2.0, 60.0, 0.5)


def test_weights_are_published_at_once_unless_a_time_is_set(virtual_time):
    algo = make_algo()
    often, rarely = seats.Publisher(algo), seats.Publisher(algo, every_s=2.0)
    virtual_time.sleep(2.0)
    assert rarely.version is None and often.version is None
    found = []
    for version in range(5):
        found.append((often.newest(version, ()).version, rarely.newest(version, ()).version))
        virtual_time.sleep(1.0)
    assert found == [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)]
    assert often.newest(4, ()) is often.newest(4, ())
