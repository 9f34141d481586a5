"""A real Ray cluster of two nodes or one on loopback, for tests of any room; run as a program it keeps the cluster.

The cluster lives in processes of its own and ends when the program's stdin is closed, however pytest ends.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

CPUS = 2
"""Processors of each node."""
GPUS = 2
"""GPUs that the first node pretends to have."""
STORE_BYTES = 80_000_000
MOSTLY_LOCAL = ["local", pytest.param("ray_nodes", marks=[pytest.mark.ray, pytest.mark.nightly])]
"""Values of the fixture ``backend``: this machine, and by night a cluster of two nodes."""
ONE_NODE = pytest.param("ray_node", marks=[pytest.mark.ray, pytest.mark.nightly])
"""Another one: a cluster of one node."""
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_worker_niceness": "0",
}


class TwoNodes:
    """The cluster.

    Args:
        folder: for its files; a short path.
        mode: token, or disabled: it takes orders from everybody.

    Attributes:
        address: of its head.
        on: the word for ``--on`` and ``open_backend``.
        environ: environment variables of processes that use it.
    """

    def __init__(self, folder, mode="token"):
        Path(folder, "ray").mkdir()
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.environ = {**ENVIRONMENT, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": str(token)}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, **self.environ, "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.address = self._heard()["address"]
        self.on = f"ray:{self.address}"

    def mend(self):
        """Let it have two nodes again; return the number of the second one's raylet."""
        return self._ask("mend")["raylet"]

    def shrink(self):
        """Let it have the first node alone."""
        self._ask("shrink")

    def kill_second(self):
        """Kill the raylet of the second node, which is not the one of this process."""
        os.kill(self.mend(), signal.SIGKILL)

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=600)

    def _ask(self, what):
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._heard()

    def _heard(self):
        return json.loads(self._process.stdout.readline())


def _as_long_as_needed(fixture_name, config):
    """In the fast set one module alone needs the cluster, whose daemons take processor time while it is there."""
    return "session" if config.getoption("--set") in ("nightly", "all") else "module"


@pytest.fixture(scope=_as_long_as_needed)
def two_nodes():
    """The cluster, for fixtures of whole modules: these have to set ``two_nodes.environ`` and to call ``mend``."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        cluster = TwoNodes(folder)
        yield cluster
        cluster.close()


@pytest.fixture
def ray_nodes(two_nodes, monkeypatch):
    """A cluster of two nodes with two processors each; give ``ray_nodes.on`` to ``--on``. Mark the tests ``ray``."""
    for name, value in two_nodes.environ.items():
        monkeypatch.setenv(name, value)
    two_nodes.mend()
    return two_nodes


@pytest.fixture
def ray_node(two_nodes, monkeypatch):
    """The same cluster without its second node, which tests that come first need not start: see conftest.py."""
    for name, value in two_nodes.environ.items():
        monkeypatch.setenv(name, value)
    two_nodes.shrink()
    return two_nodes


@pytest.fixture
def backend(request):
    """Place for workers: one of MOSTLY_LOCAL, or ONE_NODE."""
    from imitate.crew import open_backend

    if request.param == "local":
        with open_backend() as backend:
            yield backend
        return
    with open_backend(request.getfixturevalue(request.param).on) as backend:
        assert backend.places == (CPUS if request.param == "ray_node" else 2 * CPUS)
        yield backend


def keep():
    """Keep a cluster until stdin is closed, and answer each line of it."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    head = {**node, "num_gpus": GPUS}
    cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    second = None

    def tell(**what):
        results.write(f"{json.dumps(what)}\n")
        results.flush()

    try:
        tell(address=cluster.address)
        for line in sys.stdin:
            wants_one, is_whole = line.strip() == "shrink", _runs(second)
            if second is not None and (wants_one or not is_whole):
                with suppress(Exception):
                    cluster.remove_node(second, allow_graceful=False)
                second = None
            if second is None and not wants_one:
                second = _patiently(lambda: cluster.add_node(**node))
            cluster.wait_for_nodes(timeout=600)
            tell(raylet=None if second is None else _raylet(second).pid)
    finally:
        cluster.shutdown()


def _patiently(start):
    """Start a node, for which ray waits 30 s: a busy machine may need another try."""
    for _ in range(3):
        with suppress(Exception):
            return start()
    return start()


def _runs(node):
    return node is not None and node.any_processes_alive() and _raylet(node).poll() is None


def _raylet(node):
    (info,) = node.all_processes["raylet"]
    return info.process


if __name__ == "__main__":
    keep()
