"""Server and client over a real socket: sessions, errors, limits, and every fault of a network that we can provoke."""

import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from imitate.deploy.schema import Schema
from imitate.deploy.server import handshake
from imitate.deploy.server import server as module
from imitate.deploy.server.client import RemoteError, RemotePolicy
from imitate.deploy.server.server import PolicyServer
from imitate.errors import ClosedError, UserError
from imitate.system.channel import frames
from imitate.system.channel.frames import BINARY, FULL, NO_MASK, header_of
from imitate.system.channel.messages import decode, encode, encode_parts
from tests.deploy.counting_policy import SCHEMA, Counter, observation
from tests.deploy.in_process import Patient
from tests.refusals import refused

ROOT = Path(__file__).parents[3]
TOKEN = "0123456789abcdef"


def found_again(server):
    """Connect as soon as a session is free."""
    while True:
        with suppress(RemoteError), Patient(server.url) as policy:
            policy(observation())
            return
        time.sleep(0.01)


@pytest.fixture
def policy(server):
    with Patient(server.url) as policy:
        yield policy


def test_a_remote_policy_acts_as_the_policy_does(policy):
    assert (policy.control_freq, policy.obs_keys) == (20.0, ("state", "camera"))
    assert policy(observation())[0] == 0.0  # the first call begins an episode
    policy.start_episode("pick")
    np.testing.assert_array_equal(policy(observation(0.5)), [0.0, 0.5])
    np.testing.assert_array_equal(policy(observation(0.25)), [1.0, 0.25])
    np.testing.assert_array_equal(policy.planned_actions()[:, 0], [1, 2, 3, 4])
    policy.start_episode()
    assert policy(observation())[0] == 0.0
    assert set(policy.timing) == {"total_ms", "queued_ms", "infer_ms"}
    assert policy.ping() >= 0
    policy.cut_plan()
    policy(observation())
    assert policy.planned_actions()[0, 0] == 101.0


def test_images_as_jpeg_arrive_in_their_size(server):
    with Patient(server.url, jpeg=90) as policy:
        np.testing.assert_array_equal(policy(observation(0.5)), [0.0, 0.5])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": np.zeros(3)}, "'state' has shape (3,); wanted (2,)"),
        ({"camera": np.zeros((8, 9, 3), np.uint8)}, "'camera' has shape"),
        ({"state": np.array(["a", "b"])}, "not an array of numbers"),
        ({"camera": None}, "'camera' is missing; wanted state, camera, got state"),
    ],
)
def test_observations_that_do_not_fit_are_refused_before_they_are_sent(policy, change, words):
    given = {k: v for k, v in {**observation(), **change}.items() if v is not None}
    with refused(words, error=UserError):
        policy(given)
    assert policy(observation())[0] == 0.0  # and nothing was lost


def test_an_unknown_instruction_is_refused_with_the_known_ones(policy):
    with refused("known are pick, place", error=UserError):
        policy.start_episode("throw")


def test_each_client_has_its_memory_and_a_failing_prediction_tells_no_path(server, policy):
    with Patient(server.url) as other:
        other(observation())
        other(observation())
        with refused("its log contains the reason", error=UserError) as caught:
            policy(observation(0.0, 13.0))
        assert "secret" not in str(caught.value)
        assert policy(observation())[0] == 0.0
        assert other(observation())[0] == 2.0


# ---- access --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"host": host}, "token") for host in ("0.0.0.0", "", "::", "192.168.0.7")),
        ({"token": "secret"}, "at least 16"),
    ],
)
def test_other_machines_need_a_long_token(options, words):
    with refused(words, error=UserError):
        PolicyServer(Counter(), port=0, **options)


def test_a_wrong_token_is_refused(server_of):
    server = server_of(Counter(), token=TOKEN)
    for token in (None, "wrong", TOKEN[:-1], TOKEN + "x", "ü" * 16):
        with pytest.raises((UserError, UnicodeError), match="token|codec"):
            Patient(server.url, token=token)
    with Patient(server.url, token=TOKEN) as policy:
        policy(observation())
    with connect(server.url, additional_headers={"Authorization": f"Api-Key {TOKEN}"}) as raw:
        assert "imitate" in decode(raw.recv())


def test_more_clients_than_sessions_are_refused_and_may_come_back(server_of):
    server = server_of(Counter(), max_sessions=1)
    with Patient(server.url), pytest.raises(RemoteError, match="all sessions are in use"):
        Patient(server.url)
    found_again(server)


@pytest.mark.parametrize(
    ("request_line", "tokens", "status"),
    [(b"GET /healthz", 0, b" 200 OK"), (b"GET /", 2, b" 401 ")],  # two tokens are none
)
def test_health_needs_no_session_and_all_else_one_token(server_of, request_line, tokens, status):
    server = server_of(Counter(), token=TOKEN)
    header = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
    with socket.create_connection((server.host, server.port), timeout=600) as raw:
        raw.sendall(request_line + b" HTTP/1.1\r\nHost: x\r\n" + tokens * header + b"\r\n")
        assert status in raw.recv(1000)


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_port_that_is_taken_or_none_is_one_line(server, is_taken):
    port, reason = (server.port, "Address already in use") if is_taken else (70_000, "0-65535")
    with pytest.raises(UserError) as caught:
        PolicyServer(Counter(), port=port)
    assert str(caught.value).startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert reason in str(caught.value) and "Errno" not in str(caught.value)


def test_what_a_server_grants_by_default():
    settings = inspect.signature(PolicyServer).parameters.values()
    found = {setting.name: setting.default for setting in settings if setting.name != "served"}
    wanted = {"host": "127.0.0.1", "port": 8000, "token": None, "tls": None, "max_sessions": 64}
    limits = {"max_bytes": 67_108_864, "max_held": 536_870_912}
    assert found == {**wanted, "idle_s": 300.0, **limits}


def test_settings_of_a_client_by_default():
    settings = inspect.signature(RemotePolicy).parameters.values()
    found = {setting.name: setting.default for setting in settings if setting.name != "url"}
    plain = {"token": None, "jpeg": None, "tls": None, "resize": False}
    assert found == {**plain, "timeout_s": 1.0, "connect_s": 5.0}


def test_a_checked_connection_leaves_the_lobby(server):
    with socket.create_connection((server.host, server.port), timeout=600) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in raw.recv(1000)
    until = time.monotonic() + 5.0
    while server.lobby.oldest() and time.monotonic() < until:
        time.sleep(0.005)
    assert server.lobby.oldest() == []


def test_a_failing_listener_is_tried_ten_times_a_second_and_closing_waits_for_its_thread(
    monkeypatch, caplog
):
    tries, ended = [], []

    class Server(PolicyServer):
        def serve_forever(self):
            assert threading.current_thread().daemon
            super().serve_forever()
            time.sleep(0.05)
            ended.append(True)

    def accept(listener):
        tries.append(time.monotonic())
        raise OSError("no file is left")

    monkeypatch.setattr(socket.socket, "accept", accept)
    with Server(Counter(), port=0):
        while len(tries) < 3:
            time.sleep(0.005)
    assert ended == [True]
    assert min(np.diff(tries)) >= 0.09
    assert "a connection was not accepted: no file is left" in caplog.text


class Scripted:
    """A channel that receives one thing after the other, and notes what happens to it."""

    def __init__(self, *script):
        self.script, self.waited_s, self.pings_s = list(script), [], []
        self.ends, self.sent = [], []

    @property
    def emptied(self):
        return not self.script or isinstance(self.script[0], BaseException)

    def recv(self, timeout_s):
        self.waited_s.append(timeout_s)
        found = self.script.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    def send(self, data, timeout_s):
        self.sent.append((decode(data if isinstance(data, bytes) else b"".join(data)), timeout_s))

    def ping(self, timeout_s):
        self.pings_s.append(timeout_s)

    def close(self, code=1000, reason=""):
        self.ends.append((code, reason))

    def abort(self):
        self.ends.append("abort")


CUT = encode({"imitate": {"kind": "cut", "id": 1}})


@pytest.mark.parametrize(
    ("script", "waited_s", "pings", "end"),
    [
        ([TimeoutError()] * 4, [20, 20, 20, 10], 3, (1001, "no message for too long")),
        ([CUT, CUT, CUT, ClosedError("x")], [20, 0, 0, 20], 0, "abort"),
        ([CUT, TimeoutError(), CUT, ClosedError("x")], [20, 20, 20, 20], 1, "abort"),
        ([b"\xc1"], [20], 0, None),
    ],
)
def test_a_session_waits_for_messages_and_reads_those_that_are_there(script, waited_s, pings, end):
    server, channel = PolicyServer(Counter(), port=0, idle_s=70.0), Scripted(*script)
    server.serve(channel)
    server.close()
    assert channel.waited_s == waited_s and channel.pings_s == [10.0] * pings
    assert channel.ends == [end] if end else channel.ends[0][0] == 1007
    assert server.statistics.count("errors") == (1 if end else 2)  # this count is one of them
    assert {seconds for _, seconds in channel.sent} == {10.0}


def test_other_errors_of_a_session_end_it_and_are_raised():
    server, channel = PolicyServer(Counter(), port=0), Scripted(KeyError("a fault"))
    with pytest.raises(KeyError, match="a fault"):
        server.serve(channel)
    server.close()
    assert channel.ends == ["abort"]


# ---- what is not a message --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xc1garbage",
        b"",
        "text",
        encode([1, 2]),
        encode({"imitate": 3}),
        encode({"imitate": {"kind": np.arange(2), "id": 1}}),
        msgpack.packb({"a": {b"__ndarray__": True, b"data": b"", b"dtype": "|O", b"shape": [1]}}),
    ],
)
def test_garbage_ends_its_session_and_no_other(server, policy, garbage):
    policy(observation())
    with connect(server.url) as raw:
        decode(raw.recv())
        raw.send(garbage)
        with pytest.raises(ConnectionClosed) as closed:
            raw.recv()
    assert "/" not in str(closed.value.rcvd.reason)
    assert policy(observation())[0] == 1.0


def test_a_status_that_is_no_number_of_three_digits_is_no_web_server():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            sock, _ = listening.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(b"HTTP/1.1 " + 5000 * b"9" + b" Odd\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionError, match="not from a web server"):
            Patient(f"ws://127.0.0.1:{listening.getsockname()[1]}", timeout_s=60)
        thread.join()


def test_an_oversized_message_is_refused_by_its_length(server_of):
    server = server_of(Counter(), max_bytes=10_000)
    with connect(server.url) as raw:
        decode(raw.recv())
        with pytest.raises(ConnectionClosed):
            raw.send(bytes(20_000))
            raw.recv()


def test_sessions_that_hold_too_many_bytes_together_are_closed_and_free_them(server_of):
    server = server_of(Counter(), max_held=5 * 2**19)
    with connect(server.url) as first, connect(server.url) as second, connect(server.url) as third:
        for number, raw in enumerate((first, second, third)):
            decode(raw.recv())
            raw.socket.sendall(header_of(BINARY, 2**22, NO_MASK) + bytes(10))
            while number < 2 and server.budget.total < (number + 1) * 2**20:
                time.sleep(0.001)
        with pytest.raises(ConnectionClosed) as closed:
            third.recv()
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, FULL)
    while server.budget.total:
        time.sleep(0.001)


@pytest.mark.parametrize(("room", "end"), [(4645, (1013, FULL)), (4646, "abort")])
def test_messages_that_wait_together_are_within_the_budget(room, end):
    server = PolicyServer(Counter(), port=0, max_held=room)
    channel = Scripted(CUT, CUT, ClosedError("x"))
    server.serve(channel)
    server.close()
    assert channel.ends == [end] and server.budget.total == 0


def test_unknown_kinds_are_one_line_and_the_session_goes_on(server):
    with connect(server.url) as raw:
        decode(raw.recv())
        raw.send(encode({"imitate": {"kind": "dance", "id": 3}}))
        reply = decode(raw.recv())
        assert reply["imitate"] == {"kind": "error", "id": 3}
        assert "'dance' is unknown" in reply["error"]
        raw.send(encode({"imitate": {"kind": "observe", "id": 4}, "obs": 7}))
        assert "map of arrays" in decode(raw.recv())["error"]
        raw.send(encode({"imitate": {"kind": "ping", "id": 5, "t": 1.5}}))
        assert decode(raw.recv())["imitate"] == {"kind": "pong", "id": 5, "t": 1.5}


def test_a_client_of_another_version_is_told_so(monkeypatch, server):
    monkeypatch.setattr("imitate.deploy.server.client.PROTOCOL", 2)
    with pytest.raises(UserError, match="uses version 1 of the protocol .*this client version 2"):
        Patient(server.url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        *((url, "is not the address") for url in ("localhost:8000", "http://localhost", "ws://", "nonsense")),
        ("ws://127.0.0.1:1", "was not reached"),
    ],
)  # fmt: skip
def test_what_is_no_address_and_nobody_there_are_one_line(url, words):
    with refused(words, error=RemoteError if words == "was not reached" else UserError):
        Patient(url)


# ---- faults of another process -------------------------------------------------------------------

CHILD = """
import sys, time
from imitate.deploy.schema import Schema
from imitate.deploy.server.server import PolicyServer
from tests.deploy.in_process import Patient
from tests.refusals import refused
from tests.deploy.counting_policy import Counter
server = PolicyServer(Counter(float(sys.argv[2])), port=int(sys.argv[1]))
print(server.port, flush=True)
server.serve_forever()
"""


ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def child():
    """Starts servers in processes of their own: child(port=0, seconds=0.0) -> process, port."""
    started = []

    def start(port=0, seconds=0.0):
        words = [sys.executable, "-c", CHILD, str(port), str(seconds)]
        started.append(subprocess.Popen(words, env=ENVIRON, stdout=subprocess.PIPE, text=True))
        return started[-1], int(started[-1].stdout.readline())

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def test_a_killed_server_is_noticed_at_once_and_found_again(child):
    process, port = child()
    with Patient(f"ws://127.0.0.1:{port}") as policy:
        policy.start_episode("pick")
        policy(observation())
        process.kill()
        process.wait()
        with pytest.raises(RemoteError):
            policy(observation())
        with pytest.raises(RemoteError, match="was not reached"):
            policy(observation())
        child(port)
        np.testing.assert_array_equal(policy(observation(0.5)), [0.0, 0.5])


def test_a_server_that_stops_reading_does_not_block_a_call(child, monkeypatch):
    process, port = child()
    with Patient(f"ws://127.0.0.1:{port}", timeout_s=0.3) as policy:
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(
            "imitate.deploy.server.client.encode_parts",
            lambda message: encode_parts({**message, "x": bytes(50_000_000)}),
        )
        with pytest.raises(RemoteError, match="does not read"):
            policy(observation())


CLIENT = """
import sys
import threading
from imitate.deploy.server.client import RemotePolicy
policy = RemotePolicy(sys.argv[1], connect_s=600)
print("in", flush=True)
sys.stdin.read()
"""


def test_a_killed_client_frees_its_session(server_of):
    server = server_of(Counter(), max_sessions=1)
    pipes = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE, "text": True}
    words = [sys.executable, "-c", CLIENT, server.url]
    with subprocess.Popen(words, env=ENVIRON, **pipes) as client:
        assert client.stdout.readline() == "in\n"
        client.kill()
        client.wait()
        found_again(server)


def test_the_schema_has_a_hash_of_its_content():
    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA
    assert Schema.from_dict(SCHEMA.to_dict()).hash == SCHEMA.hash
    assert replace(SCHEMA, rate_hz=10.0).hash != SCHEMA.hash


@pytest.mark.parametrize(("local", "keys"), [(True, {NO_MASK}), (False, None)])
def test_each_frame_has_a_new_key_except_on_this_machine(local, keys, monkeypatch, server):
    if not local:
        monkeypatch.setattr(handshake, "_LOCAL", frozenset())
    used = []

    def noted(kind, size, mask):
        used.append(mask)
        return header_of(kind, size, mask)

    monkeypatch.setattr(frames, "header_of", noted)
    channel = handshake.connected(server.url, 600, 2**22, {})
    for _ in range(3):
        channel.send(encode({"imitate": {"kind": "ping", "id": 1}}), 600)
        channel.recv(600)
    channel.abort()
    ours = [mask for mask in used if mask is not None]
    assert set(ours) == keys if local else len(set(ours)) == 3


def test_a_signal_that_wakes_another_thread_ends_the_server():
    """As one that comes between the interpreter's last look and the call that waits."""

    def end(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, end)
    server = PolicyServer(Counter(), port=0)
    was_late = threading.Event()

    def end_late():
        was_late.set()
        server.close()

    late = threading.Timer(60, end_late)
    wake = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
    late.start()
    wake.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            server.serve_forever()
        assert not was_late.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
        late.cancel()
        server.close()


# ---- limits ------------------------------------------------------------------------------------------


def test_times_and_counts_of_the_server():
    own = (module.MAX_WAITING, module.MAX_TOGETHER, module.ACCEPT_S)
    times = (module.HANDSHAKE_S, module.SEND_S, module.PING_S)
    assert (own, times) == ((32, 64, 0.5), (10.0, 10.0, 20.0))


@pytest.mark.parametrize(("size", "fits"), [(15, False), (16, True)])
def test_a_token_has_sixteen_characters(size, fits):
    if fits:
        PolicyServer(Counter(), "0.0.0.0", 0, token="x" * size).close()
        return
    with refused(f"the token has {size} characters, but needs at least 16", error=UserError):
        PolicyServer(Counter(), port=0, token="x" * size)


def test_addresses_for_clients():
    with PolicyServer(Counter(), port=0) as server:
        port = server.port
        assert server.url == f"ws://127.0.0.1:{port}"
        server.host = "::1"
        assert server.url == f"ws://[::1]:{port}"
        server._tls = object()
        assert server.url == f"wss://[::1]:{port}"


@pytest.mark.parametrize(
    ("header", "known"),
    [
        (f"Bearer {TOKEN}", True),
        (f"api-KEY  {TOKEN} ", True),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        ("Bearer", False),
        ("", False),
    ],
)
def test_which_headers_have_the_token(header, known):
    with PolicyServer(Counter(), port=0, token=TOKEN) as server:
        assert server.knows_token(header) is known
    with PolicyServer(Counter(), port=0) as server:
        assert server.knows_token(header) is True


def test_clients_without_the_token_or_a_free_session_are_counted(server_of):
    server = server_of(Counter(), token=TOKEN, max_sessions=1)
    with pytest.raises(UserError):
        Patient(server.url, token="x" * 16)
    assert server.statistics.count("refused") == 2  # this count is one of them
    with Patient(server.url, token=TOKEN), pytest.raises(RemoteError):
        Patient(server.url, token=TOKEN)
    assert server.statistics.count("refused") == 4


def test_a_connection_without_a_thread_is_closed(server, monkeypatch, caplog):
    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        address = (server.host, server.port)
        with socket.create_connection(address, timeout=600) as raw, suppress(ConnectionResetError):
            assert raw.recv(10) == b""
        while server.lobby.oldest():  # it is left a moment later
            time.sleep(0.005)
    assert "a connection was not accepted: can't start new thread" in caplog.text
    with Patient(server.url) as policy:
        policy(observation())
