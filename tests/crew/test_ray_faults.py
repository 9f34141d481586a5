"""Faults of a real cluster: a node, the command, its output, its ports."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from imitate.crew import Crew, Shared, open_backend
from imitate.errors import EnvError
from tests.crew.test_crew import worker
from tests.crew.test_ends import busy, is_running

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
DRIVER = """
import json, sys, threading
from imitate.crew import Crew, Limits, open_backend
from tests.crew.test_ray_faults import tell_and_do

on, what, places = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open_backend(on) as backend, Crew(tell_and_do, places, backend=backend) as crew:
    def on_note(item, pid):
        sys.stderr.write(f"worker {pid}\\n")
        sys.stderr.flush()
    items = [(what, number) for number in range(3 * places)]
    results = {}
    for done in crew.as_completed(items, on_note=on_note):
        results[done.number] = (done.result, len(done.retried))
print(json.dumps(results, sort_keys=True))
"""


def tell_and_do(reports):
    """Tells its number, then does what an item names."""

    def work(item):
        what, number = item
        reports.note(os.getpid())
        if what == "busy":
            busy()
        time.sleep(1000 if what == "asleep" else 2.0)
        return number

    return work


def pid_and_node(reports):
    def work(item):
        number, seconds = item
        reports.note((os.getpid(), _raylet_of(os.getpid())))
        time.sleep(seconds)
        return number * number

    return work


def _raylet_of(pid):
    """Return the number of the raylet above a worker's process."""
    return psutil.Process(pid).parent().ppid()


@pytest.fixture
def drive(ray_nodes, tmp_path):
    """Start a command in a session of its own; return it, the numbers of its workers that have begun, and its lines."""
    started = []

    def start(on, what, places):
        script = tmp_path / "driver.py"
        script.write_text(DRIVER)
        process = subprocess.Popen(
            [sys.executable, script, on, what, str(places)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        workers, lines = [], []

        def read():
            for line in process.stderr:
                lines.append(line)
                if line.startswith("worker "):
                    workers.append(int(line.split()[1]))

        threading.Thread(target=read, daemon=True).start()
        started.append(process)
        until(lambda: len(workers) >= places or process.poll() is not None)
        assert len(workers) >= places, lines
        return process, workers, lines

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(condition):
    while not condition():
        time.sleep(0.02)


def gone(processes):
    return not any(map(is_running, processes))


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["asleep", "busy"])
def test_workers_end_with_the_command_that_is_killed(ray_nodes, drive, what):
    process, workers, lines = drive(ray_nodes.on, what, 4)
    assert all(map(is_running, workers))
    process.kill()
    until(lambda: gone(workers))


@pytest.mark.nightly
def test_workers_end_although_the_cluster_does_not_notice(ray_nodes, drive):
    """As where the head's machine is lost with the command on it: only the lifeline tells a node of it."""
    process, workers, lines = drive(ray_nodes.on, "busy", 4)
    raylets = {_raylet_of(worker) for worker in workers}
    assert len(raylets) == 2
    try:
        for raylet in raylets:
            os.kill(raylet, signal.SIGSTOP)
        process.kill()
        until(lambda: gone(workers))
    finally:
        for raylet in raylets:
            os.kill(raylet, signal.SIGCONT)


@pytest.mark.nightly
def test_a_lost_node_costs_a_try_and_its_processes_end(ray_nodes):
    second = ray_nodes.mend()
    items = [(number, 2.0) for number in range(12)]
    raylets, lost = {}, []

    def on_note(item, value):
        pid, raylet = value
        raylets[pid] = raylet
        if len(set(raylets.values())) == 2 and item[0] >= 4 and not lost:
            os.kill(second, signal.SIGKILL)
            lost.extend(pid for pid, raylet in raylets.items() if raylet == second)

    with open_backend(ray_nodes.on) as backend, Crew(pid_and_node, 4, backend=backend) as crew:
        assert backend.places == 4
        done = list(crew.as_completed(items, on_note=on_note))
        until(lambda: gone(lost))
    assert {entry.item[0]: entry.result for entry in done} == {n: n * n for n in range(12)}
    losses = [loss for entry in done for loss in entry.retried]
    assert 1 <= len(losses) <= 2 and all(loss.died for loss in losses)


@pytest.mark.nightly
def test_stdout_has_nothing_but_the_result_while_a_node_is_lost(ray_nodes, drive):
    process, workers, lines = drive(ray_nodes.on, "shortly", 4)
    ray_nodes.kill_second()
    out = process.stdout.read()
    assert process.wait() == 0, lines
    results = json.loads(out)
    assert {int(number): result for number, (result, _) in results.items()} == {
        number: number for number in range(12)
    }
    assert sum(retried for _, retried in results.values()) >= 1


@pytest.mark.nightly
def test_nothing_listens_but_on_loopback(ray_nodes):
    with open_backend(ray_nodes.on) as backend, Crew(pid_and_node, 4, backend=backend) as crew:
        heard = []
        items = [(number, 0.5) for number in range(4)]
        list(crew.as_completed(items, on_note=lambda _, value: heard.append(value)))
        raylets = {raylet for _, raylet in heard}
        (head,) = {psutil.Process(raylet).ppid() for raylet in raylets}
        ours = psutil.Process(head).children(recursive=True) + [psutil.Process()]
        listening = [
            connection.laddr.ip
            for process in ours
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
    assert len(listening) > 4
    assert {address.removeprefix("::ffff:") for address in listening} <= {"127.0.0.1", "::1"}


@pytest.mark.nightly
def test_a_shared_value_lies_once_in_the_store_of_a_node(ray_nodes):
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    def stored():
        reply = get_memory_info_reply(get_state_from_address(ray_nodes.address))
        return reply.store_stats.object_store_bytes_used

    with open_backend(ray_nodes.on, cpus=0.5) as backend, Crew(worker, 4, backend=backend) as crew:
        before = stored()
        versions = []
        for _ in range(5):
            versions = [*versions[-1:], Shared(os.urandom(8_000_000))]
            items = [
                ("shared_nested", {"a": versions[-1], "n": Shared(bytes([n]))}) for n in range(8)
            ]
            assert all(done.result["a"] == versions[-1].get()[:1] for done in crew.in_order(items))
            assert stored() - before >= 8e6
            # Two versions on two nodes; Ray frees what nobody holds a second later.
            until(lambda: stored() - before <= 2 * 2 * 8.1e6)


@pytest.mark.nightly
def test_workers_that_wait_for_a_place_are_told_of_and_take_one_that_comes(
    ray_nodes, capfd, monkeypatch
):
    monkeypatch.setattr("imitate.crew.ray_backend.TELL_S", 1.0)
    with open_backend(ray_nodes.on, cpus=2.0) as backend:
        assert backend.places == 2
        with Crew(pid_and_node, 3, backend=backend) as crew:
            done = list(crew.in_order([(number, 1.0) for number in range(8)]))
    assert [entry.result for entry in done] == [number * number for number in range(8)]
    told = (
        "waiting for a place: 1 of 3 workers; a worker takes 2 CPU, and of the cluster's 2 nodes "
    )
    assert told in capfd.readouterr().err


@pytest.mark.nightly
def test_no_place_at_all_is_an_error_of_one_line(ray_nodes):
    with (
        open_backend(ray_nodes.on, cpus=3.0, start_timeout_s=2.0) as backend,
        Crew(worker, 2, backend=backend) as crew,
        pytest.raises(EnvError, match="no place for a worker in 2 s: a worker takes 3 CPU, and of"),
    ):
        list(crew.in_order([("echo", 1)]))


@pytest.mark.nightly
def test_a_cluster_that_asks_for_no_token_is_refused(two_nodes, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        unprotected = type(two_nodes)(folder, "disabled")
        try:
            for name, value in {**unprotected.environ, "RAY_AUTH_MODE": "token"}.items():
                monkeypatch.setenv(name, value)
            with (
                pytest.raises(EnvError, match="does not require a token"),
                open_backend(unprotected.on),
            ):
                pass
        finally:
            unprotected.close()


@pytest.mark.nightly
def test_a_private_cluster_ends_with_the_command_that_is_killed(drive, monkeypatch):
    """All of it, Ray's agents too, which take up to a minute when left alone."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    process, workers, lines = drive("ray", "busy", 2)
    processes = psutil.Process(process.pid).children(recursive=True)
    names = [child.name() for child in processes]
    assert {"raylet", "gcs_server"} <= set(names) and sum("Agent" in name for name in names) == 2
    process.kill()
    until(lambda: not any(child.is_running() for child in processes))


def niceness(reports):
    return lambda item: os.nice(0)


@pytest.mark.nightly
def test_workers_of_a_private_cluster_have_the_priority_of_the_command(ray_nodes, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.delenv("RAY_worker_niceness")
    with open_backend("ray") as backend, Crew(niceness, 1, backend=backend) as crew:
        assert [done.result for done in crew.in_order([0])] == [os.nice(0)]


@pytest.mark.nightly
def test_a_private_cluster_leaves_nothing(ray_nodes, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    before = set(psutil.Process().children(recursive=True))
    with open_backend("ray") as backend, Crew(worker, 2, backend=backend) as crew:
        assert [done.result for done in crew.in_order([("echo", 1), ("echo", 2)])] == [1, 2]
        ours = set(psutil.Process().children(recursive=True)) - before
        folders = {
            part.partition("=")[2].partition("/session")[0]
            for process in ours
            for part in process.cmdline()
            if "imitate-ray-" in part and part.startswith("--raylet_socket_name")
        }
    assert len(folders) == 1 and not any(map(os.path.exists, folders))
    until(lambda: gone(process.pid for process in ours))


@pytest.mark.nightly
def test_a_private_cluster_that_dies_ends_the_command(ray_nodes, drive, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    process, workers, lines = drive("ray", "asleep", 2)
    children = psutil.Process(process.pid).children(recursive=True)
    (raylet,) = [child for child in children if child.name() == "raylet"]
    raylet.kill()
    until(lambda: process.poll() is not None)
    assert process.returncode == 1
    assert any("the Ray cluster has ended: no node of it is left" in line for line in lines)
