"""No worker outlives its parent, whatever it does and however the parent ends."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from imitate.crew.lifeline import Lifeline, hold
from imitate.crew.local import LocalBackend, LocalMember
from tests import fork_server

pytestmark = pytest.mark.usefixtures("spawned_workers")

PARENT = """
import multiprocessing, os, sys, threading, time
from imitate.crew import Crew
from tests.crew.test_ends import worker

def main(what, then):
    if then == "fork":
        multiprocessing.set_start_method("fork")
    crew, begun = Crew(worker), threading.Event()
    results = crew.as_completed([what], on_note=lambda item, note: begun.set())
    if what == "idle":
        next(results)
    else:
        threading.Thread(target=lambda: list(results), daemon=True).start()
    begun.wait()
    (child,) = multiprocessing.active_children()
    if then == "sibling" and os.fork() == 0:  # holds all pipes of its parent
        time.sleep(1000)
    print(child.pid, flush=True)
    if then != "leave":
        time.sleep(1000)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def worker(reports):
    """Tells that it has begun, and does what an item names."""

    def work(what):
        reports.note("begun")
        {"idle": str, "sleeping": sleeping, "busy": busy}[what]()

    return work


def sleeping():
    time.sleep(1000)


def busy():
    """Hangs in one call that never lets another thread of Python run."""
    sum(range(10**15))


@pytest.fixture
def parent(tmp_path):
    """Start a parent in a session of its own; return it and the number of its worker."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    opened = []

    def start(what, then="wait"):
        process = subprocess.Popen(
            [sys.executable, script, what, then],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        opened.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in opened:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("what", ["idle", "sleeping", "busy"])
def test_a_worker_ends_with_a_parent_that_is_killed(parent, what):
    process, worker = parent(what)
    assert is_running(worker)
    process.kill()
    ends(worker)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_with_a_parent_that_is_told_to_end(parent, number):
    process, worker = parent("sleeping")
    process.send_signal(number)
    ends(worker)
    assert process.wait(timeout=600) != 0


def test_a_worker_ends_although_a_forked_process_holds_its_pipes(parent):
    process, worker = parent("sleeping", "sibling")
    process.kill()
    ends(worker)


def test_a_parent_that_forgets_its_crew_can_end(parent):
    process, worker = parent("sleeping", "leave")
    assert process.wait(timeout=600) == 0
    ends(worker)


def test_workers_are_spawned_whatever_the_start_method_is(parent):
    process, worker = parent("idle", "fork")
    assert "spawn_main" in Path(f"/proc/{worker}/cmdline").read_text()
    process.kill()
    ends(worker)


def ends(pid):
    while is_running(pid):
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- lifelines -----------------------------------------------------------------------------------

HOLDER = """
import sys
from imitate.crew.lifeline import Lifeline
print(*Lifeline("127.0.0.1").address, flush=True)
sys.stdin.read()
"""


def test_the_end_of_a_killed_process_is_noticed():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER], **pipes) as process:
        ended = threading.Event()
        host, port, token = process.stdout.readline().split()
        hold((host, int(port), token), ended.set)
        assert not ended.is_set()
        process.kill()
        assert ended.wait(600.0)


def test_closing_waits_for_those_that_end_and_ends_the_others():
    for _ in range(10):  # each connects just before the end, when it may not have been accepted yet
        lifeline, ended = Lifeline("127.0.0.1"), threading.Event()
        hold(lifeline.address, ended.set)
        begun = time.monotonic()
        lifeline.close(patience_s=0.1)
        assert ended.wait(600.0)
        assert time.monotonic() - begun >= 0.1
        with pytest.raises(OSError):
            hold(lifeline.address, ended.set)
        lifeline.close()


def test_who_does_not_send_the_token_in_time_is_not_held(monkeypatch):
    monkeypatch.setattr("imitate.crew.lifeline.MAX_STRANGERS", 3)
    line, ended = Lifeline("127.0.0.1"), threading.Event()
    silent = [socket.create_connection(line.address[:2]) for _ in range(8)]
    for oldest in silent[:5]:
        assert oldest.recv(1) == b""
    silent[5].sendall(b"x" * 32)
    assert silent[5].recv(1) == b""
    silent[6].sendall(line.address[2][:10].encode())
    silent[7].sendall(b"x" * 10)
    hold(line.address, ended.set)
    while not line._held:
        time.sleep(0.001)
    for guess in silent[6:]:  # both wait: an answer to a part would tell how much of it is right
        with pytest.raises(BlockingIOError):
            guess.recv(1, socket.MSG_DONTWAIT)
    monkeypatch.setattr("imitate.crew.lifeline.STRANGER_S", 0.0)
    late = socket.create_connection(line.address[:2])
    with suppress(ConnectionResetError):
        assert late.recv(1) == b""
    assert not ended.is_set()
    line.close(patience_s=0.0)
    for end in (*silent, late):
        end.close()


# ---- processes of this machine -------------------------------------------------------------------


def work(reports):
    return abs


def test_join_waits_for_a_process_that_a_fork_server_started(monkeypatch):
    """It is not a child of this one."""
    monkeypatch.setattr("imitate.crew.local.CONTEXT", fork_server.context())
    member = LocalBackend().start(work)
    threading.Timer(1.0, member.dismiss).start()
    member.join()
    assert member.exit_code == 0
    member.stop()


def leaves_a_process(reports):
    if os.fork() == 0:
        time.sleep(100_000)
        os._exit(0)
    return abs


def test_join_does_not_wait_for_what_an_ended_process_has_started():
    member = LocalBackend().start(leaves_a_process)
    member.dismiss()
    while member.exit_code is None:  # and so its exit code is read
        time.sleep(0.01)
    member.join()
    member.stop()


def test_a_connection_that_another_thread_closes_in_a_message_is_the_end_of_it():
    """Python then works on a handle that is None: no message, and no traceback of a thread."""
    connection, news = multiprocessing.Pipe()[0], threading.Event()
    member = LocalMember.__new__(LocalMember)
    inbox = []
    vars(member).update(_connection=connection, _inbox=inbox, _news=news)
    write, read = (getattr(member, name) for name in ("_write", "_read"))

    def closed_in_the_midst(*_):
        connection.close()
        raise TypeError("'NoneType' object cannot be interpreted as an integer")

    connection.send_bytes = connection.recv_bytes = closed_in_the_midst
    assert write([b"a", b"b"]) is False
    read()
    assert inbox == [None] and news.is_set()
    with multiprocessing.Pipe()[0] as other:
        vars(member).update(_connection=other)
        with pytest.raises(TypeError):
            write([3])
