"""Faults of the network and of servers, to the millisecond: the robot holds, then stops, and nothing stale is sent."""

import dataclasses
import threading

import numpy as np
import pytest

from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.schema import ObservedKey
from imitate.deploy.server.client import RemoteError, RemotePolicy
from imitate.deploy.server.session import Desk, Prediction, Session
from imitate.errors import ClosedError, RobotError, UserError
from imitate.policy.asynchronous import AsynchronousPolicy
from imitate.system import clock
from imitate.system.channel.messages import decode, encode
from tests.deploy.counting_policy import Counter, observation
from tests.deploy.in_process import camera_robot
from tests.deploy.openpi_server import pack, unpack

FAULTS = ["up", "down", b"\xc1abcd", ClosedError]
NO_ANSWER = "the server does not answer"


def break_down(network, fault):
    if fault in ("up", "down"):
        network.stalled.add(fault)
    else:
        network.instead = fault


def mend(network):
    network.stalled.clear()
    network.instead = None


def loop(policy, robot, on_step=None, **safety):
    return ControlLoop(
        robot, policy, 20.0, safety=Safety(late=0, frozen=0, **safety), on_step=on_step
    )


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("background", [False, True])
def test_the_robot_holds_and_then_rests(network_of, fault, background):
    network, robot = network_of(Counter()), camera_robot()

    def on_step(step):
        if len(robot.times("send")) == 10:
            break_down(network, fault)

    policy = remote = RemotePolicy("ws://here", timeout_s=0.2)
    if background:
        policy = AsynchronousPolicy(remote, 20.0, execute=2)
    with pytest.raises(RobotError, match=f"{NO_ANSWER}|nothing is planned"):
        loop(policy, robot, on_step, hold_s=0.38, watchdog_s=2.0).run(200)
    if background:
        policy.close()
    sent = robot.times("send")
    fault_s = sent[9]
    holds = [when - fault_s for when in robot.times("hold") if when > fault_s]
    if background:  # two actions were planned; then eight periods are longer than hold_s
        assert len(sent) == 12
        np.testing.assert_allclose(holds, 0.15 + 0.05 * np.arange(9))
    elif fault in ("up", "down"):  # each step waits for an answer for 0.2 s
        assert len(sent) == 10
        np.testing.assert_allclose(holds, [0.25, 0.45, 0.65])
    else:
        assert len(sent) == 10
        np.testing.assert_allclose(holds, 0.05 + 0.05 * np.arange(9))
    assert robot.times("stop")[0] - fault_s == pytest.approx(holds[-1])


@pytest.mark.parametrize("fault", FAULTS)
def test_afterwards_the_next_call_connects_anew(network_of, fault):
    network = network_of(Counter())
    policy = RemotePolicy("ws://here", timeout_s=0.3)
    assert policy(observation(0.1))[0] == 0.0
    break_down(network, fault)
    began = clock.now()
    with pytest.raises(RemoteError):
        policy(observation(0.2))
    assert clock.now() - began == pytest.approx(0.3 if fault in ("up", "down") else 0.0)
    mend(network)
    np.testing.assert_allclose(policy(observation(0.3)), [0.0, 0.3], rtol=1e-6)


@pytest.mark.parametrize("where", ["server", "network"])
@pytest.mark.parametrize("call", ["__call__", "predict_chunk"])
def test_late_replies_are_never_taken_for_the_next(network_of, where, call):
    counter = Counter()
    network, policy = network_of(counter), RemotePolicy("ws://here", timeout_s=0.3)

    def acted(value):
        ob = observation(value)
        return policy(ob)[1] if call == "__call__" else policy.predict_chunk([ob])[0, 0]

    def be_late(seconds):
        counter.seconds, network.delay_s = (seconds, 0) if where == "server" else (0, seconds)

    acted(1)
    be_late(0.5)
    for value in (2, 3):
        with pytest.raises(RemoteError, match="no answer within 0.3 s|sent no valid schema"):
            acted(value)
    be_late(0.0)
    clock.sleep(0.6)
    assert acted(4) == 4.0


def test_a_client_that_does_not_read_delays_nobody_else(network_of):
    network = network_of(Counter())
    network.room = {"up": 3, "down": 3}
    slow = network.connected()
    for number in range(3):
        slow.send(encode({"imitate": {"kind": "cut", "id": number}}), 1.0)
    policy = RemotePolicy("ws://here")
    began = clock.now()
    assert [policy(observation(0.5))[0] for _ in range(50)] == list(range(50))
    assert clock.now() == began
    with pytest.raises(TimeoutError):  # the server waits for it, and reads no more
        for number in range(10):
            slow.send(encode({"imitate": {"kind": "cut", "id": number}}), 1.0)


def test_a_server_that_stops_reading_costs_one_deadline(network_of):
    network = network_of(lambda end: end.send(pack({}), 1.0))
    network.room["up"] = 0
    policy = RemotePolicy("ws://here", timeout_s=0.3)
    began = clock.now()
    with pytest.raises(RemoteError, match="does not read"):
        policy(observation())
    assert clock.now() - began == pytest.approx(0.3)


def test_a_server_that_says_nothing_costs_one_deadline_however_slow_its_handshake_was(network_of):
    network = network_of(lambda end: None)
    for network.handshake_s, words in (
        (0.0, "no valid schema"),
        (0.8, "no valid schema"),
        (9.0, "not reached"),
    ):
        began = clock.now()
        with pytest.raises(RemoteError, match=words):
            RemotePolicy("ws://here", connect_s=1.0)
        assert clock.now() - began == pytest.approx(1.0)


def test_a_session_without_messages_ends(network_of):
    end = network_of(Counter(), idle_s=70.0).connected()
    end.recv(1.0)
    began = clock.now()
    with pytest.raises(ClosedError, match="no message for too long"):
        end.recv(600.0)
    assert clock.now() - began == pytest.approx(70.0)


# ---- one policy for several clients ----


def test_clients_wait_for_one_prediction_beside_their_own(network_of):
    counter = Counter(seconds=0.1)
    network_of(counter)
    policies = [RemotePolicy("ws://here", timeout_s=5.0) for _ in range(8)]
    for policy in policies:
        policy.start_episode()
    threads = [threading.Thread(target=policy, args=(observation(),)) for policy in policies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One prediction that runs already, then their own: never a queue of eight.
    queued = sorted(policy.timing["queued_ms"] for policy in policies)
    assert sum(counter.batches) == 8 and len(counter.batches) == 2
    np.testing.assert_allclose(queued[: counter.batches[0]], 0.0)
    np.testing.assert_allclose(queued[counter.batches[0] :], 100.0)
    assert policies[0].timing["infer_ms"] == pytest.approx(100.0)


def test_of_waiting_observations_the_newest_is_answered(network_of):
    end = network_of(Counter(seconds=0.2)).connected()
    end.recv(1.0)
    for number in range(1, 6):
        ask = {"imitate": {"kind": "observe", "id": number}, "obs": observation(number)}
        end.send(encode(ask), 1.0)
        clock.sleep(0.1 if number == 1 else 0.0)  # its prediction has begun
    replies = [decode(end.recv(5))["imitate"] for _ in range(5)]
    kinds = {reply["id"]: reply["kind"] for reply in replies}
    assert kinds == {1: "action", 2: "dropped", 3: "dropped", 4: "dropped", 5: "action"}


# ---- asynchronous inference ----


class Slow(Counter):
    """150 ms for a chunk of 16."""

    def predict_chunks(self, asks):
        clock.sleep(0.15)
        return [np.zeros((16, 2)) for _ in asks]


def slow_openpi(end):
    """Speak as openpi's server does."""
    end.send(pack({}), 1.0)
    while True:
        try:
            unpack(end.recv(600.0))
        except (ClosedError, TimeoutError):
            return
        clock.sleep(0.15)
        end.send(pack({"actions": np.zeros((16, 2), np.float32)}), 1.0)


@pytest.mark.parametrize("server", [Slow(), slow_openpi], ids=["imitate", "openpi"])
def test_a_slow_server_leaves_no_gaps(network_of, server):
    network_of(server)
    remote = RemotePolicy("ws://here")
    with AsynchronousPolicy(remote, 20.0, execute=8) as policy:
        report = loop(policy, camera_robot()).run(60)
    assert report.held.total() == 4  # until the first chunk
    np.testing.assert_allclose(report.gaps, 1.0)


@pytest.mark.parametrize("back_after_s", [0.5, None])
def test_a_lost_server_ends_the_plan_then_holds_then_stops_and_may_come_back(
    network_of, back_after_s
):
    network, robot, lost = network_of(Counter()), camera_robot(), []

    def on_step(step):
        if len(robot.times("send")) == 10 and not lost:
            lost.append(clock.now())
            network.close()
        if lost and back_after_s and clock.now() >= lost[0] + back_after_s:
            network.is_up = True

    remote = RemotePolicy("ws://here", timeout_s=0.3)
    with AsynchronousPolicy(remote, 20.0, execute=2) as policy:
        made = loop(policy, robot, on_step, hold_s=0.38 if back_after_s is None else 5.0)
        if back_after_s is None:
            with pytest.raises(RobotError, match=NO_ANSWER):
                made.run(100)
            assert len(robot.times("send")) == 12  # two were planned; then eight periods
            assert robot.times("stop")[0] - lost[0] == pytest.approx(0.55)
            network.is_up = True
            assert made.run(10).steps > 0
        else:
            report = made.run(60)
            assert report.held[NO_ANSWER] == 9 and report.steps == 50


def test_a_client_does_not_go_on_with_other_weights(network_of):
    """The server is restarted with another policy of the same data: its answers are not mixed with those before."""
    first, second = Counter(), Counter()
    first.weights, second.weights = "a" * 64, "b" * 64
    network = network_of(first)
    policy = RemotePolicy("ws://here")
    assert policy.weights == first.weights
    network.close()
    network_of(second)
    with pytest.raises(RemoteError):  # the connection is lost
        policy(observation())
    with pytest.raises(UserError, match="its weights differ from those at the beginning"):
        policy(observation())


@pytest.mark.parametrize("is_first_ours", [True, False])
def test_a_client_does_not_go_on_with_a_server_of_another_kind(
    network_of, monkeypatch, is_first_ours
):
    """Actions of openpi's server have no limits, so they do not follow those of a server that tells its schema."""
    own = Desk.metadata

    def serve(is_ours):
        monkeypatch.setattr(Desk, "metadata", own if is_ours else lambda *_: {})
        return network_of(Counter())

    network = serve(is_first_ours)
    policy = RemotePolicy("ws://here")
    network.close()
    serve(not is_first_ours)
    with pytest.raises(RemoteError):  # the connection is lost
        policy(observation())
    for _ in range(2):
        with pytest.raises(
            UserError, match="one server is openpi's and the other is not; start again"
        ):
            policy(observation())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (np.zeros(3), "actions of 3 numbers, but its schema has 2"),
        (np.array([0.1, 2e9]), "beyond its own limits .number 1: 2e.09, limits -1e.04 to 1e.04."),
        (np.array([0.1, np.nan]), "array of finite numbers"),
        (np.diag([0.1, -2e9, 0.1])[:, :2], "own limits .number 1: -2e.09, limits -1e.04 to 1e.04."),
    ],
)
@pytest.mark.parametrize("lasts", [1, 1000])
def test_an_answer_that_is_none_of_the_policy_is_not_sent(network_of, answer, words, lasts):
    class Odd(Counter):
        def predict(self, asks):
            self.batches.append(0)
            first, chunk = np.zeros(2), np.zeros((4, 2))
            if 10 < len(self.batches) <= 10 + lasts:
                first, chunk = (answer, chunk) if answer.ndim == 1 else (first, answer)
            return [Prediction(first, chunk, {}) for _ in asks]

    network_of(Odd())
    robot = camera_robot()
    made = loop(RemotePolicy("ws://here", timeout_s=0.2), robot)
    if lasts == 1:
        assert made.run(20).held == {NO_ANSWER: 1}
    else:
        with pytest.raises(RobotError, match=f"{NO_ANSWER}: .*{words}"):
            made.run(100)
    assert np.abs(robot.sent).max() == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"action_low": (float("nan"),) * 2},  # any action would be within such limits
        {"action_low": (0.0,) * 3},
        {"rate_hz": "fast"},
        {
            "observations": {"cam": ObservedKey((40_000, 40_000, 3), "rgb")}
        },  # --resize would take 5 GB
    ],
)
def test_a_server_whose_description_is_impossible_is_refused(network_of, wrong):
    served = Counter()
    served.schema = dataclasses.replace(served.schema, **wrong)
    network_of(served)
    with pytest.raises(RemoteError, match="sent no valid schema: "):
        RemotePolicy("ws://here")


def test_the_text_of_a_server_is_one_line(network_of, monkeypatch):
    monkeypatch.setattr(Session, "_origin", lambda *_: "no\nerror: something else" + " x" * 9999)
    network_of(Counter())
    with pytest.raises(UserError) as raised:
        RemotePolicy("ws://here").start_episode(lang="unknown")
    words = str(raised.value)
    assert words.startswith("ws://here: no error: something else x") and len(words) == 11 + 500


def test_requests_are_numbered_from_one(network_of, monkeypatch):
    network, sent = network_of(Counter()), []

    def connected(*settings):
        end = network.connected(*settings)
        send = end.send

        def noted(data, timeout_s):
            header = decode(b"".join(data))["imitate"]
            sent.append((header["id"], header["kind"]))
            send(data, timeout_s)

        end.send = noted
        return end

    monkeypatch.setattr("imitate.deploy.server.client.connected", connected)
    policy = RemotePolicy("ws://here")
    policy.ping()
    policy.cut_plan()
    policy(observation())
    assert sent == [(1, "ping"), (2, "cut"), (3, "begin"), (4, "observe")]
