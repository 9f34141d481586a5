"""A real Ray cluster of two nodes on loopback, for tests of any room; run as a program it keeps the cluster.

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
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
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
        self.environ = {
            **ENVIRONMENT,
            "RAY_AUTH_MODE": mode,
            "RAY_AUTH_TOKEN_PATH": str(token),
        }
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

    def kill_second(self):
        """Kill the raylet of the second node, which is not the one of this process."""
        os.kill(self.mend(), signal.SIGKILL)

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=120)

    def _ask(self, what):
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._heard()

    def _heard(self):
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="session")
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


def keep():
    """Keep a cluster until stdin is closed, and answer each line of it."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    head = {**node, "num_gpus": GPUS}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = None

    def tell(**what):
        results.write(f"{json.dumps(what)}\n")
        results.flush()

    try:
        tell(address=cluster.address)
        for _ in sys.stdin:
            if (
                second is None
                or not second.any_processes_alive()
                or _raylet(second).poll() is not None
            ):
                if second is not None:
                    with suppress(Exception):
                        cluster.remove_node(second, allow_graceful=False)
                second = cluster.add_node(**node)
                cluster.wait_for_nodes()
            tell(raylet=_raylet(second).pid)
    finally:
        cluster.shutdown()


def _raylet(node):
    (info,) = node.all_processes["raylet"]
    return info.process


if __name__ == "__main__":
    keep()
