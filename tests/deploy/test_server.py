"""Server and client over a real socket: sessions, errors, limits, and every fault of a network that we can provoke."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.utils import accept_key

from imitate.deploy.client import RemoteError, RemotePolicy
from imitate.deploy.loop import ControlLoop, Safety
from imitate.deploy.robot import Observation, RobotError
from imitate.deploy.server import PolicyServer
from imitate.deploy.wire import decode, encode
from imitate.errors import UserError
from tests.deploy.counting_policy import SCHEMA, Counter, observation
from tests.deploy.fake_robot import FakeRobot

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef"


@pytest.fixture
def server():
    with PolicyServer(Counter(), port=0) as server:
        yield server


def test_a_remote_policy_acts_as_the_policy_does(server):
    with RemotePolicy(server.url) as policy:
        assert policy.control_freq == 20.0
        assert policy.obs_keys == ("state", "camera")
        policy.start_episode("pick")
        np.testing.assert_array_equal(policy(observation(0.5)), [0.0, 0.5])
        np.testing.assert_array_equal(policy(observation(0.25)), [1.0, 0.25])
        np.testing.assert_array_equal(policy.planned_actions()[:, 0], [1, 2, 3, 4])
        policy.start_episode()
        assert policy(observation())[0] == 0.0
        assert set(policy.timing) == {"total_ms", "queued_ms", "infer_ms"}
        assert policy.ping() < 1000


def test_without_start_episode_the_first_call_begins_one(server):
    with RemotePolicy(server.url) as policy:
        assert policy(observation())[0] == 0.0


def test_a_cut_plan_is_planned_anew(server):
    with RemotePolicy(server.url) as policy:
        policy(observation())
        policy.cut_plan()
        policy(observation())
        assert policy.planned_actions()[0, 0] == 101.0


def test_each_client_has_its_own_memory(server):
    with RemotePolicy(server.url) as first, RemotePolicy(server.url) as second:
        first(observation())
        first(observation())
        assert second(observation())[0] == 0.0
        assert first(observation())[0] == 2.0


def test_images_as_jpeg_arrive_in_their_size(server):
    with RemotePolicy(server.url, jpeg=90) as policy:
        np.testing.assert_array_equal(policy(observation(0.5)), [0.0, 0.5])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": np.zeros(3)}, r"'state' has shape \(3,\); wanted \(2,\)"),
        ({"camera": np.zeros((8, 9, 3), np.uint8)}, "'camera' has shape"),
        ({"state": np.array(["a", "b"])}, "no array of numbers"),
    ],
)
def test_observations_that_do_not_fit_are_refused_before_they_are_sent(server, change, words):
    with RemotePolicy(server.url) as policy:
        with pytest.raises(UserError, match=words):
            policy({**observation(), **change})
        with pytest.raises(UserError, match="'camera' is missing; wanted state, camera, got state"):
            policy({"state": np.zeros(2)})
        assert policy(observation())[0] == 0.0  # and nothing was lost


def test_an_unknown_instruction_is_refused_with_the_known_ones(server):
    with (
        RemotePolicy(server.url) as policy,
        pytest.raises(UserError, match="known are pick, place"),
    ):
        policy.start_episode("throw")


def test_a_failing_prediction_tells_no_path_and_ends_nothing(server):
    with RemotePolicy(server.url) as policy, RemotePolicy(server.url) as other:
        other(observation())
        with pytest.raises(UserError, match="its log says why") as caught:
            policy(observation(0.0, 13.0))
        assert "secret" not in str(caught.value)
        assert policy(observation())[0] == 0.0
        assert other(observation())[0] == 1.0


def test_a_late_answer_is_never_taken_for_the_next(server_of):
    counter = Counter()
    server = server_of(counter)
    with RemotePolicy(server.url, timeout_s=0.3) as policy:
        policy(observation(0.1))
        counter.seconds = 0.6
        with pytest.raises(RemoteError, match="no answer within 0.3 s"):
            policy(observation(0.2))
        counter.seconds = 0.0
        time.sleep(0.5)
        np.testing.assert_allclose(policy(observation(0.3)), [0.0, 0.3], rtol=1e-6)


@pytest.fixture
def server_of():
    servers = []

    def make(served, **rest):
        servers.append(PolicyServer(served, port=rest.pop("port", 0), **rest).__enter__())
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.mark.alone
@pytest.mark.alone
def test_clients_wait_for_one_prediction_beside_their_own(server_of):
    counter = Counter(seconds=0.1)
    server = server_of(counter)
    policies = [RemotePolicy(server.url, timeout_s=5.0) for _ in range(8)]
    try:
        for policy in policies:
            policy.start_episode()
        gate = threading.Barrier(8)

        def act(policy):
            gate.wait(5)
            policy(observation())
            return policy.timing

        with ThreadPoolExecutor(8) as pool:
            timings = list(pool.map(act, policies))
        # One prediction that runs already, then their own: never a queue of eight.
        assert max(t["queued_ms"] for t in timings) < 190
        assert sum(counter.batches) == 8
        assert len(counter.batches) <= 3
    finally:
        for policy in policies:
            policy.close()


def test_of_waiting_observations_the_newest_is_answered(server_of):
    server = server_of(Counter(seconds=0.2))
    with connect(server.url) as raw:
        decode(raw.recv())
        for number in range(1, 6):
            raw.send(
                encode({"imitate": {"kind": "observe", "id": number}, "obs": observation(number)})
            )
            if number == 1:
                time.sleep(0.1)  # its prediction has begun
        replies = [decode(raw.recv(timeout=5)) for _ in range(5)]
    kinds = {r["imitate"]["id"]: r["imitate"]["kind"] for r in replies}
    assert kinds == {1: "action", 2: "dropped", 3: "dropped", 4: "dropped", 5: "action"}


# ---- access --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.168.0.7"])
def test_other_machines_need_a_token(host):
    with pytest.raises(UserError, match="token"):
        PolicyServer(Counter(), host=host, port=0)


def test_a_short_token_is_refused():
    with pytest.raises(UserError, match="at least 16"):
        PolicyServer(Counter(), port=0, token="secret")


def test_a_wrong_token_is_refused(server_of):
    server = server_of(Counter(), token=TOKEN)
    for token in (None, "wrong", TOKEN[:-1], TOKEN + "x", "ü" * 16):
        with pytest.raises((UserError, UnicodeError), match="token|codec"):
            RemotePolicy(server.url, token=token)
    with RemotePolicy(server.url, token=TOKEN) as policy:
        policy(observation())
    with connect(server.url, additional_headers={"Authorization": f"Api-Key {TOKEN}"}) as raw:
        assert "imitate" in decode(raw.recv())


def test_more_clients_than_sessions_are_refused_and_may_come_back(server_of):
    server = server_of(Counter(), max_sessions=1)
    with RemotePolicy(server.url), pytest.raises(RemoteError, match="all sessions are taken"):
        RemotePolicy(server.url)
    deadline = time.monotonic() + 5
    while True:
        try:
            RemotePolicy(server.url).close()
            break
        except RemoteError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_silent_session_ends(server_of):
    server = server_of(Counter(), idle_s=0.2)
    with connect(server.url) as raw:
        decode(raw.recv())
        with pytest.raises(ConnectionClosed):
            raw.recv(timeout=5)


def test_health_is_asked_without_a_session(server):
    with socket.create_connection((server.host, server.port)) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        raw.settimeout(5)
        assert b"200 OK" in raw.recv(1000)


def test_two_tokens_are_none(server_of):
    server = server_of(Counter(), token=TOKEN)
    with socket.create_connection((server.host, server.port)) as raw:
        header = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + 2 * header + b"\r\n")
        raw.settimeout(5)
        assert b" 401 " in raw.recv(1000)


def test_a_taken_port_is_one_line(server):
    with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        PolicyServer(Counter(), port=server.port)


# ---- what is no message --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xc1garbage",
        b"",
        "text",
        encode([1, 2]),
        encode({"imitate": 3}),
        msgpack.packb({"a": {b"__ndarray__": True, b"data": b"", b"dtype": "|O", b"shape": [1]}}),
    ],
)
def test_garbage_ends_its_session_and_no_other(server, garbage):
    with RemotePolicy(server.url) as policy:
        policy(observation())
        with connect(server.url) as raw:
            decode(raw.recv())
            raw.send(garbage)
            with pytest.raises(ConnectionClosed) as closed:
                raw.recv(timeout=5)
        assert "/" not in str(closed.value.rcvd.reason)
        assert policy(observation())[0] == 1.0


def test_an_oversized_message_is_refused_by_its_length(server_of):
    server = server_of(Counter(), max_bytes=10_000)
    with connect(server.url) as raw:
        decode(raw.recv())
        with pytest.raises(ConnectionClosed):
            raw.send(bytes(20_000))
            raw.recv(timeout=5)


def test_unknown_kinds_are_one_line_and_the_session_goes_on(server):
    with connect(server.url) as raw:
        decode(raw.recv())
        raw.send(encode({"imitate": {"kind": "dance", "id": 3}}))
        reply = decode(raw.recv(timeout=5))
        assert reply["imitate"] == {"kind": "error", "id": 3}
        assert "'dance' is unknown" in reply["error"]
        raw.send(encode({"imitate": {"kind": "observe", "id": 4}, "obs": 7}))
        assert "map of arrays" in decode(raw.recv(timeout=5))["error"]
        raw.send(encode({"imitate": {"kind": "ping", "id": 5, "t": 1.5}}))
        assert decode(raw.recv(timeout=5))["imitate"] == {"kind": "pong", "id": 5, "t": 1.5}


def test_a_client_of_another_version_is_told_so(monkeypatch, server):
    monkeypatch.setattr("imitate.deploy.client.PROTOCOL", 2)
    with pytest.raises(UserError, match="speaks version 1 of the protocol .*this client version 2"):
        RemotePolicy(server.url)


@pytest.mark.parametrize("url", ["localhost:8000", "http://localhost", "ws://", "nonsense"])
def test_what_is_no_address_is_one_line(url):
    with pytest.raises(UserError, match="is no address of a policy server"):
        RemotePolicy(url)


@pytest.mark.alone
def test_nobody_there_is_one_line_within_the_deadline():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(RemoteError, match="was not reached"):
        RemotePolicy(f"ws://127.0.0.1:{port}", connect_s=1.0)
    assert time.monotonic() - began < 2.0


@pytest.mark.alone
def test_somebody_who_never_answers_is_left_within_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(RemoteError, match="was not reached"):
            RemotePolicy(f"ws://127.0.0.1:{silent.getsockname()[1]}", connect_s=0.5)
        assert time.monotonic() - began < 2.0


@pytest.mark.alone
def test_a_slow_handshake_leaves_less_time_for_the_schema():
    """A server that accepts a client late and then says nothing costs one deadline, not two."""
    with socket.create_server(("127.0.0.1", 0)) as slow:

        def accept():
            sock, _ = slow.accept()
            request = sock.recv(65536).decode()
            key = request.split("Sec-WebSocket-Key: ")[1].split("\r\n")[0]
            time.sleep(0.8)
            sock.sendall(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {accept_key(key)}\r\n\r\n".encode()
            )
            sock.recv(1)
            sock.close()

        thread = threading.Thread(target=accept)
        thread.start()
        began = time.monotonic()
        with pytest.raises(RemoteError, match="sent no schema"):
            RemotePolicy(f"ws://127.0.0.1:{slow.getsockname()[1]}", connect_s=1.0)
        assert time.monotonic() - began < 1.5
        thread.join()


# ---- faults of another process -------------------------------------------------------------------

CHILD = """
import sys, time
from imitate.deploy.server import PolicyServer
from tests.deploy.counting_policy import Counter
server = PolicyServer(Counter(float(sys.argv[2])), port=int(sys.argv[1]))
print(server.port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def child():
    """Starts servers in processes of their own: child(port=0, seconds=0.0) -> process, port."""
    started = []

    def start(port=0, seconds=0.0):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(port), str(seconds)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.mark.alone
def test_a_killed_server_is_noticed_at_once_and_found_again(child):
    process, port = child()
    with RemotePolicy(f"ws://127.0.0.1:{port}", timeout_s=1.0) as policy:
        policy.start_episode("pick")
        policy(observation())
        process.kill()
        process.wait(10)
        began = time.monotonic()
        with pytest.raises(RemoteError):
            policy(observation())
        assert time.monotonic() - began < 0.5
        with pytest.raises(RemoteError, match="was not reached"):
            policy(observation())
        child(port)
        np.testing.assert_array_equal(policy(observation(0.5)), [0.0, 0.5])


@pytest.mark.alone
def test_a_stopped_server_costs_one_deadline(child):
    process, port = child()
    with RemotePolicy(f"ws://127.0.0.1:{port}", timeout_s=0.3) as policy:
        policy(observation())
        process.send_signal(signal.SIGSTOP)
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(RemoteError):
                policy(observation())
            assert time.monotonic() - began < 0.6
        process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + 5
        while True:
            try:
                assert policy(observation(0.5))[0] == 0.0
                break
            except RemoteError:
                assert time.monotonic() < deadline


@pytest.mark.alone
def test_a_robot_whose_server_stops_holds_at_once_and_rests_after_a_second(child):
    """The peers' clients block for 45 seconds and more, with the last action in force."""
    process, port = child()
    robot, sent = FakeRobot(), []

    def on_step(step):
        sent.append(step)
        if len(sent) == 10:
            process.send_signal(signal.SIGSTOP)

    with RemotePolicy(f"ws://127.0.0.1:{port}", timeout_s=0.1) as policy:
        robot.observation_shapes = {"state": (2,), "camera": (8, 8, 3)}
        see = robot.observe
        robot.observe = lambda: Observation(observation(), see().stamp_s)
        safety = Safety(late=0, frozen=0, hold_s=0.5)
        loop = ControlLoop(robot, policy, 20.0, safety=safety, on_step=on_step)
        with pytest.raises(RobotError, match="the server does not answer"):
            loop.run(100)
    last = robot.times("send")[-1]
    assert len(robot.times("send")) == 10
    assert robot.times("hold")[0] - last < 0.3
    assert robot.times("stop")[0] - last < 1.2


@pytest.mark.alone
def test_a_server_that_stops_reading_does_not_block_a_call(child, monkeypatch):
    process, port = child()
    with RemotePolicy(f"ws://127.0.0.1:{port}", timeout_s=0.3) as policy:
        policy(observation())
        process.send_signal(signal.SIGSTOP)
        big = {**observation(), "camera": np.zeros((8, 8, 3), np.uint8)}
        monkeypatch.setattr(
            "imitate.deploy.client.encode",
            lambda message: encode({**message, "x": bytes(50_000_000)}),
        )
        began = time.monotonic()
        with pytest.raises(RemoteError):
            policy(big)
        assert time.monotonic() - began < 2.0


def test_a_killed_client_frees_its_session(server_of):
    server = server_of(Counter(), max_sessions=1)
    client = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom imitate.deploy.client import RemotePolicy\n"
            "p = RemotePolicy(sys.argv[1]); print('in', flush=True); sys.stdin.read()",
            server.url,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout.readline() == "in\n"
        client.kill()
        client.wait(10)
        deadline = time.monotonic() + 5
        while True:
            try:
                with RemotePolicy(server.url) as policy:
                    policy(observation())
                break
            except RemoteError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        client.stdout.close()
        client.stdin.close()


# ---- openpi --------------------------------------------------------------------------------------


def test_an_openpi_client_gets_chunks_that_are_planned_anew(server):
    with connect(server.url, compression=None, max_size=None) as raw:
        assert isinstance(decode(raw.recv()), dict)
        for step in range(2):
            raw.send(encode({**observation(0.5), "prompt": "pick", "unknown": 1}))
            reply = decode(raw.recv(timeout=5))
            assert reply["actions"].shape == (4, 2)
            assert reply["actions"][0, 0] == step + 100 * (step + 1)
            assert "infer_ms" in reply["server_timing"]
        assert "prev_total_ms" in reply["server_timing"]
        raw.send(encode({**observation(), "prompt": "throw"}))
        assert "known are pick, place" in raw.recv(timeout=5)  # text: an error
        raw.send(encode({"state": np.zeros(2)}))
        assert "'camera' is missing" in raw.recv(timeout=5)


def test_the_schema_has_a_hash_of_its_content():
    from dataclasses import replace

    from imitate.deploy.schema import Schema

    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA
    assert Schema.from_dict(SCHEMA.to_dict()).hash == SCHEMA.hash
    assert replace(SCHEMA, rate_hz=10.0).hash != SCHEMA.hash


def test_the_client_needs_no_torch():
    code = (
        "import sys, imitate.deploy.client, imitate.deploy.chunks, imitate.deploy.limits\n"
        "bad = [m for m in ('torch', 'h5py', 'gymnasium', 'pydantic') if m in sys.modules]\n"
        "assert not bad, bad"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
