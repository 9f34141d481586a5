"""Central acting: environment workers that ask policy workers for actions."""

import functools
import os
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate.crew.backend import Answer, Lost, Unprepared
from imitate.crew.local import LocalBackend
from imitate.errors import ConfigError, EnvError, UserError
from imitate.functional.sampling import RowGenerator
from imitate.train.online.central.collector import CentralCollector, EnvSeat
from imitate.train.online.central.env_worker import Stalled, Steps, StepsWanted
from imitate.train.online.central.policy_worker import PolicyWork, noise_seeds
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.workers import MAX_REPLACEMENTS

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


class Later(LocalBackend):
    """The last environment worker answers after the first has been heard."""

    def start(self, prepare):
        self.first, self.last = getattr(self, "last", None), super().start(prepare)
        self.heard_first = False
        return self.last

    def heard(self, members, limits):
        if not self.heard_first:
            members = [member for member in members if member is not self.last]
        found = super().heard(members, limits)
        self.heard_first = self.heard_first or self.first in found
        return found


@pytest.mark.parametrize(("start_is_over", "lanes"), [(False, [0, 1]), (True, [0])])
def test_steps_wait_for_a_worker_without_a_place_only_at_the_start(
    collectors, monkeypatch, start_is_over, lanes
):
    collector = collectors(Line, Line, place=nullcontext(backend := Later()))
    backend.last.waits = lambda: True
    if start_is_over:
        monkeypatch.setattr(collector, "_all_by_s", 0.0)
    assert collector.collect(1).lanes.tolist() == lanes


def test_the_oldest_weights_in_use_limit_the_updates(collectors, monkeypatch):
    collector = collectors(Line, max_staleness=4)
    assert collector.progress == 0.0
    collector.version = 6
    monkeypatch.setattr(collector, "_versions_out", lambda: [3, 5])
    assert collector.updates_allowed() == 3 + 4 - 6


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


def test_a_collection_leaves_the_algorithm_in_its_mode_and_begins_with_version_0():
    algo = make_algo()
    group = EnvGroup(Line, np.arange(2), seed=0, horizon=5)
    collector = LocalCollector(group, algo, Line.action_low, Line.action_high)
    for switch, training in ((algo.set_train, True), (algo.set_eval, False)):
        switch()
        assert collector.collect(1).version == 0
        assert algo.nets.training is training


def test_a_resumed_collector_begins_the_next_episodes(collectors):
    first, again = collectors(Line, lanes=2), collectors(Line, lanes=2)
    first.collect(7)  # the second episodes are running
    (state,) = first.state_dict()["workers"]
    again.load_state_dict(first.state_dict())
    again.collect(1)
    (after,) = again.state_dict()["workers"]
    assert np.subtract(after["begun"], state["begun"]).tolist() == [1, 1]


class Fake:
    """A back end, and each of its workers, whose answers are given."""

    def __init__(self):
        self.started, self.given, self.answers, self.stopped = [], [], [], False
        self.pack, self.give = (lambda request: request), self.given.append

    def start(self, prepare):
        self.started.append(Fake())
        return self.started[-1]

    def answer(self):
        return self.answers.pop(0)

    def stop(self):
        self.stopped = True


def policy_worker(version):
    status = SimpleNamespace(address=("host", version))
    has = SimpleNamespace(version=version)
    return SimpleNamespace(status=status, has=has, is_suspect=False)


@pytest.fixture
def seat():
    return EnvSeat(SimpleNamespace(lanes=np.array([[4], [5]])), Fake())


def test_a_request_that_lost_its_policy_worker_goes_on_with_another(seat):
    one, other, steps = policy_worker(7), policy_worker(8), Steps([], {"begun": [3]})
    seat.send(StepsWanted(3, False), one)
    assert seat.member.given == [StepsWanted(3, False, address=("host", 7))]
    assert (seat.version, seat.is_stalled) == (7, False)
    seat.member.answers += [Answer(Stalled("gone")), Answer(steps)]
    assert seat.receive() is None
    assert seat.is_stalled and one.is_suspect and seat.request is not None
    seat.resume(other)
    assert seat.member.given[1:] == [StepsWanted(3, False, address=("host", 8), resumes=True)]
    assert not seat.is_stalled
    assert seat.receive() is steps and seat.request is None and seat.state == {"begun": [3]}
    seat.resume(other)  # nothing is asked for
    assert len(seat.member.given) == 2


def test_only_losses_in_a_row_are_too_many(seat):
    answers = [Answer(Stalled("gone"))] * (MAX_REPLACEMENTS - 1)
    seat.send(StepsWanted(3, False), policy_worker(7))
    seat.member.answers += [*answers, Answer(Steps([], {})), *answers, Answer(Stalled("gone"))]
    for _ in range(2 * MAX_REPLACEMENTS - 1):
        seat.receive()
    with pytest.raises(
        EnvError, match=rf"environments \[4, 5\] get no actions: gone; {MAX_REPLACEMENTS} "
    ):
        seat.receive()


def test_another_worker_takes_the_place_at_episodes_with_other_seeds(seat):
    dead = Lost("killed", died=True)
    seat.send(StepsWanted(3, False), policy_worker(7))
    seat.member.answers += [Answer(Steps([], {"begun": [3, 4], "x": 1})), dead]
    seat.receive()
    assert seat.receive() is dead
    first = seat.member
    seat.start_anew()
    assert first.stopped and seat.member is not first and seat.request is None
    for _ in range(2):
        seat.send(StepsWanted(3, False), policy_worker(8))
    states = [request.state for request in seat.member.given]
    assert states == [{"begun": [1_000_003, 1_000_004], "x": 1}, None]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (Unprepared(UserError("no such task")), UserError, "^no such task$"),
        (Lost("it raised", error=ConfigError("wrong key")), ConfigError, "^wrong key$"),
        (Lost("it raised"), EnvError, r"environments \[4, 5\] failed: it raised"),
    ],
)
def test_an_error_of_an_environment_is_raised(seat, answer, error, words):
    seat.member.answers.append(answer)
    with pytest.raises(error, match=words):
        seat.receive()
