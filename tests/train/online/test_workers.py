"""Collectors whose environments live in workers: those that act there, and those that ask a policy worker."""

import functools

import numpy as np
import pytest
import torch

from imitate.errors import EnvError
from imitate.train.online.central.collector import CentralCollector
from imitate.train.online.steps import Collected, Step
from imitate.train.online.workers import (
    ProcessCollector,
    acting_weights,
    load_acting_weights,
    merged_parts,
)

from .worlds import Faulty, Line, learner_of, make_algo


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
