"""Connection of this process to a Ray cluster: the choice of the cluster, its requirements, and Ray's output.

The temporary folder of a private cluster is removed with the cluster; if the process was killed, the next start removes
the folder. Ray's output to stdout is redirected to stderr, so that stdout has only the results of this process.
"""

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import IO, Any

from imitate.crew.ray_leftovers import ended_with_this_process
from imitate.errors import EnvError, MissingPackageError
from imitate.system.extras import missing
from imitate.system.plain_files import locked
from imitate.system.processes import available_cores, handled
from imitate.system.version import __version__

PREFIX = "imitate-ray-"
LOCK = "in_use"
"""File that the owner process of the folder keeps locked; the system releases the lock when the process ends."""
YOUNG_S = 60.0
"""Seconds for which a new folder is kept: its owner may not have locked it yet."""


@contextmanager
def private_folder() -> Iterator[str]:
    """Yield a new folder, which is removed at the end; remove folders that ended processes of this user have left."""
    _remove_left()
    folder = tempfile.mkdtemp(prefix=PREFIX)
    try:
        # needed=False: on a system without locks, no other process can lock and remove the folder
        with locked(Path(folder, LOCK), needed=False):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(
            OSError
        ):  # another user's folder, in use, already removed, or without a lock file
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with locked(folder / LOCK, wait=False, make=False) as lock:
                if time.time() - os.fstat(lock.fileno()).st_mtime > YOUNG_S:
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_stdout(foreign: str = "ray_") -> Iterator[None]:
    """During the body, redirect file descriptor 1 and a library's threads to stderr; only this program uses stdout.

    Args:
        foreign: beginning of the names of the library's threads.
    """
    before = sys.stdout
    before.flush()
    with ExitStack() as stack:
        kept = os.dup(1)
        stack.callback(os.close, kept)
        ours: IO[str] = before
        if _descriptor(before) == 1:
            ours = stack.enter_context(
                open(kept, "w", encoding=before.encoding, errors=before.errors, closefd=False)
            )
        os.dup2(2, 1)
        stack.callback(os.dup2, kept, 1)
        routed: Any = _Routed(ours, foreign)
        sys.stdout = routed
        try:
            yield
        finally:
            if sys.stdout is routed:
                sys.stdout = before
            ours.flush()


class _Routed:
    """Text stream that redirects a library's threads to stderr and passes all others through."""

    def __init__(self, ours: IO[str], foreign: str) -> None:
        self._ours, self._foreign = ours, foreign

    def write(self, text: str) -> int:
        count = self._stream().write(text)
        if "\n" in text:
            self.flush()
        return count

    def flush(self) -> None:
        self._stream().flush()

    def _stream(self) -> IO[str]:
        is_foreign = threading.current_thread().name.startswith(self._foreign)
        return sys.stderr if is_foreign else self._ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)


def _descriptor(stream: IO[str]) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


UNSAFE = "IMITATE_RAY_UNSAFE"
"""Environment variable: 1 allows clusters without token authentication."""
STORE_BYTES = 500_000_000
"""Size of a private cluster's object store in bytes; objects beyond this size are written to disk."""
SETTINGS = {
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_worker_niceness": "0",
}
"""Environment variables of Ray and our defaults, for busy machines: more time for a node to start, and workers with the
same priority as this process (with Ray's default niceness of 15 they get about a thirtieth of the processor time)."""
CONNECT_S = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Cluster:
    """Cluster to which this process is connected.

    Attributes:
        ray: the imported package ``ray``.
        host: address of this machine for other nodes of the cluster.
    """

    ray: Any
    host: str


class _Connection:
    """The connection of this process to a cluster, and the number of its users; Ray allows one per process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.address: str | None = None
        self.cluster: Cluster | None = None
        self.stack = ExitStack()


_CONNECTION = _Connection()


@contextmanager
def connected(address: str | None = None) -> Iterator[Cluster]:
    """Connect to a cluster, or start a private one, unless this process is already connected; disconnect at the end.

    Args:
        address: HOST:PORT of the cluster's head node; None: RAY_ADDRESS, or the cluster that runs on this machine, or a
            private one.

    Raises:
        UserError: Ray is not installed; the cluster cannot be reached, or does not require a token.
    """
    connection = _CONNECTION
    with connection.lock:
        if connection.cluster is None:
            with ExitStack() as stack:
                connection.cluster = _opened(address, stack)
                connection.address, connection.stack = address, stack.pop_all()
        elif address not in (None, connection.address):
            raise EnvError(
                f"--on ray:{address}: this process is connected to {connection.address or 'another cluster'}; "
                "use one cluster at a time"
            )
        connection.users += 1
        cluster = connection.cluster
    try:
        yield cluster
    finally:
        with connection.lock:
            connection.users -= 1
            if connection.users == 0:
                connection.cluster = None
                connection.stack.close()


def _opened(address: str | None, stack: ExitStack) -> Cluster:
    """Return a cluster to which this process is connected until the stack is closed."""
    address = address or _address_of_environment()
    stack.enter_context(_environment(address))
    ray = _imported()
    stack.enter_context(own_stdout())
    if ray.is_initialized():  # the calling program has started Ray
        return Cluster(ray, ray.util.get_node_ip_address())
    if address is None:
        _start(ray, stack)
    else:
        _refuse_open(address)
        words = f"the Ray cluster at {address} cannot be used"
        with _joining(
            f"{words} (put its token into the file RAY_AUTH_TOKEN_PATH names, or ~/.ray/auth_token)"
        ):
            ray.init(address=address, logging_level="ERROR")
    stack.callback(ray.shutdown)
    return Cluster(ray, ray.util.get_node_ip_address())


def _start(ray: Any, stack: ExitStack) -> None:
    folder = stack.enter_context(private_folder())
    has_started = stack.enter_context(ended_with_this_process())
    with _joining("a private Ray cluster cannot be started"):
        ray.init(
            address="local",
            num_cpus=available_cores(),
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            logging_level="ERROR",
            _temp_dir=folder,
        )
    has_started()


@contextmanager
def _joining(words: str) -> Iterator[None]:
    """Turn errors of `ray.init` into one line, and restore the signal handlers that it changes."""
    kept: dict[int, Any] = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    try:
        with handled(kept), _held_back_stderr():
            yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines)[:500] or type(error).__name__
        raise EnvError(f"{words}: {reason}") from error


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(f"--on ray: {missing('ray', error)}") from error
    return ray


def _address_of_environment() -> str | None:
    """Return the address of RAY_ADDRESS or of the cluster that was started on this machine last, if it runs."""
    given = os.environ.get("RAY_ADDRESS", "")
    if given.startswith("ray://"):
        raise EnvError(
            f"RAY_ADDRESS={given}: Ray's client protocol is not supported; run the command on the cluster: "
            "ray job submit -- imitate eval ... --on ray"
        )
    if given == "local":
        return None
    if given and given != "auto":
        return given
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    with suppress(OSError):
        found = file.read_text().strip()
        if found and _is_reachable(found, 1.0):
            return found
    return None


def _is_reachable(address: str, timeout_s: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def _environment(address: str | None) -> Iterator[None]:
    """Set Ray's variables: require tokens, send no usage reports; without an address, listen on loopback only.

    Raises:
        EnvError: RAY_AUTH_MODE disables tokens.
    """
    is_unsafe = os.environ.get(UNSAFE) == "1"
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token" and not is_unsafe:
        raise EnvError(
            f"RAY_AUTH_MODE={mode}: whoever reaches a Ray cluster without token authentication runs code on it; "
            f"unset RAY_AUTH_MODE, or set {UNSAFE}=1 where nobody else reaches it"
        )
    settings = {name: os.environ.get(name, value) for name, value in SETTINGS.items()}
    wanted = {"RAY_USAGE_STATS_ENABLED": "0", **settings}
    if not is_unsafe:
        wanted["RAY_AUTH_MODE"] = "token"
    if address is None or address.rpartition(":")[0].strip("[]") in LOOPBACK:
        # Ray replaces 127.0.0.1 by an address that other machines can reach, unless this variable is 0.
        wanted["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _refuse_open(address: str) -> None:
    """Refuse a cluster that cannot be reached, or that answers a process without a token.

    Raises:
        EnvError: the cluster is refused; the message contains the reason.
    """
    if not _is_reachable(address, CONNECT_S):
        raise EnvError(
            f"no Ray cluster answers at {address}: give HOST:PORT of its head, as `ray start --head` prints it"
        )
    if os.environ.get(UNSAFE) == "1":
        return
    code = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
    environ = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
    answered = subprocess.run(
        [sys.executable, "-c", code, "health-check", "--address", address],
        env={**environ, "RAY_AUTH_MODE": "disabled"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if answered.returncode == 0:
        raise EnvError(
            f"the Ray cluster at {address} does not require a token: whoever reaches it runs code on it; start it with "
            f"RAY_AUTH_MODE=token, or set {UNSAFE}=1 where nobody else reaches it"
        )


@contextmanager
def _held_back_stderr() -> Iterator[None]:
    """Hold back stderr (file descriptor 2) until the end, and drop it if an error is raised."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        held.seek(0)
        os.write(2, held.read())


PACKAGES = ("torch", "mujoco", "robosuite", "ray")


def node_facts() -> dict[str, str]:
    """Return versions of this machine's Python and packages, "-" if one is missing, and ``cpu``, its processor."""
    facts = {"imitate": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        facts[package] = "-"
        with suppress(metadata.PackageNotFoundError):
            facts[package] = metadata.version(package)
    return {**facts, "cpu": cpu_model()}


def cpu_model() -> str:
    """Return the name of this machine's processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def differing(facts: dict[str, dict[str, str]]) -> dict[str, dict[str, list[str]]]:
    """Return each fact in which nodes differ, as ``{fact: {value: names of the nodes with this value}}``.

    Args:
        facts: result of :func:`node_facts` by the name of the node.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name in next(iter(facts.values()), {}):
        values: dict[str, list[str]] = {}
        for node, of_node in facts.items():
            values.setdefault(of_node.get(name, "-"), []).append(node)
        if len(values) > 1:
            found[name] = values
    return found


ANSWER_S = 60.0
"""Seconds that a node has to start a process and report its facts."""


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    Attributes:
        name: address of the node, with the beginning of its id if several nodes have the same address.
        resources: total resources of the node, such as ``CPU`` and ``GPU``.
        facts: result of :func:`imitate.crew.ray_cluster.node_facts`; empty if the node did not answer.
    """

    name: str
    resources: dict[str, float]
    facts: dict[str, str] = field(default_factory=dict)


def nodes_of(cluster: Cluster) -> list[Node]:
    """Return the nodes that are alive, by their names."""
    ray = cluster.ray
    alive = [node for node in ray.nodes() if node["Alive"]]
    task = ray.remote(num_cpus=0, max_retries=0)(node_facts)
    asked = [task.options(scheduling_strategy=_on(ray, node)).remote() for node in alive]
    ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
    addresses = [node["NodeManagerAddress"] for node in alive]
    found = []
    for node, answer in zip(alive, asked, strict=True):
        facts: dict[str, str] = {}
        with suppress(ray.exceptions.RayError):
            facts = ray.get(answer, timeout=0)
        address = node["NodeManagerAddress"]
        name = address if addresses.count(address) == 1 else f"{address} {node['NodeID'][:6]}"
        found.append(Node(name, node["Resources"], facts))
    return sorted(found, key=lambda node: node.name)


def spilled_bytes(cluster: Cluster) -> int | None:
    """Return the bytes that the cluster's object stores have written to disk, or None if Ray does not report them."""
    with suppress(ImportError, AttributeError, TypeError):
        api: Any = import_module("ray._private.internal_api")
        state = api.get_state_from_address(cluster.ray.get_runtime_context().gcs_address)
        stats = api.get_memory_info_reply(state).store_stats
        return max(0, int(stats.spilled_bytes_total) - int(stats.restored_bytes_total))
    return None


def _on(ray: Any, node: dict[str, Any]) -> Any:
    strategies = ray.util.scheduling_strategies
    return strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
