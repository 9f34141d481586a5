"""Faults of the network and of servers: the robot holds, then rests, and nothing stale is sent."""

import threading
import time

import numpy as np
import pytest
from websockets.sync.client import connect

from benchmarks.fault_proxy import Proxy
from imitate.deploy.asynchronous import AsynchronousPolicy
from imitate.deploy.client import RemoteError, RemotePolicy
from imitate.deploy.frames import header_of
from imitate.deploy.loop import ControlLoop, Safety
from imitate.deploy.robot import RobotError
from imitate.deploy.server import PolicyServer
from imitate.deploy.wire import decode, encode
from tests.deploy.counting_policy import Counter, observation
from tests.deploy.test_remote_chunks import camera_robot

pytestmark = pytest.mark.alone
GARBAGE = header_of(2, 5, None) + b"\xc1abcd"
OVERSIZED = header_of(2, 2**40, None) + b"abc"
NO_FRAME = b"HTTP/1.1 500 Oh no\r\n\r\n"


@pytest.fixture
def proxy():
    with PolicyServer(Counter(), port=0) as server, Proxy(server.port) as proxy:
        yield proxy


def broken(proxy, fault):
    if fault in ("up", "down"):
        proxy.stalled.add(fault)
    else:
        proxy.instead = fault
        proxy.stalled.add("up")  # the next requests get nothing either


@pytest.mark.parametrize("fault", ["up", "down", GARBAGE, OVERSIZED, NO_FRAME])
@pytest.mark.parametrize("background", [False, True])
def test_the_robot_holds_and_then_rests(proxy, fault, background):
    robot, at = camera_robot(), []

    def on_step(step):
        if len(robot.times("send")) == 10 and not at:
            at.append(time.monotonic())
            broken(proxy, fault)

    with RemotePolicy(proxy.url, timeout_s=0.2) as remote:
        policy = AsynchronousPolicy(remote, 20.0, execute=2) if background else remote
        safety = Safety(late=0, frozen=0, hold_s=0.4, watchdog_s=2.0)
        loop = ControlLoop(robot, policy, 20.0, safety=safety, on_step=on_step)
        with pytest.raises(RobotError, match="the server does not answer|nothing is planned"):
            loop.run(200)
        if background:
            policy.close()
    assert len(robot.times("send")) <= 10 + (
        4 if background else 1
    )  # what was planned, or had come
    assert robot.times("hold")[-1] > at[0]
    assert robot.times("stop")[0] - at[0] < 2.0
    assert robot.last_calls()[-1] == "stop"


@pytest.mark.parametrize("fault", ["up", "down", GARBAGE, OVERSIZED, NO_FRAME])
def test_afterwards_the_next_call_connects_anew(proxy, fault):
    with RemotePolicy(proxy.url, timeout_s=0.3) as policy:
        assert policy(observation(0.1))[0] == 0.0
        broken(proxy, fault)
        if fault not in ("up", "down"):
            proxy.stalled.clear()
        began = time.monotonic()
        with pytest.raises(RemoteError):
            policy(observation(0.2))
        assert time.monotonic() - began < 1.0
        proxy.stalled.clear()
        np.testing.assert_allclose(policy(observation(0.3)), [0.0, 0.3], rtol=1e-6)


def test_replies_that_are_late_by_the_network_are_never_taken_for_the_next(proxy):
    with RemotePolicy(proxy.url, timeout_s=0.3) as policy:
        policy(observation(0.1))
        proxy.delay_s = 0.5
        for value in (0.2, 0.3):
            with pytest.raises(RemoteError):
                policy(observation(value))
        proxy.delay_s = 0.0
        time.sleep(0.6)
        np.testing.assert_allclose(policy(observation(0.4)), [0.0, 0.4], rtol=1e-6)


def test_a_client_that_does_not_read_delays_nobody_else():
    class Wordy(Counter):
        def predict(self, asks):
            replies = super().predict(asks)
            for ask, reply in zip(asks, replies, strict=True):
                if ask.obs["state"][1] == 7.0:
                    reply.chunk = np.zeros((200_000, 2))
            return replies

    with (
        PolicyServer(Wordy(), port=0) as server,
        connect(server.url, max_size=None, close_timeout=0.2) as slow,
    ):
        decode(slow.recv())
        message = {"imitate": {"kind": "cut", "id": 0}}

        def flood():
            for number in range(20):
                ask = {"kind": "observe", "id": number}
                slow.send(encode({"imitate": ask, "obs": observation(0, 7.0)}))
                slow.send(encode(message))

        thread = threading.Thread(target=flood)
        thread.start()
        with RemotePolicy(server.url, timeout_s=2.0) as policy:
            took = []
            for step in range(50):
                began = time.monotonic()
                assert policy(observation(0.5))[0] == step
                took.append(time.monotonic() - began)
        assert np.median(took) < 0.1
        slow.close()
        thread.join(10)
