"""Central acting: environment workers that ask policy workers for actions."""

import functools
import os
import signal
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from imitate.crew.local import LocalBackend
from imitate.errors import EnvError
from imitate.functional.sampling import RowGenerator
from imitate.train.online.central.collector import CentralCollector
from imitate.train.online.central.policy_worker import PolicyWork, noise_seeds
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup

from ..worlds import Line, learner_of, make_algo
from .bare import Bare

NETS = {"actor": {"layer_dims": [8]}, "critic": {"layer_dims": [8]}}


class Wide(Line):
    """Shows an observation that the policy was not made for."""

    def obs(self):
        return {"place": np.zeros(2)}


class Watched(LocalBackend):
    """Remembers the processes of policy workers."""

    def __init__(self):
        super().__init__()
        self.policies = []

    def start(self, prepare):
        member = super().start(prepare)
        if prepare.func is PolicyWork:
            self.policies.append(member._process)
        return member


@pytest.fixture
def collectors(collectors):
    return functools.partial(collectors, kind=CentralCollector)


def by_lane(collected, lane):
    """Places, actions, rewards, ends and extras of a lane."""
    column = collected.lanes.tolist().index(lane)
    return {
        "place": np.array([step.obs["place"][column] for step in collected.steps]),
        "next": np.array([step.next_obs["place"][column] for step in collected.steps]),
        "actions": np.array([step.actions[column] for step in collected.steps]),
        "rewards": np.array([step.rewards[column] for step in collected.steps]),
        "timeouts": np.array([step.timeouts[column] for step in collected.steps]),
        **{
            key: np.array([step.extras[key][column] for step in collected.steps])
            for key in collected.steps[0].extras
        },
    }


def assert_alike(first, second, lanes):
    for lane in range(lanes):
        one, other = by_lane(first, lane), by_lane(second, lane)
        assert one.keys() == other.keys()
        for key, values in one.items():
            np.testing.assert_allclose(values, other[key], atol=1e-4, err_msg=f"{key} of {lane}")


def learned(algo, version):
    """Other weights, as after updates."""
    with torch.no_grad():
        for weight in algo.nets.parameters():
            weight.add_(0.05 * torch.sin(torch.arange(weight.numel()) + version).view_as(weight))


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("td3", {**NETS, "exploration": {"std": 0.0}}),
        ("sac", {**NETS, "rnn": {"enabled": True, "hidden_dim": 4}}),
        ("ppo", {"rnn": {"enabled": True, "hidden_dim": 4}}),
    ],
    ids=["td3 without noise", "recurrent sac", "recurrent ppo"],
)
def test_with_the_same_noise_steps_are_those_of_a_collector(collectors, name, section):
    algo = make_algo(name, algo=section)
    group = EnvGroup(Line, np.arange(2), seed=3, horizon=5)
    local = LocalCollector(group, algo, Line.action_low, Line.action_high)
    act = algo.act

    def with_noise_of_rows(obs, state, *, explore):
        clock = torch.from_numpy(np.stack([group.lanes, group.begun, group.lengths], axis=1))
        return act(obs, state, explore=explore, generator=RowGenerator(noise_seeds(0, clock)))

    central = collectors(Line, algo=algo, lanes=2, ring=2)
    if name != "td3":
        algo.act = with_noise_of_rows
    for version in range(3):
        learned(algo, version)
        central.version = local.version = version
        expected, found = local.collect(4), central.collect(4)
        assert_alike(expected, found, 2)
        assert found.version == version
        assert [e.length for e in found.episodes] == [e.length for e in expected.episodes]
    assert np.ptp(by_lane(found, 0)["actions"]) > 0


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_noise_does_not_depend_on_workers_rings_or_batches(collectors, name):
    algo = make_algo(name, algo=NETS if name == "sac" else {})
    one = collectors(Line, algo=algo, lanes=4)
    two = collectors(Line, Line, algo=algo, lanes=2, ring=2, policy_workers=2)
    for random in (True, False, False):
        first, second = one.collect(6, random=random), two.collect(6, random=random)
        assert_alike(first, second, 4)
    actions = np.stack([by_lane(first, lane)["actions"] for lane in range(4)])
    assert len(np.unique(actions.round(5))) >= actions.size - 6  # some lie at the limits
    if name == "ppo":
        assert {"policy_action", "log_prob"} <= set(first.steps[0].extras)
    assert one.metrics()["Metrics/ActingBatch"] == 4


@pytest.mark.nightly
@pytest.mark.usefixtures("spawned_workers")
def test_environment_workers_do_without_torch(collectors):
    collected = collectors(Bare).collect(5)
    assert collected.episodes[0].info["torch"] == 0.0


@pytest.mark.parametrize("how", ["kill", pytest.param("hang", marks=pytest.mark.nightly)])
def test_a_lost_policy_worker_is_replaced_and_no_episode_is_lost(collectors, how):
    backend = Watched()
    settings = {"ring": 1, "timeout_s": 3.0, "max_staleness": 0, "policy_workers": 1}
    collector = collectors(Line, Line, place=nullcontext(backend), **settings)
    learner = learner_of()
    collected = [collector.collect(3)]
    os.kill(backend.policies[0].pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    while sum(part.num_steps for part in collected) < 60:
        collected.append(collector.collect(3))
    for part in collected:
        learner.take(part)
    assert len(backend.policies) == 2 and not backend.policies[0].is_alive()
    messages = [text for part in collected for text in part.messages]
    assert len(messages) == 1 and messages[0].startswith("policy worker: its process ")
    assert ("exit code -9" if how == "kill" else "nothing for 3 s") in messages[0]
    assert not any(len(part.lost_lanes) for part in collected)
    for lane in range(2):
        parts = [by_lane(part, lane) for part in collected if lane in part.lanes]
        ends = np.concatenate([part["timeouts"] for part in parts])
        assert np.flatnonzero(ends).tolist() == list(range(4, len(ends), 5))
        seen = np.concatenate([part["place"] for part in parts])[1:]
        left = np.concatenate([part["next"] for part in parts])[:-1]
        assert np.array_equal(seen[~ends[:-1]], left[~ends[:-1]])
    # All are whole but the one that each environment is in.
    assert sum(len(episode.rewards) != 5 for episode in learner.memory.episodes()) <= 2


class Placeless(LocalBackend):
    """Has no place for the last environment worker."""

    def start(self, prepare):
        member = super().start(prepare)
        self.last = member
        return member

    def heard(self, members, limits):
        return super().heard([member for member in members if member is not self.last], limits)


def test_a_worker_without_a_place_holds_up_neither_steps_nor_updates(collectors):
    algo, backend = make_algo(), Placeless()
    collector = collectors(Line, Line, algo=algo, max_staleness=4, place=nullcontext(backend))
    backend.last.waits = lambda: True
    collector.collect(1)
    for version in range(1, 20):
        assert collector.updates_allowed() > 0
        collector.version = version
        assert collector.collect(1).lanes.tolist() == [0]


def test_a_policy_that_fails_is_told_in_one_line(collectors):
    with pytest.raises(EnvError, match="the policy worker cannot act: .*place") as caught:
        collectors(Wide).collect(2)
    assert "\n" not in str(caught.value)


def test_random_warm_up_asks_only_policies_whose_state_or_extras_are_learned_from(monkeypatch):
    asked = []
    for changes in ({}, {"train": {"frame_stack": 2}}):
        algo = make_algo(**changes)
        act = algo.act
        monkeypatch.setattr(algo, "act", lambda *a, act=act, **k: asked.append(1) or act(*a, **k))
        group = EnvGroup(Line, np.arange(2), seed=0, horizon=5)
        collector = LocalCollector(group, algo, Line.action_low, Line.action_high)
        collector.collect(3, random=True)
        wanted = 3 if changes else 0
        assert len(asked) == wanted
        collector.collect(1)
        assert len(asked) == wanted + 1
        asked.clear()
