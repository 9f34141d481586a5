"""Encrypted connections with a real certificate: who trusts whom, and the messages to the others."""

import json
import select
import signal
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trustme

from imitate.deploy.server import server as server_module
from imitate.deploy.server.client import RemoteError
from imitate.errors import UserError
from imitate.system.channel.messages import decode, encode
from tests.cli.test_robot_verbs import checkpoint, trained  # noqa: F401 (fixtures)
from tests.deploy.counting_policy import Counter, observation
from tests.deploy.in_process import Patient
from tests.refusals import refused

ROOT = Path(__file__).parents[3]
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates of a server at 127.0.0.1: {"cert", "key", "ca"}, and an authority that signed nothing."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    found = {name: folder / f"{name}.pem" for name in ("cert", "key", "ca", "other")}
    server.cert_chain_pems[0].write_to_path(found["cert"])
    server.private_key_pem.write_to_path(found["key"])
    authority.cert_pem.write_to_path(found["ca"])
    trustme.CA().cert_pem.write_to_path(found["other"])
    return found


@pytest.fixture
def served():
    return Counter()


@pytest.fixture
def server(files, served, server_of):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    return server_of(served, tls=context, token=TOKEN)


def trusting(path):
    return ssl.create_default_context(cafile=path)


@pytest.fixture
def policy(server, files):
    with Patient(server.url, token=TOKEN, tls=trusting(files["ca"])) as policy:
        yield policy


def test_a_client_that_knows_the_authority_is_answered(server, policy):
    assert server.url.startswith("wss://")
    for step in range(3):
        np.testing.assert_array_equal(policy(observation(0.5)), [step, 0.5])
    assert policy.predict_chunk([observation(2)])[0, 0] == 2.0


def test_a_handshake_of_a_byte_now_and_then_has_an_end(server, monkeypatch):
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 0.5)
    with socket.create_connection((server.host, server.port), timeout=600) as slow:
        slow.sendall(b"\x16\x03\x01\x02\x00")  # a record of 512 bytes is announced
        with suppress(OSError):  # until the server has ended it
            while not select.select([slow], [], [], 0.1)[0]:
                slow.sendall(b"\x01")


def test_a_handshake_that_another_connection_takes_the_place_of_ends_without_a_traceback(
    server, monkeypatch
):
    monkeypatch.setattr(server.lobby, "most", 1)
    began, failed, secure = threading.Semaphore(0), [], server_module.Stream.secure
    monkeypatch.setattr(threading, "excepthook", failed.append)
    told = lambda stream, deadline: (began.release(), secure(stream, deadline))  # noqa: E731
    monkeypatch.setattr(server_module.Stream, "secure", told)
    before = None
    for _ in range(5):
        sock = socket.create_connection((server.host, server.port), timeout=600)
        began.acquire()
        if before is not None:
            assert before.recv(1) == b""
            before.close()
        before = sock
    before.close()
    assert not failed


def test_messages_larger_than_a_record_and_than_all_buffers(policy):
    channel, noise = policy._connection, np.random.default_rng(0).bytes(9_000_000)
    message = {"imitate": {"kind": "predict", "id": 1}, "history": [observation(7)], "x": noise}
    for _ in range(2):
        channel.send(encode(message), 600)
        assert decode(channel.recv(600))["chunk"][0, 0] == 7.0


def test_of_waiting_observations_the_newest_is_answered(policy, served):
    """Each message is a record of its own, which one read of the socket does not show."""
    channel = policy._connection
    begun, go_on, predict = threading.Event(), threading.Event(), served.predict
    served.predict = lambda asks: (begun.set(), go_on.wait(), predict(asks))[2]
    for number in range(1, 5):
        header = {"kind": "observe", "id": number}
        channel.send(encode({"imitate": header, "obs": observation(number)}), 600)
        assert begun.wait()
    go_on.set()
    kinds = [decode(channel.recv(600))["imitate"]["kind"] for _ in range(4)]
    assert kinds == ["action", "dropped", "dropped", "action"]


@pytest.mark.parametrize(
    ("change", "authority", "words"),
    [
        ((), None, "certificate is not trusted|--tls-ca"),
        ((), "other", "certificate is not trusted|--tls-ca"),
        (("127.0.0.1", "localhost"), "ca", "not trusted|ostname mismatch"),
    ],
)
def test_a_server_whom_nobody_vouches_for_is_refused(server, files, change, authority, words):
    tls, url = authority and trusting(files[authority]), server.url
    with refused(words, error=UserError):
        Patient(url.replace(*change) if change else url, token=TOKEN, tls=tls)


def test_a_client_without_tls_is_told_the_scheme(server):
    with refused(
        "the address of a server with a certificate begins with wss://", error=RemoteError
    ):
        Patient(server.url.replace("wss://", "ws://"), token=TOKEN)


def test_a_client_with_tls_of_a_server_without_is_told_the_scheme(files, server_of):
    plain = server_of(Counter())
    with refused(
        "the address of a server without TLS (imitate serve without --tls-cert) begins with ws://",
        error=RemoteError,
    ):
        Patient(plain.url.replace("ws://", "wss://"), tls=trusting(files["ca"]))
    Patient(plain.url).close()


@pytest.mark.slow("a server and two robots, each a process of its own")
def test_the_command_line_serves_and_runs_by_tls(
    preloaded_commands,
    imitate,
    files,
    checkpoint,  # noqa: F811
    tmp_path,
):
    words = ("serve", checkpoint, "--port", 0, "--json")
    words += ("--tls-cert", files["cert"], "--tls-key", files["key"])
    command = [preloaded_commands / "imitate", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = json.loads(process.stdout.readline())["url"]
        run = ("run", url, "--robot", "sim", "--env", "Pendulum-v1", "--rate-hz", 50, "--steps", 5)
        run += ("--robot-arg", "in_step=true", "--timeout-s", 600)
        done = imitate(*run, "--tls-ca", files["ca"], cwd=tmp_path)
        assert "steps" in done.stdout
        refused = imitate(*run, cwd=tmp_path, check=False)
        assert refused.returncode == 2
        assert "--tls-ca FILE" in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def test_files_that_are_no_certificates_are_one_line(imitate, files, checkpoint, tmp_path):  # noqa: F811
    run = ("run", "wss://127.0.0.1:9", "--robot", "sim", "--tls-ca", files["key"])
    serve = ("serve", checkpoint, "--tls-cert", files["cert"], "--tls-key", files["ca"])
    for words, told in ((run, "--tls-ca"), (serve, "--tls-cert")):
        done = imitate(*words, cwd=tmp_path, check=False)
        assert done.returncode == 2
        assert told in done.stderr
        assert "cannot be used" in done.stderr
        assert "Traceback" not in done.stderr
