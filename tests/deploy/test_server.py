"""Server and client over a real socket: sessions, errors, limits, and every fault of a network that we can provoke."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from imitate.deploy.client import RemoteError
from imitate.deploy.server import PolicyServer
from imitate.deploy.wire import decode, encode
from imitate.errors import UserError
from tests.deploy.counting_policy import SCHEMA, Counter, observation
from tests.deploy.in_process import Patient

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef"


def found_again(server):
    """Connect as soon as a session is free."""
    while True:
        with suppress(RemoteError), Patient(server.url) as policy:
            policy(observation())
            return
        time.sleep(0.01)


@pytest.fixture
def server():
    with PolicyServer(Counter(), port=0) as server:
        yield server


def test_a_remote_policy_acts_as_the_policy_does(server):
    with Patient(server.url) as policy:
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
    with Patient(server.url) as policy:
        assert policy(observation())[0] == 0.0


def test_a_cut_plan_is_planned_anew(server):
    with Patient(server.url) as policy:
        policy(observation())
        policy.cut_plan()
        policy(observation())
        assert policy.planned_actions()[0, 0] == 101.0


def test_each_client_has_its_own_memory(server):
    with Patient(server.url) as first, Patient(server.url) as second:
        first(observation())
        first(observation())
        assert second(observation())[0] == 0.0
        assert first(observation())[0] == 2.0


def test_images_as_jpeg_arrive_in_their_size(server):
    with Patient(server.url, jpeg=90) as policy:
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
    with Patient(server.url) as policy:
        with pytest.raises(UserError, match=words):
            policy({**observation(), **change})
        with pytest.raises(UserError, match="'camera' is missing; wanted state, camera, got state"):
            policy({"state": np.zeros(2)})
        assert policy(observation())[0] == 0.0  # and nothing was lost


def test_an_unknown_instruction_is_refused_with_the_known_ones(server):
    with (
        Patient(server.url) as policy,
        pytest.raises(UserError, match="known are pick, place"),
    ):
        policy.start_episode("throw")


def test_a_failing_prediction_tells_no_path_and_ends_nothing(server):
    with Patient(server.url) as policy, Patient(server.url) as other:
        other(observation())
        with pytest.raises(UserError, match="its log says why") as caught:
            policy(observation(0.0, 13.0))
        assert "secret" not in str(caught.value)
        assert policy(observation())[0] == 0.0
        assert other(observation())[0] == 1.0


@pytest.fixture
def server_of():
    servers = []

    def make(served, **rest):
        servers.append(PolicyServer(served, port=rest.pop("port", 0), **rest).__enter__())
        return servers[-1]

    yield make
    for server in servers:
        server.close()


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
            Patient(server.url, token=token)
    with Patient(server.url, token=TOKEN) as policy:
        policy(observation())
    with connect(server.url, additional_headers={"Authorization": f"Api-Key {TOKEN}"}) as raw:
        assert "imitate" in decode(raw.recv())


def test_more_clients_than_sessions_are_refused_and_may_come_back(server_of):
    server = server_of(Counter(), max_sessions=1)
    with Patient(server.url), pytest.raises(RemoteError, match="all sessions are taken"):
        Patient(server.url)
    found_again(server)


def test_health_is_asked_without_a_session(server):
    with socket.create_connection((server.host, server.port)) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        raw.settimeout(600)
        assert b"200 OK" in raw.recv(1000)


def test_two_tokens_are_none(server_of):
    server = server_of(Counter(), token=TOKEN)
    with socket.create_connection((server.host, server.port)) as raw:
        header = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + 2 * header + b"\r\n")
        raw.settimeout(600)
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
    with Patient(server.url) as policy:
        policy(observation())
        with connect(server.url) as raw:
            decode(raw.recv())
            raw.send(garbage)
            with pytest.raises(ConnectionClosed) as closed:
                raw.recv()
        assert "/" not in str(closed.value.rcvd.reason)
        assert policy(observation())[0] == 1.0


def test_an_oversized_message_is_refused_by_its_length(server_of):
    server = server_of(Counter(), max_bytes=10_000)
    with connect(server.url) as raw:
        decode(raw.recv())
        with pytest.raises(ConnectionClosed):
            raw.send(bytes(20_000))
            raw.recv()


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
    monkeypatch.setattr("imitate.deploy.client.PROTOCOL", 2)
    with pytest.raises(UserError, match="speaks version 1 of the protocol .*this client version 2"):
        Patient(server.url)


@pytest.mark.parametrize("url", ["localhost:8000", "http://localhost", "ws://", "nonsense"])
def test_what_is_no_address_is_one_line(url):
    with pytest.raises(UserError, match="is no address of a policy server"):
        Patient(url)


def test_nobody_there_is_one_line_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RemoteError, match="was not reached"):
        Patient(f"ws://127.0.0.1:{port}")


# ---- faults of another process -------------------------------------------------------------------

CHILD = """
import sys, time
from imitate.deploy.server import PolicyServer
from tests.deploy.in_process import Patient
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
        process.wait()
        process.stdout.close()


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
            "imitate.deploy.client.encode",
            lambda message: encode({**message, "x": bytes(50_000_000)}),
        )
        with pytest.raises(RemoteError, match="does not read"):
            policy(observation())


def test_a_killed_client_frees_its_session(server_of):
    server = server_of(Counter(), max_sessions=1)
    client = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom imitate.deploy.client import RemotePolicy\n"
            "p = RemotePolicy(sys.argv[1], connect_s=600); print('in', flush=True); sys.stdin.read()",
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
        client.wait()
        found_again(server)
    finally:
        client.stdout.close()
        client.stdin.close()


# ---- openpi --------------------------------------------------------------------------------------


def test_an_openpi_client_gets_chunks_that_are_planned_anew(server):
    with connect(server.url, compression=None, max_size=None) as raw:
        assert isinstance(decode(raw.recv()), dict)
        for step in range(2):
            raw.send(encode({**observation(0.5), "prompt": "pick", "unknown": 1}))
            reply = decode(raw.recv())
            assert reply["actions"].shape == (4, 2)
            assert reply["actions"][0, 0] == step + 100 * (step + 1)
            assert "infer_ms" in reply["server_timing"]
        assert "prev_total_ms" in reply["server_timing"]
        raw.send(encode({**observation(), "prompt": "throw"}))
        assert "known are pick, place" in raw.recv()  # text: an error
        raw.send(encode({"state": np.zeros(2)}))
        assert "'camera' is missing" in raw.recv()


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
