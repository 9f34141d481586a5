"""Collectors on a Ray cluster of two nodes: the same steps, the same promises when workers or machines are lost."""

import functools

import numpy as np
import pytest
import torch

from imitate.crew import open_backend

from .worlds import Faulty, Line, learner_of, make_algo

pytestmark = pytest.mark.ray
BOUND = 4


@pytest.fixture
def collectors(collectors, ray_nodes):
    def make(*makes, on=ray_nodes.on, cpus=1, **kwargs):
        return collectors(*makes, place=open_backend(on, cpus=cpus), **kwargs)

    return make


class Ledger:
    """Learning in rounds that checks at each what was promised: staleness, and that what is counted is remembered.

    Attributes:
        lanes: environments whose steps came in the latest round.
        lost: environments whose workers were lost so far.
    """

    def __init__(self, collector, lanes):
        self.collector, self.lost, self.lanes = collector, [], []
        self.learner = learner_of(lanes, collector.algo, batch_size=4, update_ratio=0.5)
        self._kept, self._running = 0, dict.fromkeys(range(lanes), 0)

    def round(self):
        collector, learner = self.collector, self.learner
        collector.version = learner.updates
        collected = collector.collect(2)
        assert learner.updates - collected.version <= BOUND
        learner.take(collected)
        for lane in collected.lost_lanes.tolist():
            self.lost.append(lane)
            self._kept -= self._running[lane]
            self._running[lane] = 0
        for number, lane in enumerate(collected.lanes.tolist()):
            for step in collected.steps:
                self._running[lane] = 0 if step.ends[number] else self._running[lane] + 1
        self._kept += collected.num_steps
        self.lanes = collected.lanes.tolist()
        for _ in learner.updates_due(1, collector.updates_allowed()):
            pass
        assert len(self.learner.memory) == self._kept

    def until(self, done):
        while not done():
            self.round()

    def check_episodes(self):
        """Each episode is whole, but for those that run."""
        lengths = sorted(len(episode.rewards) for episode in self.learner.memory.episodes())
        running = sorted(length for length in self._running.values() if length)
        assert [length for length in lengths if length != 5] == running
        assert lengths.count(5) == (self._kept - sum(running)) // 5


@pytest.mark.nightly
def test_in_step_the_same_steps_as_on_this_machine(collectors, ray_nodes):
    found = []
    for on in ("local", ray_nodes.on):
        torch.manual_seed(0)
        algo = make_algo()
        collector, steps = collectors(Line, algo=algo, on=on), []
        for number in range(3):
            collector.version = number
            collected = collector.collect(4)
            assert collected.lanes.tolist() == [0] and collected.version == number
            steps += collected.steps
            with torch.no_grad():  # what is sent next acts otherwise
                for weight in algo.nets["actor"].parameters():
                    weight.mul_(1.5)
        found.append(steps)
    for here, there in zip(*found, strict=True):
        assert np.array_equal(here.obs["place"], there.obs["place"])
        assert np.array_equal(here.actions, there.actions)
        assert np.array_equal(here.rewards, there.rewards)
        assert np.array_equal(here.ends, there.ends)


@pytest.mark.nightly
def test_a_killed_collector_loses_its_running_episode_and_nothing_else(collectors, tmp_path):
    killed = functools.partial(Faulty, "kill", 33, str(tmp_path / "flag"))
    ledger = Ledger(collectors(Line, killed, max_staleness=BOUND), lanes=2)
    ledger.until(lambda: ledger.lost)
    assert ledger.lost == [1]
    ledger.until(lambda: 1 in ledger.lanes)  # its successor
    for _ in range(10):
        ledger.round()
    ledger.check_episodes()
    assert 0 < ledger.collector.staleness <= BOUND


@pytest.mark.nightly
def test_a_lost_node_is_left_and_a_new_one_is_used(collectors, ray_nodes):
    """Three workers find two places, one after a node is lost, and two again with another node."""
    ledger = Ledger(collectors(*[Line] * 3, cpus=2, max_staleness=BOUND), lanes=3)
    seen = set()

    def all_of(number):
        seen.update(ledger.lanes)
        return len(seen) >= number

    ledger.until(lambda: all_of(2))
    ray_nodes.kill_second()
    ledger.until(lambda: ledger.lost)
    left = sorted(seen - set(ledger.lost))
    assert len(left) == 1
    for _ in range(10):
        ledger.round()
    ray_nodes.mend()
    seen = set(left)
    ledger.until(lambda: all_of(2))
    ledger.check_episodes()
    assert ledger.learner.updates > 20
