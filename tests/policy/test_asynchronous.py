"""Predictions in the background: the loop never waits, and what is executed belongs to its control step."""

import threading
import time

import numpy as np
import pytest
import torch

from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.errors import UserError
from imitate.policy.asynchronous import AsynchronousPolicy
from imitate.system import clock
from tests.deploy.fake_robot import FakeRobot
from tests.deploy.policies import observations, policy_of
from tests.refusals import refused

FLOW, DIFFUSION = "flow_policy/flow_policy", "diffusion_policy/diffusion_policy"
PLANNED = np.linspace(-0.5, 0.5, 28).reshape(4, 7)


class Clock:
    """Plans ``size`` actions (step, ...) from the step that it saw; each prediction waits until it is let go."""

    control_freq = 100.0
    obs_keys = ("step",)
    history = 2

    def __init__(self, size=8):
        self.size, self.go, self.seen, self.error = size, threading.Semaphore(0), [], None
        self.episodes = []

    def start_episode(self, lang=None):
        self.episodes.append(lang)

    def predict_chunk(self, history):
        self.go.acquire()
        if self.error:
            raise self.error
        self.seen.append([int(ob["step"]) for ob in history])
        return (float(history[-1]["step"]) + np.arange(self.size))[:, None]


def acted(policy, steps):
    """Actions at some control steps; None where the robot held."""
    actions = [policy({"step": np.array(step)}) for step in steps]
    return [None if a is None else a.item() for a in actions]


def let_go(policy, source):
    """Let a prediction finish, and wait until its chunk has come."""
    before = policy.finished
    source.go.release()
    while policy.finished == before:
        time.sleep(0.001)


@pytest.fixture
def made():
    """An episode that has begun, and the first plan of which is being made."""
    source = Clock()
    policy = AsynchronousPolicy(source, 100.0, execute=3, join="replace")
    policy.start_episode()
    assert acted(policy, [0]) == [None]
    yield policy, source
    for _ in range(10):
        source.go.release()
    policy.close()


@pytest.fixture
def planned(made):
    """An episode with its first plan, of step 0: its actions 0 to 7 come next."""
    let_go(*made)
    return made


def test_each_action_belongs_to_its_control_step(planned):
    policy, source = planned
    # The first chunk was seen at step 0 and nothing was executed since: it begins at its first action.
    assert acted(policy, [1, 2, 3]) == [0, 1, 2]
    assert acted(policy, [4, 5]) == [3, 4]  # the next prediction began at step 4
    let_go(policy, source)
    assert source.seen == [[0], [3, 4]]
    # It saw step 4, before action 3 was executed; two actions were executed meanwhile.
    assert acted(policy, [6]) == [6]


@pytest.mark.parametrize(("delays", "asked_at"), [((), 8), ((0.02,), 6), ((0.04,), 4)])
def test_a_prediction_begins_when_it_would_otherwise_come_too_late(delays, asked_at):
    """Eight actions are planned from step 1 on; the next chunk takes no, two or four steps."""
    source = Clock()
    source.history = 0  # at least one observation is kept
    with AsynchronousPolicy(source, 100.0, execute=100, join="replace") as policy:
        policy.start_episode()
        acted(policy, [0])
        let_go(policy, source)
        acted(policy, [1])
        for seconds in delays:
            policy.delay.add(seconds)
        acted(policy, range(2, 9))
        let_go(policy, source)
    assert source.seen == [[0], [asked_at]]


def test_a_new_episode_waits_for_the_prediction_that_was_requested():
    """So the loop's warm-up makes one; its chunk belongs to no episode."""
    source = Clock(size=4)
    source.go.release()
    with AsynchronousPolicy(source, 100.0) as policy:
        policy.start_episode()
        acted(policy, [0])
        policy.start_episode()
        assert source.seen == [[0]]
        assert acted(policy, [0]) == [None]
        source.go.release()


def test_the_loop_never_waits_and_holds_when_the_plan_is_over(planned):
    policy, _ = planned
    # No prediction is let go meanwhile: it would wait for ever.
    assert acted(policy, range(1, 12)) == [0, 1, 2, 3, 4, 5, 6, 7, None, None, None]
    assert policy.counts.empty == 4


def test_an_error_of_a_prediction_reaches_the_loop(made):
    policy, source = made
    source.error = ConnectionError("gone")
    let_go(policy, source)
    for step in (1, 2):  # nothing is planned, and nobody answers: the loop holds, and stops at last
        with pytest.raises(ConnectionError, match="gone"):
            acted(policy, [step])
    source.error = None
    let_go(policy, source)  # requested at step 1, when the loss was noticed
    assert acted(policy, [3]) == [1]


def test_a_lost_server_is_asked_again_while_the_plan_is_executed(planned):
    policy, source = planned
    assert acted(policy, [1, 2, 3, 4]) == [0, 1, 2, 3]
    source.error = ConnectionError("gone")
    let_go(policy, source)
    assert acted(policy, [5, 6]) == [4, 5]  # requested anew at step 5, not after three more actions
    source.error = None
    let_go(policy, source)
    # Of the chunk that was seen at step 5: two actions of it are over.
    assert acted(policy, [7]) == [7]


def test_other_errors_end_the_episode_at_once(planned):
    policy, source = planned
    acted(policy, [1, 2, 3, 4])
    source.error = ValueError("wrong")
    let_go(policy, source)
    with pytest.raises(ValueError, match="wrong"):
        acted(policy, [5])


def test_a_prediction_of_the_last_episode_is_thrown_away(made):
    policy, source = made
    source.go.release()
    policy.start_episode("next")
    assert source.episodes == [None, "next"]
    assert acted(policy, [100]) == [None]
    let_go(policy, source)
    assert acted(policy, [101]) == [100]
    assert source.seen[-1] == [100]  # of this episode alone


def test_after_a_cut_only_a_new_prediction_counts(planned):
    policy, source = planned
    acted(policy, [1])
    policy.cut_plan()
    assert acted(policy, [2]) == [None]
    let_go(policy, source)
    assert acted(policy, [3]) == [2]


def test_a_slow_policy_leaves_no_gaps(virtual_time):
    """150 ms a prediction at 20 Hz: synchronous inference stops every few steps, this never does."""

    class Slow(Clock):
        control_freq = 20.0
        obs_keys = ("state",)
        history = 1

        def predict_chunk(self, history):
            clock.sleep(0.15)
            return np.zeros((16, 2))

    with AsynchronousPolicy(Slow(), 20.0, execute=8) as policy:
        report = ControlLoop(FakeRobot(), policy, 20.0, safety=Safety(late=0)).run(60)
    assert report.held.total() == 4  # until the first chunk
    # A synchronous loop has a gap of three periods at each of its eight chunks.
    np.testing.assert_allclose(report.gaps, 1.0)


def seeded(call, *args, **options):
    torch.manual_seed(3)
    return call(*args, **options)


@pytest.mark.parametrize("name", ["act/act", FLOW, "bc/bc"])
def test_a_predicted_chunk_is_what_the_policy_plans(name):
    policy, twin = policy_of(name), policy_of(name)
    seen = observations(policy, 3)
    for count in (1, 2, 3):
        twin.start_episode()
        for ob in seen[:count]:
            twin.cut_plan()
            action = seeded(twin, ob)
        chunk = seeded(policy.predict_chunk, seen[:count])
        np.testing.assert_allclose(chunk[0], action, atol=1e-5)
        plan = twin.planned_actions()
        if plan is not None:
            np.testing.assert_allclose(chunk, plan[0], atol=1e-5)


@pytest.mark.parametrize("name", [FLOW, DIFFUSION])
@pytest.mark.parametrize("guidance", ["identity", "vjp"])
def test_a_guided_chunk_begins_as_planned(name, guidance):
    policy = policy_of(name)
    history, plan = observations(policy, 2), np.full((4, 7), 0.4)
    free = seeded(policy.predict_chunk, history)
    guided = seeded(policy.predict_chunk, history, plan, delay=2, guidance=guidance)
    assert guided.shape == free.shape
    before, after = np.abs(free[:2] - 0.4).mean(), np.abs(guided[:2] - 0.4).mean()
    assert after < (0.35 if guidance == "identity" else 0.9) * before
    assert np.isfinite(guided).all()
    whole = [seeded(policy.predict_chunk, history, plan, n, guidance) for n in (4, 99)]
    np.testing.assert_array_equal(*whole)  # no more than the planned steps can be executed


@pytest.mark.parametrize("name", [FLOW, DIFFUSION])
def test_a_chunk_begins_with_the_actions_that_it_is_given(name):
    policy = policy_of(name, **{"algo.prefix.max_delay": 3})
    history = observations(policy, 2)
    chunk = policy.predict_chunk(history, PLANNED, delay=2, guidance="prefix")
    np.testing.assert_allclose(chunk[:2], PLANNED[:2], atol=1e-6)
    assert np.abs(chunk[2] - PLANNED[2]).max() > 1e-3, "no more than those"
    words = r"longer than the 3 control steps of algo.prefix.max_delay"
    with pytest.warns(UserWarning, match=words):
        chunk = policy.predict_chunk(history, PLANNED, delay=4, guidance="prefix")
    np.testing.assert_allclose(chunk[:3], PLANNED[:3], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (FLOW, {"guidance": "prefix"}, "flow_policy is not trained|algo.prefix.max_delay"),
        (FLOW, {"batched_ob": True}, "need a single episode, but batched_ob is True"),
        (FLOW, {"guidance": "prefx"}, "unknown 'prefx'|prefix"),
        ("act/act", {}, "flow_policy and diffusion_policy can"),
        ("bc/bc", {}, "no chunks"),
        ("bc/bc_rnn", {"planned": None}, "call the policy at every control step"),
    ],
)
def test_chunks_that_a_policy_cannot_predict_are_refused(name, options, words):
    policy = policy_of(name)
    with refused(words, error=UserError):
        policy.predict_chunk(observations(policy, 1), **{"planned": PLANNED, "delay": 1, **options})
    with refused("empty history", error=UserError):
        policy.predict_chunk([])


def test_a_policy_that_is_given_no_actions_is_not_asked_to_begin_with_them():
    for source in (policy_of(FLOW), Clock()):
        with refused("algo.prefix.max_delay, or use|rtc", error=UserError):
            AsynchronousPolicy(source, 20.0, join="replace", guidance="prefix")


def test_guidance_asks_for_what_is_planned():
    asked = []

    class Guided(Clock):
        def predict_chunk(self, history, planned=None, delay=0, guidance="identity"):
            asked.append((planned, delay, guidance))
            if len(asked) == 2:  # tried before the robot moves
                return np.zeros((self.size, 1))
            return super().predict_chunk(history)

    source = Guided()
    with AsynchronousPolicy(source, 100.0, execute=3, join="replace", guidance="vjp") as policy:
        policy.start_episode()
        acted(policy, [0])
        let_go(policy, source)
        acted(policy, [1, 2, 3, 4])
        let_go(policy, source)
    (none, *_), (tried, *rest), (planned, _, guidance) = asked
    assert none is None
    assert (tried[:, 0].tolist(), rest) == (list(range(8)), [0, "vjp"])
    assert planned[:, 0].tolist() == [3, 4, 5, 6, 7]  # at step 4, before action 3 was executed
    assert guidance == "vjp"


def test_a_policy_that_cannot_be_guided_refuses_before_the_robot_moves():
    source, robot = policy_of("act/act"), FakeRobot()
    (robot.values,) = observations(source, 1)
    robot.observation_shapes = {key: np.shape(value) for key, value in robot.values.items()}
    with AsynchronousPolicy(source, 20.0, join="replace", guidance="identity") as policy:
        loop = ControlLoop(robot, policy, 20.0, any_rate=True)
        with refused("flow_policy and diffusion_policy can", error=UserError):
            loop.run(5)
    assert set(robot.last_calls()) == {"stop"}
