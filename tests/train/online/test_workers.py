"""Collectors whose environments live in workers: those that act there, and those that ask a policy worker."""

import functools
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate.crew.backend import Answer, Lost
from imitate.errors import EnvError
from imitate.train.online import workers as module
from imitate.train.online.central.collector import CentralCollector
from imitate.train.online.seats import collector_limits
from imitate.train.online.steps import Collected, Step
from imitate.train.online.workers import (
    ProcessCollector,
    acting_weights,
    load_acting_weights,
    merged_parts,
)
from tests.refusals import refused

from .given import Backend
from .worlds import Faulty, Line, blueprints, learner_of, make_algo


def test_weights_and_normalization_arrive():
    first, second = make_algo(), make_algo(seed=1)
    first.preprocess.set_obs_normalization("place", torch.tensor([3.0]), torch.tensor([2.0]))
    load_acting_weights(second, acting_weights(first))
    weights = (algo.nets["actor"].parameters() for algo in (first, second))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    assert second.preprocess.prepare_obs({"place": np.array([[7.0]])})["place"].item() == 2.0


def test_in_step_all_environments_are_there_and_episodes_go_on(collectors):
    collector = collectors(Line, Line)
    first, second = collector.collect(3), collector.collect(3)
    for collected in (first, second):
        assert sorted(collected.lanes.tolist()) == [0, 1] and collected.num_steps == 6
    assert np.array_equal(second.steps[0].obs["place"], first.steps[-1].next_obs["place"])
    assert [s.timeouts.tolist() for s in second.steps] == [[False] * 2, [True] * 2, [False] * 2]
    assert [e.length for e in second.episodes] == [5, 5]
    assert collector.updates_allowed() is None


CASES = {"kill": ProcessCollector, "hang": CentralCollector}
RARELY = [
    pytest.param("hang", ProcessCollector, marks=pytest.mark.nightly),
    pytest.param("kill", CentralCollector, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("how", "kind"), [*CASES.items(), *RARELY])
def test_a_worker_that_dies_or_hangs_is_replaced_and_no_half_episode_is_kept(
    collectors, kind, tmp_path, how
):
    faulty = functools.partial(Faulty, how, 3, str(tmp_path / "flag"))
    collector, learner = collectors(Line, faulty, kind=kind, timeout_s=8.0), learner_of()
    for _ in range(2):
        learner.take(collector.collect(1))
    assert len(learner.memory) == 4
    collected = collector.collect(1)
    learner.take(collected)
    assert collected.lost_lanes.tolist() == [1] and collected.lanes.tolist() == [0]
    assert ("exit code -9" if how == "kill" else "nothing for 8 s") in collected.messages[0]
    assert len(learner.memory) == 3
    # The other goes on alone until the successor is there, which then takes a whole episode.
    first, rounds = 3, 0
    while rounds < 5:
        collected = collector.collect(1)
        learner.take(collected)
        first += 0 in collected.lanes
        rounds += 1 in collected.lanes
    lengths = sorted(len(e.rewards) for e in learner.memory.episodes())
    running = [first % 5] if first % 5 else []
    assert lengths == running + [5] * (first // 5 + 1)


def test_weights_never_lag_by_more_than_the_bound(collectors, kind):
    algo = make_algo()
    many = {"lanes": 2, "ring": 2} if kind is CentralCollector else {}
    collector = collectors(Line, Line, kind=kind, algo=algo, max_staleness=4, **many)
    learner = learner_of(4 if many else 2, algo, batch_size=4, update_ratio=3)
    seen = set()
    # One process may start much later than the other, and learning waits for it.
    while learner.updates <= 20 or collector.staleness == 0:
        collector.version = learner.updates
        collected = collector.collect(2)
        seen.add(learner.updates - collected.version)
        learner.take(collected)
        for _ in learner.updates_due(1, collector.updates_allowed()):
            pass
    assert max(seen) == collector.staleness <= 4


def test_an_environment_that_never_works_is_told_in_one_line(collectors, kind):
    collector = collectors(functools.partial(Faulty, "crash", 1), kind=kind)
    with pytest.raises(EnvError, match="10 failures without a complete episode"):
        for _ in range(20):
            collector.collect(1)


def test_parts_lie_in_the_order_of_their_lanes_whichever_came_first():
    def part(lane):
        values = np.array([float(lane)], dtype=np.float32)
        no = np.array([False])
        step = Step({"place": values}, values, values, no, no, {"place": values})
        return Collected([step], np.array([lane]), [])

    merged = merged_parts([part(2), part(0)], [1], [])
    assert (merged.lanes.tolist(), merged.steps[0].rewards.tolist()) == ([0, 2], [0.0, 2.0])
    assert merged.lost_lanes.tolist() == [1]


def test_states_go_on_with_the_next_episodes(collectors, kind):
    algo = make_algo()
    collector = collectors(Line, kind=kind, algo=algo)
    collector.collect(5)
    state = collector.state_dict()
    assert state["workers"][0]["begun"] == [1]
    following = collector.collect(5)
    other = collectors(Line, kind=kind, algo=algo)
    other.load_state_dict(state)
    again = other.collect(5)
    assert np.array_equal(again.steps[0].obs["place"], following.steps[0].obs["place"])
    np.testing.assert_allclose(again.steps[-1].actions, following.steps[-1].actions, atol=1e-4)


# ---- workers whose answers are given ---------------------------------------------------------------


@pytest.fixture
def given(monkeypatch):
    """Makes a collector and the members of its workers, which are ready after their first answer."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.setattr(module, "merged_parts", lambda parts, lost, texts: (parts, lost, texts))

    def make(workers=2, ready=True, **how):
        backend = Backend()
        place = nullcontext(backend)
        plans = blueprints(make_algo(), *[Line] * workers, lanes=2)
        collector = ProcessCollector(
            plans, make_algo(), place=place, **{"step_timeout_s": 7.0, **how}
        )
        for member in backend.members if ready else ():
            member.answers = [Answer(None)]
        return SimpleNamespace(
            collector=collector, backend=backend, members=list(backend.members), now=now
        )

    return make


def steps(version=0, begun=0):
    collected = Collected([], np.arange(2), [], version)
    return Answer((vars(collected), {"begun": [begun], "rng": np.arange(2)}))


def requests(member):
    """Requests for steps, after that to make the environments."""
    (_, first), *others = member.given
    assert first is None
    return [request for _, request in others]


def versions(made):
    return [part.version for part in made[0]]


def test_all_workers_are_asked_at_once_and_learning_waits_for_them(given):
    made = given()
    one, two = made.members
    made.collector.version, made.collector.progress = 4, 0.25
    one.answers += [steps(4, begun=6)]

    def late(members):
        if not one.answers and one not in members and not two.answers:
            two.answers.append(steps(3, begun=5))

    made.backend.react = late
    found = made.collector.collect(3, random=True)
    assert versions(found) == [4, 3] and found[1:] == ([], [])
    (first,), (second,) = requests(one), requests(two)
    assert first is second
    assert (first.num_steps, first.random, first.progress, first.state) == (3, True, 0.25, None)
    assert first.weights.version == 4
    assert made.backend.limits == {collector_limits(7.0, 300.0)}
    assert made.collector.staleness == 1 and made.collector.updates_allowed() is None
    assert made.collector.metrics() == {"Metrics/Staleness": 1.0}
    state = made.collector.state_dict()["workers"]
    assert [part["begun"] for part in state] == [[6], [5]]
    assert isinstance(state[0]["rng"], torch.Tensor)
    again = given()
    assert again.collector.state_dict() == {"workers": [None, None]}
    again.collector.load_state_dict({"workers": [None, state[1]]})
    for member in again.members:
        member.answers.append(steps())
    again.collector.collect(1)
    assert requests(again.members[0])[0].state is None
    assert requests(again.members[1])[0].state["begun"] == [5]
    assert isinstance(requests(again.members[1])[0].state["rng"], np.ndarray)
    assert not again.collector.begin_stage(Line, {})


def test_updates_do_not_wait_for_all_workers(given):
    made = given(max_staleness=2, push_every_s=0.0)
    one, two = made.members
    two.answers = []
    one.answers += [steps()]
    assert versions(made.collector.collect(3)) == [0]
    assert [len(requests(one)), len(requests(two))] == [2, 0]  # it continues at once
    assert made.collector.updates_allowed() == 2
    two.answers = [Answer(None)]
    made.collector.version = 2
    one.answers = [steps()]
    assert versions(made.collector.collect(3)) == [0]
    assert [len(requests(one)), len(requests(two))] == [3, 1]
    assert made.collector.updates_allowed() == 2
    made.collector.version = 4
    one.answers = [steps(2)]
    made.collector.collect(3)
    assert [len(requests(one)), len(requests(two))] == [3, 1]  # weights in use are too old
    assert made.collector.updates_allowed() == 0


def test_the_first_collection_waits_for_all_workers_as_long_as_they_may_start(given):
    for seconds, is_over in ((9.9, False), (10.0, True)):
        made = given(start_timeout_s=10.0)
        made.members[1].answers = []
        made.members[0].answers += [steps()]
        made.now.s += seconds
        if is_over:
            assert versions(made.collector.collect(1)) == [0]
        else:
            with pytest.raises(AssertionError, match="waits for ever"):
                made.collector.collect(1)
    assert given().collector._all_by_s - made.now.s == 300.0


def test_a_lost_worker_is_replaced_and_not_waited_for(given):
    made = given()
    one, two = made.members
    one.answers += [Lost("killed", died=True)]
    two.answers += [steps()]
    parts, lost, texts = made.collector.collect(3)
    assert (len(parts), lost) == (1, [0, 1])
    assert texts == [
        "environments [0, 1]: killed; its episodes are discarded, and another worker replaces it"
    ]
    assert one.ends == [("stop", None)] and len(made.backend.members) == 3
    two.answers += [steps()]
    assert made.collector.collect(3)[1:] == ([], [])


def test_ten_losses_in_a_row_end_the_training(given):
    made = given(workers=1)

    def lose(members):
        member = made.backend.members[-1]
        if not member.answers:
            member.answers = [Lost("killed", died=True)] if lose.left else [Answer(None), steps()]
            lose.left -= bool(lose.left)

    made.members[0].answers = []
    made.backend.react = lose
    for lose.left in (9, 9):
        assert len(made.collector.collect(1)[2]) == 9
    lose.left = 10
    words = (
        "environments [0, 1]: killed; this worker failed 10 times in a row: run imitate check-env, or collect with "
        "train.online.num_workers 0"
    )
    with refused(words, error=EnvError):
        made.collector.collect(1)


def test_workers_are_asked_to_end_before_they_are_stopped(given):
    made = given(max_staleness=1)
    one, two = made.members
    two.answers, one.answers = [], [*one.answers, steps()]
    made.collector.collect(1)
    made.collector.close()
    assert one.ends == ["dismiss", ("stop", 0.0)] and two.ends == ["dismiss", ("stop", 0.0)]
