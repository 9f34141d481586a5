"""Workers on a Ray cluster: an actor for each, which is never restarted, because the crew retries.

The actor, a :class:`Host`, has the worker's process on the same node. The process is started by
:class:`~imitate.crew.local.LocalBackend`, so limits, reports and loss messages are the same as for local workers. The
actor only forwards messages, without unpickling them, so it answers even while the work hangs.
"""

import math
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from imitate.crew.backend import (
    POLL_S,
    Answer,
    Limits,
    Lost,
    Message,
    Note,
    Prepare,
    Ready,
    Unprepared,
)
from imitate.crew.lifeline import Address, Lifeline, hold
from imitate.crew.local import LocalBackend
from imitate.crew.ray_cluster import Cluster
from imitate.crew.serving import unpickled
from imitate.crew.shared import Ledger, Shared, packed, unpickle
from imitate.errors import EnvError, UserError, WorkerError
from imitate.system.processes import LOOK_S
from imitate.system.version import __version__

CARRIED = ("IMITATE_TRUST_MODULES",)
"""Environment variables that workers inherit from their owner process."""
SILENT_S = 10.0
"""Longest time in seconds for which an actor sends nothing while its process works."""


CONTROL = "control"
"""Ray's concurrency group of the actor methods that return while the worker process is busy."""


@dataclass(frozen=True)
class Origin:
    """Owner process of workers.

    Attributes:
        lifeline: address of its :class:`~imitate.crew.lifeline.Lifeline`.
        name: name of the workers' processes.
        threads: number of threads that a worker's libraries may use.
        version: version of this package in the owner process.
        paths: module search path of the owner process; a node uses the folders that exist on it.
        folder: working folder of the owner process; used on nodes on which it exists.
        environ: environment variables of the owner process that :data:`CARRIED` names.
    """

    lifeline: Address
    name: str
    threads: int
    version: str = __version__
    paths: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    folder: str = field(default_factory=os.getcwd)
    environ: dict[str, str] = field(
        default_factory=lambda: {name: os.environ[name] for name in CARRIED if name in os.environ}
    )


class PackedPrepare:
    """Factory of a worker's function, pickled; unpickling this gives the factory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        return unpickle, (self._data,)

    def __call__(self, reports: Any) -> Any:
        """Raise TypeError; the method only gives this class the type of a factory."""
        raise TypeError("the factory is packed: call unpickle on its data before it is used")


class Host:
    """Parent of one worker process.

    Methods other than :meth:`begin` and :meth:`hear` run in Ray's concurrency group :data:`CONTROL`, so they can be
    called while one of these two waits.
    """

    def begin(self, prepare: bytes, origin: Origin) -> None:
        """Start the process.

        Raises:
            EnvError: this node has another version of imitate, or cannot reach the owner process.
        """
        if origin.version != __version__:
            raise EnvError(
                f"a node has imitate {__version__}, but this machine has {origin.version}: install the "
                "same version on both"
            )
        _end_with(origin)
        self._limits, self._changes = Limits(), 0
        self._backend = LocalBackend(origin.name)
        self._member = self._backend.start(PackedPrepare(prepare))

    def hear(self, limits: Limits, changes: int, *parts: Any) -> list[bytes | Lost]:
        """Return the pickled messages of the process; an empty list if there is none within :data:`SILENT_S`.

        Args:
            limits: times after which the process counts as hung.
            changes: number of earlier changes of the limits, because a later call of :meth:`limit` may arrive first.
            parts: parts of an item to send first, see :meth:`imitate.crew.local.LocalMember.send`; empty to send none.
        """
        self.limit(limits, changes)
        if parts:
            self._member.send([memoryview(part) for part in parts])
        heard: list[bytes | Lost] = []
        deadline = time.monotonic() + SILENT_S
        while not self._listen(heard) and time.monotonic() < deadline:
            pass
        return heard

    def _listen(self, heard: list[bytes | Lost]) -> bool:
        """Add messages that arrive within :data:`imitate.crew.backend.POLL_S` to ``heard``; return true if any did."""
        while self._backend.heard([self._member], self._limits, 0.0 if heard else POLL_S):
            heard.append(self._member.received())
            if isinstance(heard[-1], Lost):
                break
        return bool(heard)

    def limit(self, limits: Limits, changes: int) -> None:
        """Set new limits while the process works, unless newer limits have already arrived."""
        if changes >= self._changes:
            self._limits, self._changes = limits, changes

    def ended(self) -> None:
        """Return when the process has ended."""
        self._member.join()

    def dismiss(self) -> None:
        """Let the process end once it is idle."""
        self._member.dismiss()


def _end_with(origin: Origin) -> None:
    """End this actor and its worker process when its raylet (Ray's process of the node) or the owner process ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        hold(origin.lifeline, lambda: os._exit(1))
    except OSError as error:
        host, port, _ = origin.lifeline
        raise EnvError(
            f"a node of the cluster cannot reach this machine at {host}:{port}: {error}; allow this connection"
        ) from None
    _settle(origin)


def _settle(origin: Origin) -> None:
    """Give the worker process the module path, working folder and environment variables of the owner process."""
    sys.path += [path for path in origin.paths if path not in sys.path and os.path.exists(path)]
    with suppress(OSError):
        os.chdir(origin.folder)
    os.environ.update(origin.environ)
    os.environ["OMP_NUM_THREADS"] = str(origin.threads)
    vars(sys.modules["__main__"]).pop(
        "__file__", None
    )  # a hook of Ray, which a spawned process would run


DEAF_S = SILENT_S + 60.0
"""Seconds without an answer after which an actor counts as lost."""


@dataclass(frozen=True)
class RayPacked:
    """An item in the form for workers on Ray.

    Attributes:
        data: the item, pickled, or a reference to it.
        values: its shared values by name, in the same form.
    """

    data: Any
    values: Mapping[str, Any]


class RayMember:
    """A worker on Ray, as the owner process sees it.

    Args:
        ray: the imported package ``ray``.
        actor: a :class:`Host` whose ``begin`` was not yet called.
        prepare: pickled factory of the worker's function.
        origin: description of this process, which the worker needs.

    Attributes:
        awaited: Ray's reference to the worker's next message, or None if no message is expected.
        is_placed: true if the worker has started and is not known to have ended.
    """

    def __init__(self, ray: Any, actor: Any, prepare: bytes, origin: Origin) -> None:
        self._ray, self._actor = ray, actor
        self._inbox, self._ledger = deque[Message](), Ledger()
        self._unsent: RayPacked | None = None
        self._limits, self._changes = Limits(), 0
        self._has_begun = self._has_answered = self._has_failed = self.is_placed = False
        self._ended: Any = None
        self.awaited: Any = actor.begin.remote(prepare, origin)
        self._looked, self._silent_s = time.monotonic(), 0.0

    def waits(self) -> bool:
        """Return true while the worker waits for resources of the cluster."""
        if not self._has_begun and not self._inbox and self._is_there(self.awaited):
            self.receive()
        return not self._has_begun and not self._inbox

    def give(self, packed: RayPacked) -> bool:
        """Send a packed item; return false if the worker is gone."""
        if self.waits():
            self._unsent = packed
            return True
        if self._has_failed:
            return not self._has_answered
        if self._has_answered and self._is_there(self._ended):
            self._ask()  # request the reason of its end
            return False
        self._inbox.clear()
        self._send(packed)
        return True

    def limit(self, limits: Limits) -> None:
        """Change the limits of the current item."""
        if limits != self._limits:
            self._limits, self._changes = limits, self._changes + 1
            if self._has_begun and self.awaited is not None:
                self._control("limit").remote(limits, self._changes)

    def has_news(self) -> bool:
        """Return true if the worker has sent a message, started, ended or hung."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * POLL_S), now
        self._silent_s += passed if self._has_begun else 0.0
        if self._silent_s > DEAF_S and self.awaited is not None and not self._inbox:
            self._lose(f"its node did not answer within {DEAF_S:g} s")
        return bool(self._inbox)

    def receive(self) -> None:
        """Receive the messages that the worker has sent."""
        reference, self.awaited, self._silent_s = self.awaited, None, 0.0
        try:
            heard = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._fail(error)
            return
        if not self._has_begun:
            self._begin()
            return
        self._inbox += [unpickled(part) if isinstance(part, bytes) else part for part in heard]
        if not self._inbox or isinstance(self._inbox[-1], Note):
            self._ask()
        else:
            self._has_answered |= isinstance(self._inbox[-1], Answer)

    def answer(self) -> Message:
        """Return the worker's next message; a :class:`Lost` if the worker has ended or hung."""
        return self._inbox.popleft()

    def give_up(self, error: UserError) -> None:
        """Make ``error`` the worker's next message, because the worker could not be started."""
        self._inbox.append(Unprepared(error))

    def dismiss(self) -> None:
        """Let the idle worker end, without waiting for it."""
        if self.is_placed:
            self._control("dismiss").remote()

    def stop(self, patience_s: float = 0.0) -> None:
        """End the worker, by force if it has not ended after ``patience_s``."""
        if patience_s and self._ended is not None:
            self._ray.wait([self._ended], timeout=patience_s)
        self.is_placed, self.awaited = False, None
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._actor = None

    def _begin(self) -> None:
        self._has_begun = self.is_placed = True
        self._ended = self._control("ended").remote()
        if self._unsent is None:
            self._inbox.append(Ready())
        else:
            self._send(self._unsent)
        self._unsent = None

    def _send(self, packed: RayPacked) -> None:
        header = self._ledger.header(list(packed.values))
        self._ask(pickle.dumps(header), *(packed.values[key] for key in header.keys), packed.data)

    def _ask(self, *parts: Any) -> None:
        self._silent_s = 0.0
        self.awaited = self._actor.hear.remote(self._limits, self._changes, *parts)

    def _control(self, method: str) -> Any:
        return getattr(self._actor, method).options(concurrency_group=CONTROL)

    def _is_there(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])

    def _fail(self, error: Exception) -> None:
        """Add a message of the worker for an error that Ray raised."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            self._refuse(cause)
        elif not self._has_begun and not isinstance(error, self._ray.exceptions.RayActorError):
            self._refuse(EnvError(f"a node of the cluster cannot run workers: {_last_line(error)}"))
        elif not self._has_begun and "creation task" in str(error):
            self._refuse(WorkerError(f"a node cannot run workers: {_last_line(error)}"))
        else:
            self._lose(_words(error))

    def _refuse(self, error: UserError) -> None:
        self._has_failed, self.is_placed = True, False
        self._inbox.append(Unprepared(error))

    def _lose(self, reason: str) -> None:
        self._has_failed, self.is_placed = True, False
        self._inbox.append(Lost(reason, died=True, begun=self._has_begun))


def _words(error: Exception) -> str:
    """Describe the loss of an actor or its node. The actor itself reports the loss of its worker process."""
    if "node" in str(error) and "died" in str(error):
        return "its node was lost"
    return f"its node or its parent process was lost ({type(error).__name__})"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


INLINE = 100_000
"""Largest size in bytes of data sent with a call; larger data are put into Ray's object store once."""
TELL_S = 60.0
"""Seconds between two lines that report that workers wait for resources."""


class RayBackend:
    """Workers on a Ray cluster, spread over its nodes.

    Args:
        cluster: cluster to which this process is connected.
        cpus: CPU cores per worker.
        gpus: GPUs per worker.
        start_timeout_s: seconds to wait for the first worker to start; then an error is raised.
        spread: true to spread workers over the nodes, false to pack them on few nodes.
        name: name of the workers' processes.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
        start_timeout_s: float = 300.0,
        spread: bool = True,
        name: str = "imitate-worker",
    ) -> None:
        self._ray, self._wanted = cluster.ray, {"CPU": cpus, "GPU": gpus}
        self._name, self._threads = name, max(1, math.floor(cpus))
        self._start_timeout_s = start_timeout_s
        self._address, self._lifeline = cluster.host, Lifeline(cluster.host)
        self._host = self._ray.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups={CONTROL: 2},
            scheduling_strategy="SPREAD" if spread else "DEFAULT",
        )(Host)
        self._members: WeakSet[RayMember] = WeakSet()
        self._stored: WeakKeyDictionary[Shared[Any], Any] = WeakKeyDictionary()
        self._waiting = _Waiting()

    @property
    def host(self) -> str:
        """Address at which the cluster's nodes reach this machine."""
        return self._address

    @property
    def places(self) -> int:
        """Number of workers that fit on the unused cluster; at least 1."""
        return max(1, sum(map(self._fitting, self._nodes())))

    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node that is alive."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _fitting(self, resources: dict[str, float]) -> int:
        wanted = {kind: count for kind, count in self._wanted.items() if count > 0}
        return int(
            min((resources.get(kind, 0.0) / count for kind, count in wanted.items()), default=1)
        )

    def start(self, prepare: Prepare) -> RayMember:
        """Start a worker, without waiting for its resources."""
        origin = Origin(self._lifeline.address, self._name, self._threads)
        data = self._ray.cloudpickle.dumps(prepare)
        member = RayMember(self._ray, self._host.remote(), data, origin)
        self._members.add(member)
        return member

    def pack(self, item: Any) -> RayPacked:
        """Pickle an item; put the item and its shared values into Ray's object store if they are large."""
        whole = packed(item)
        for shared in whole.shared.values():
            if shared not in self._stored:
                self._stored[shared] = self._put(shared.data)
        values = {key: self._stored[shared] for key, shared in whole.shared.items()}
        return RayPacked(self._put(whole.data), values)

    def _put(self, data: bytes | memoryview) -> Any:
        return data if len(data) <= INLINE else self._ray.put(np.frombuffer(data, dtype=np.uint8))

    def heard(
        self, members: Sequence[RayMember], limits: Limits, timeout_s: float = POLL_S
    ) -> list[RayMember]:
        """Return the workers that have sent a message, started, ended or hung."""
        for member in members:
            member.limit(limits)
        if not any(member.has_news() for member in members):
            awaited = {member.awaited: member for member in members if member.awaited is not None}
            done: list[Any] = []
            if awaited:
                done, _ = self._ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
            else:  # no message is expected from any worker
                time.sleep(timeout_s)
            if done:
                done, _ = self._ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
            for reference in done:
                awaited[reference].receive()
            self._look_after(members)
        return [member for member in members if member.has_news()]

    def _look_after(self, members: Sequence[RayMember]) -> None:
        """Report workers that wait for resources; after a timeout without any running worker, give up."""
        waiting = [member for member in members if member.waits()]
        running = sum(member.is_placed for member in self._members)
        waited_s, is_time = self._waiting.look(bool(waiting))
        if not waiting:
            return
        if not running and not self._nodes():
            waiting[0].give_up(
                EnvError(
                    "the Ray cluster has ended: no node of it is left (killed for lack of memory?); "
                    "start the command again"
                )
            )
        elif not running and waited_s > self._start_timeout_s:
            waiting[0].give_up(
                EnvError(f"no place for a worker in {self._start_timeout_s:g} s: {self._words()}")
            )
        elif is_time:
            sys.stderr.write(
                f"waiting for a place: {len(waiting)} of {len(waiting) + running} workers; {self._words()}\n"
            )
            sys.stderr.flush()

    def _words(self) -> str:
        wanted = " and ".join(f"{count:g} {kind}" for kind, count in self._wanted.items() if count)
        free, nodes = self._ray.available_resources(), self._nodes()
        have = ", ".join(
            f"{free.get(kind, 0.0):g} of {sum(node.get(kind, 0.0) for node in nodes):g} {kind} free"
            for kind, count in self._wanted.items()
            if count
        )
        return f"a worker takes {wanted or 'nothing'}, and of the cluster's {len(nodes)} nodes {have or 'all'}"

    def close(self) -> None:
        """End the remaining workers."""
        for member in list(self._members):
            member.stop()
        self._lifeline.close()


class _Waiting:
    """Measures how long workers have waited for resources."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._waited_s = self._told_s = 0.0

    def look(self, is_waiting: bool) -> tuple[float, bool]:
        """Return the seconds for which workers have waited, and true if a report is due now."""
        now = time.monotonic()
        # A pause of this process itself does not count as waiting.
        passed, self._looked = min(now - self._looked, 2 * POLL_S), now
        self._waited_s = self._waited_s + passed if is_waiting else 0.0
        self._told_s = min(self._told_s, self._waited_s)
        if self._waited_s - self._told_s < TELL_S:
            return self._waited_s, False
        self._told_s = self._waited_s
        return self._waited_s, True
