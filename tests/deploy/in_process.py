"""Connections between client and server within one process, in virtual time, with the faults of networks."""

import contextlib
import functools
import math
import threading

import pytest

from imitate.deploy.server.client import RemotePolicy
from imitate.deploy.server.server import PolicyServer
from imitate.errors import ClosedError
from imitate.system import clock
from tests.deploy.counting_policy import Counter, observation
from tests.deploy.fake_robot import FakeRobot


class Network:
    """Connects :class:`RemotePolicy` of any address to ``serve``, which has a thread for each connection.

    Attributes:
        delay_s: from sending to receiving a message.
        stalled: directions (``up`` to the server, ``down``) in which messages are lost.
        instead: what comes in place of the server's messages; ``ClosedError``: the end of the connection.
        is_up: whether anybody listens.
        handshake_s: seconds of a handshake.
        room: messages in each direction that wait to be read before `send` waits.
    """

    def __init__(self, serve):
        self.serve = serve
        self.delay_s, self.stalled, self.instead, self.is_up = 0.0, set(), None, True
        self.handshake_s, self.room = 0.0, {"up": 1000, "down": 1000}
        self.ends = []

    def connected(self, url="ws://here", timeout_s=600.0, *_):
        """In place of imitate.deploy.server.handshake.connected."""
        clock.sleep(min(self.handshake_s, timeout_s))
        if not self.is_up or self.handshake_s >= timeout_s:
            raise OSError("nobody listens")
        near, far = End(self, "up"), End(self, "down")
        near.other, far.other = far, near
        self.ends += [near, far]
        threading.Thread(target=self.serve, args=(far,), daemon=True).start()
        return near

    def close(self):
        """End all connections, as a server does that ends or is killed."""
        self.is_up = False
        for end in self.ends:
            end.abort()


class End:
    """One end of a connection: the methods of imitate.system.channel.frames.Channel."""

    def __init__(self, network, direction):
        self._network, self._direction = network, direction
        self.inbox, self._changed, self.reason = [], threading.Condition(), None
        self.other = None

    def send(self, data, timeout_s):
        network, inbox = self._network, self.other.inbox
        room = network.room[self._direction]
        if not self._wait(lambda: len(inbox) < room or self.reason, timeout_s):
            raise TimeoutError("the other side does not read")
        self._refuse_if_ended()
        if self._direction in network.stalled:
            return
        if self._direction == "down" and network.instead is not None:
            data = network.instead
            if data is ClosedError:
                self.close(1006, "the connection was lost")
                return
        data = b"".join(data) if isinstance(data, list) else data
        data = data if isinstance(data, str) else memoryview(bytes(data))
        inbox.append((clock.now() + network.delay_s, data))

    def recv(self, timeout_s):
        deadline = clock.now() + timeout_s
        self._wait(lambda: self.inbox or self.reason, timeout_s)
        self._refuse_if_ended()
        due = self.inbox[0][0] if self.inbox else math.inf
        self._wait(lambda: self.reason, max(min(due, deadline) - clock.now(), 0.0))
        self._refuse_if_ended()
        if due > deadline:
            raise TimeoutError("nothing was received in time")
        return self.inbox.pop(0)[1]

    def _wait(self, predicate, timeout_s):
        with self._changed:
            return clock.wait_for(self._changed, predicate, timeout_s)

    def _refuse_if_ended(self):
        if self.reason is not None:
            raise ClosedError(self.reason)

    @property
    def emptied(self):
        return not self.inbox or self.inbox[0][0] > clock.now()

    def ping(self, timeout_s):
        pass

    def close(self, code=1000, reason=""):
        for end in (self, self.other):
            end.reason = end.reason or f"the connection was ended: {reason or code}"

    def abort(self):
        self.close(1006, "the connection was lost")


@pytest.fixture
def network_of(monkeypatch, virtual_time):
    """Makes networks to a policy, or to a function that serves a connection; the last one is what clients reach."""
    made = []

    def make(served, **options):
        if callable(served):
            network = Network(served)
        else:
            server = PolicyServer(served, port=0, **options)
            network = Network(server.serve)
            made.append(server.close)
        made.append(network.close)
        monkeypatch.setattr("imitate.deploy.server.client.connected", network.connected)
        return network

    yield make
    for close in reversed(made):
        close()


@pytest.fixture
def server_of():
    """Starts servers of a policy on real sockets, which are closed at the end."""
    with contextlib.ExitStack() as servers:
        yield lambda served, **options: servers.enter_context(
            PolicyServer(served, **{"port": 0, **options})
        )


@pytest.fixture
def server(server_of):
    return server_of(Counter())


def camera_robot():
    """A robot with the observations of the counting policy."""
    robot = FakeRobot()
    robot.observation_shapes = {"state": (2,), "camera": (8, 8, 3)}
    robot.values = observation(0.5)
    return robot


Patient = functools.partial(RemotePolicy, timeout_s=600.0, connect_s=600.0)
"""A client over real sockets, that no busy machine makes impatient."""
