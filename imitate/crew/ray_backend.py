"""Workers on a Ray cluster: an actor for each, which is never restarted, because the crew handles retries."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from imitate.crew.backend import POLL_S, Limits, Prepare
from imitate.crew.lifeline import Lifeline
from imitate.crew.ray_cluster import Cluster
from imitate.crew.ray_host import CONTROL, Host, Origin
from imitate.crew.ray_member import RayMember, RayPacked
from imitate.crew.shared import Shared, packed
from imitate.errors import EnvError

INLINE = 100_000
"""Largest size in bytes of a value sent with the call; a larger one is put into the object store once."""
TELL_S = 60.0
"""Seconds between two lines that report that workers wait for resources."""


class RayBackend:
    """Workers on a Ray cluster, spread over its nodes.

    Args:
        cluster: cluster to which this process is connected.
        cpus: CPU cores per worker.
        gpus: GPUs per worker.
        start_timeout_s: seconds after which it is an error that no worker has started.
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
        """Pickle an item; it and the shared values in it are put into the object store if they are large."""
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
        """Return the workers that have sent a message, have started, are gone or hang."""
        for member in members:
            member.limit(limits)
        if not any(member.has_news() for member in members):
            awaited = {member.awaited: member for member in members if member.awaited is not None}
            done: list[Any] = []
            if awaited:
                done, _ = self._ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
            else:  # nothing was asked of any of them
                time.sleep(timeout_s)
            if done:
                done, _ = self._ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
            for reference in done:
                awaited[reference].receive()
            self._look_after(members)
        return [member for member in members if member.has_news()]

    def _look_after(self, members: Sequence[RayMember]) -> None:
        """Report workers that wait for resources, and give up if none starts."""
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
    """Measures the time for which workers have waited for resources."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._waited_s = self._told_s = 0.0

    def look(self, is_waiting: bool) -> tuple[float, bool]:
        """Return the seconds for which workers have waited, and whether to report it now."""
        now = time.monotonic()
        # A pause of this process itself does not count as waiting.
        passed, self._looked = min(now - self._looked, 2 * POLL_S), now
        self._waited_s = self._waited_s + passed if is_waiting else 0.0
        self._told_s = min(self._told_s, self._waited_s)
        if self._waited_s - self._told_s < TELL_S:
            return self._waited_s, False
        self._told_s = self._waited_s
        return self._waited_s, True
