"""Opening of the back end on which workers run, named by the option ``--on``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from imitate.crew.backend import Backend
from imitate.crew.local import LocalBackend
from imitate.system.processes import LOCAL, check_place


@contextmanager
def open_backend(
    on: str = LOCAL,
    *,
    cpus: float = 1.0,
    gpus: float = 0.0,
    start_timeout_s: float = 300.0,
    spread: bool = True,
    name: str = "imitate-worker",
) -> Iterator[Backend[Any]]:
    """Open a back end for workers, and shut it down at the end; several back ends may be open at a time.

    ``Crew(prepare, workers, backend=backend)`` runs on it; ``backend.places`` is a good default for the number of
    workers.

    Args:
        on: ``local`` for processes on this machine; ``ray`` for the Ray cluster at ``RAY_ADDRESS``, or the one that
            ``ray start`` started on this machine, or else a private cluster of this machine alone; ``ray:HOST:PORT``
            for the cluster whose head node has this address.
        cpus: CPU cores per worker, on Ray.
        gpus: GPUs per worker, on Ray.
        start_timeout_s: on Ray, seconds to wait for the first worker to start; then a UserError is raised.
        spread: true to spread workers over the nodes, on Ray; false to pack them on few nodes.
        name: name of the workers.

    Raises:
        UserError: the back end is unknown; Ray is not installed; the cluster cannot be reached, or requires no token.
    """
    check_place(on)
    if on == LOCAL:
        yield LocalBackend(name)
        return
    from imitate.crew.ray_backend import RayBackend
    from imitate.crew.ray_cluster import connected

    with connected(on.partition(":")[2] or None) as cluster:
        backend = RayBackend(
            cluster,
            cpus=cpus,
            gpus=gpus,
            start_timeout_s=start_timeout_s,
            spread=spread,
            name=name,
        )
        try:
            yield backend
        finally:
            backend.close()
