"""Policy workers whose answers are given: which weights each gets, which of them act, and when one is replaced."""

from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.crew.backend import Answer, Lost, Unprepared
from imitate.errors import EnvError, UserError, WorkerError
from imitate.train.online.central import collector as module
from imitate.train.online.central.collector import (
    CentralCollector,
    PackedWeights,
    PolicyWorker,
    PolicyWorkers,
)
from imitate.train.online.central.env_worker import Stalled, Steps, StepsWanted
from imitate.train.online.central.policy_worker import PolicyWork, Status, Weights
from imitate.train.online.steps import Collected
from tests.refusals import refused

from ..given import Backend
from ..worlds import Line, blueprints, make_algo


def status(host, batches=0, rows=0):
    return Answer(Status((host, 1), batches, rows))


def weights(version):
    return Weights(0.5, Words(version=version))


@pytest.fixture
def now(monkeypatch):
    """The clock of the collector."""
    clock = Words(s=100.0)
    monkeypatch.setattr(module, "time", Words(monotonic=lambda: clock.s))
    return clock


@pytest.fixture
def worker():
    return PolicyWorker("plan", Backend())


def test_a_policy_worker_has_the_weights_that_it_has_confirmed(worker, now):
    assert (worker.member.kind, worker.member.plan) == (PolicyWork, "plan")
    nothing = (None, PackedWeights(-1, -1, None), False, False, 0.0)

    def seen():
        return worker.status, worker.has, worker.is_busy, worker.is_suspect, worker.heard_s

    assert seen() == nothing
    worker.give(PackedWeights(3, 7, "weights"))
    assert worker.is_busy and worker.has.version == -1 and worker.member.given == ["weights"]
    worker.is_suspect = True
    worker.member.answers = [status("a")]
    assert worker.receive() is None
    assert seen() == (Status(("a", 1), 0, 0), PackedWeights(3, 7, None), False, False, 100.0)
    first = worker.member
    worker.start_anew()
    assert first.ends == [("stop", None)] and worker.member is not first and seen() == nothing


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (Unprepared(UserError("no such task")), UserError, "no such task"),
        (Lost("it raised"), WorkerError, "policy worker: it raised"),
    ],
)
def test_errors_of_a_policy_worker_are_raised(worker, answer, error, words):
    worker.give(PackedWeights(0, 0, None))
    worker.member.answers = [answer]
    with refused(words, error=error):
        worker.receive()


def test_a_policy_worker_that_is_gone_is_a_loss_and_one_that_was_not_asked_an_error(worker):
    worker.member.answers = [gone := Lost("killed", died=True), status("a")]
    assert worker.receive() is gone
    with refused("policy worker: Answer", error=WorkerError):
        worker.receive()


@pytest.fixture
def made(now):
    """Two policy workers and their losses."""
    backend, losses = Backend(), []
    workers = PolicyWorkers("plan", 2, backend, "limits", losses.append)
    return Words(
        workers=workers, backend=backend, losses=losses, one=workers._workers[0], two=workers._workers[1]
    )  # fmt: skip


def test_weights_are_published_to_all_workers(made):
    one, two, packed = made.one, made.two, [("packed", weights(version)) for version in (7, 9)]
    assert made.workers.of(0) is None and made.workers.batch_size() == 0.0
    one.member.answers, two.member.answers = [status("a", 2, 6)], [status("b", 3, 4)]
    made.workers.publish(weights(7))
    assert one.member.given == two.member.given == packed[:1]
    assert one.has == two.has == PackedWeights(1, 7, None)
    assert [made.workers.of(n) for n in range(3)] == [one, two, one]
    assert made.workers.batch_size() == 2.0 and not made.workers.busy()
    assert made.backend.limits == {"limits"}
    # each running one has to act with the next ones
    made.backend.react = lambda members: setattr(members[0], "answers", [status("c")])
    made.workers.publish(weights(9))
    assert one.member.given == two.member.given == packed
    assert one.has == two.has == PackedWeights(2, 9, None)
    made.workers.close()
    assert one.member.ends == two.member.ends == [("stop", None)]


def test_only_a_starting_worker_may_come_later(made):
    one, two = made.one, made.two
    two.member.answers = [status("b")]
    made.workers.publish(weights(7))
    assert one.is_busy and list(made.workers.busy().items()) == [(one.member, one)]
    assert [made.workers.of(n) for n in range(3)] == [two, two, two]
    two.member.answers = [status("b")]
    made.workers.publish(weights(8))
    one.member.answers = [status("a")]
    made.workers.hear(one)
    assert one.has.version == 7 and made.workers.of(0) is two
    made.workers.tend()
    assert one.member.given == [("packed", weights(7)), ("packed", weights(8))]
    one.member.answers = [status("a")]
    made.workers.hear(one)
    assert made.workers.of(0) is one


def test_idle_workers_are_asked_for_a_sign_of_life(made, now):
    one, two = made.one, made.two
    one.member.answers, two.member.answers = [status("a")], [status("b")]
    made.workers.publish(weights(7))
    now.s = 101.0
    made.workers.tend()
    assert not made.workers.busy()
    two.is_suspect = True
    assert made.workers.of(1) is one
    made.workers.tend()
    assert list(made.workers.busy()) == [two.member] and two.member.given[1:] == [("packed", None)]
    now.s = 101.01
    for _ in range(2):
        made.workers.tend()
        assert one.member.given[1:] == [("packed", None)]
    two.member.answers = [status("b")]
    made.workers.hear(two)
    assert made.workers.of(1) is two and two.has == PackedWeights(1, 7, None)


def test_a_lost_worker_is_replaced_and_gets_the_newest_weights(made):
    one, two = made.one, made.two
    one.member.answers, two.member.answers = [status("a")], [status("b")]
    made.workers.publish(weights(7))
    lost = one.member
    lost.answers = [Lost("killed", died=True)]
    made.workers.hear(one)
    assert made.losses == ["policy worker: killed"] and lost.ends == [("stop", None)]
    assert one.member is not lost and made.workers.of(0) is two
    made.workers.tend()
    assert one.member.given == [("packed", weights(7))]


# ---- the collector with workers whose answers are given --------------------------------------------


@pytest.fixture
def central(monkeypatch, now):
    """Makes a collector of environment workers; the members of both kinds in their order."""
    monkeypatch.setattr(module, "merged_parts", lambda parts, lost, texts: (parts, lost, texts))

    def make(workers=2, algo=None, **how):
        backend, algo = Backend(), algo or make_algo()
        monkeypatch.setattr(
            module, "Publisher", lambda algo, every_s: Words(
                every_s=every_s, version=None, newest=lambda version, in_use: Words(version=version)
            )
        )  # fmt: skip
        opened = Words(entered=0, closed=0)

        class Place:
            def __enter__(self):
                opened.entered += 1
                return backend

            def __exit__(self, *raised):
                opened.closed += 1

        plans = blueprints(algo, *[Line] * workers, lanes=2)
        how = {"step_timeout_s": 7.0, "place": Place(), **how}
        collector = CentralCollector(plans, algo, **how)
        policies = [member for member in backend.members if member.kind is PolicyWork]
        envs = [member for member in backend.members if member.kind is not PolicyWork]
        for policy in policies:
            policy.answers = [status("a", 2, 6)] * 100
        return Words(
            collector=collector, backend=backend, opened=opened, policies=policies, envs=envs
        )

    return make


def part(version=0):
    return Collected([], np.arange(2), [], version)


def steps(version=0, begun=0):
    return Answer(Steps([part(version)], {"begun": [begun]}))


def wanted(member):
    return [(r.num_steps, r.random, r.unasked, r.address) for _, r in member.given]


def test_the_plans_of_all_workers(central):
    made = central(num_agents=2, ring=3, policy_workers=2, push_every_s=1.5)
    assert [len(made.policies), len(made.envs), made.opened.entered] == [2, 2, 1]
    plan = made.policies[0].plan
    assert (plan.device, plan.seed, plan.host, len(plan.token)) == ("cpu", 0, "127.0.0.1", 32)
    for number, member in enumerate(made.envs):
        one = member.plan
        assert one.lanes.tolist() == [[2 * number, 2 * number + 1]]
        assert (one.make, one.ring, one.obs_keys) == (Line, 3, ("place",))
        assert (one.low, one.high, one.num_choices, one.mask_key) == ([-2.0], [2.0], 0, None)
        assert (one.seed, one.timeout_s, one.token) == (0, 7.0, plan.token)
        assert one.group == {"seed": 3, "horizon": 5}
    collector = made.collector
    assert (collector.version, collector.progress, collector.staleness) == (0, 0.0, 0)
    assert collector.publisher.every_s == 1.5
    assert not collector.begin_stage(Line, {})
    made = central(workers=1)
    (member,) = made.envs
    assert (member.plan.lanes.tolist(), member.plan.ring) == ([[0], [1]], 1)
    assert len(made.policies) == 1 and made.collector.publisher.every_s == 0.0


def test_all_workers_collect_and_learning_waits_for_them(central):
    made = central()
    one, two = made.envs
    collector = made.collector
    collector.version, collector.progress = 4, 0.25
    two.answers = [steps(3, begun=5)]

    def late(members):
        if one in members and two not in members:
            one.answers = [steps(4, begun=6)]

    made.backend.react = late
    parts, lost, texts = collector.collect(3)
    assert ([found.version for found in parts], lost, texts) == ([3, 4], [], [])
    assert wanted(one) == wanted(two) == [(3, False, None, ("a", 1))]
    assert made.policies[0].given == [("packed", Weights(0.25, Words(version=4)))]
    assert collector.staleness == 1 and collector.updates_allowed() is None
    assert collector.metrics() == {"Metrics/Staleness": 1.0, "Metrics/ActingBatch": 3.0}
    assert collector.state_dict() == {"workers": [{"begun": [6]}, {"begun": [5]}]}


def test_a_random_collection_names_the_version_where_the_policy_is_not_asked(central):
    for needs in (False, True):
        algo = make_algo(**({"train": {"frame_stack": 2}} if needs else {}))
        made = central(workers=1, algo=algo)
        made.collector.version = 4
        made.envs[0].answers = [steps(), steps()]
        made.collector.collect(2, random=True)
        made.collector.collect(2)
        unasked = None if needs else 4
        assert wanted(made.envs[0]) == [(2, True, unasked, ("a", 1)), (2, False, None, ("a", 1))]


def test_updates_do_not_wait_for_all_workers(central):
    made = central(max_staleness=2)
    one, two = made.envs
    one.answers = [steps()]
    parts, _, _ = made.collector.collect(3)
    assert len(parts) == 1 and [len(one.given), len(two.given)] == [2, 1]  # it continues at once
    assert made.collector.updates_allowed() == 2
    made.collector.version = 2
    one.answers = [steps()]
    assert len(made.collector.collect(3)[0]) == 1
    assert len(one.given) == 2  # its weights are too old, and learning waits
    assert made.collector.updates_allowed() == 0
    two.waiting = True  # it has no place yet, so that it takes no steps
    two.answers = [steps()]
    assert made.collector.updates_allowed() == 2
    made.collector.collect(3)
    assert len(one.given) == 3


def test_a_lost_environment_worker_is_replaced(central):
    made = central()
    one, two = made.envs
    one.answers = [Lost("killed", died=True)]
    two.answers = [steps()]
    parts, lost, texts = made.collector.collect(3)
    assert (len(parts), lost) == (1, [0, 1])
    assert texts == [
        "environments [0, 1]: killed; its episodes are left out, another one takes its place"
    ]
    assert one.ends == [("stop", None)] and len(made.backend.members) == 4
    for member in (made.backend.members[-1], two):
        member.answers = [steps()]
    assert made.collector.collect(3)[1:] == ([], [])


def test_too_many_losses_in_a_row_end_the_training(central):
    made = central(workers=1)

    def lose(members):
        for member in members:
            if member.kind is not PolicyWork:
                member.answers = [Lost("killed", died=True)] if lose.left else [steps()]
                lose.left -= 1

    made.backend.react = lose
    for lose.left in (module.MAX_REPLACEMENTS - 1, module.MAX_REPLACEMENTS - 1):
        assert len(made.collector.collect(1)[2]) == module.MAX_REPLACEMENTS - 1
    lose.left = module.MAX_REPLACEMENTS
    words = (
        f"environments [0, 1]: killed; {module.MAX_REPLACEMENTS} in a row: run imitate check-env"
    )
    with refused(words, error=EnvError):
        made.collector.collect(1)


def test_an_environment_worker_waits_for_the_next_policy_worker(central):
    made = central(workers=1)
    (one,) = made.envs
    (policy,) = made.policies
    policy.answers = [status("a"), Lost("killed", died=True)]

    def react(members):
        new = made.backend.of(PolicyWork)[-1]
        if new is not policy and not new.answers and new in members:
            new.answers = [status("b")]
        if one in members and len(one.given) == 2:
            one.answers = [steps()]

    one.answers = [Answer(Stalled("gone"))]
    made.backend.react = react
    parts, _, texts = made.collector.collect(3)
    assert len(parts) == 1
    assert texts == ["policy worker: killed; another one takes its place, environments wait for it"]
    (_, first), (_, again) = one.given
    assert first == StepsWanted(3, False, ("a", 1))
    assert again == StepsWanted(3, False, ("b", 1), resumes=True)


def test_after_the_start_workers_without_a_place_are_not_waited_for(central, now):
    for seconds, number in ((module.START_S, None), (module.START_S + 0.1, 1)):
        made = central()
        made.envs[1].waiting = True
        made.envs[0].answers = [steps()]
        now.s += seconds
        if number is None:
            with pytest.raises(AssertionError, match="waits for ever"):
                made.collector.collect(1)
        else:
            assert len(made.collector.collect(1)[0]) == number


def test_idle_workers_have_time_to_end(central):
    made = central(max_staleness=5)
    one, two = made.envs
    two.answers = [steps()]
    made.collector.collect(1)
    made.collector._seats[1].request = None
    made.collector.close()
    assert one.ends == [("stop", 0.0)] and two.ends == ["dismiss", ("stop", 2.0)]
    assert made.policies[0].ends == [("stop", None)] and made.opened.closed == 1
