"""Option ``--on``: the back end on which the workers of a command run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imitate.crew.places import open_backend
from imitate.system.processes import LOCAL, ON_HELP

if TYPE_CHECKING:
    from imitate.crew.backend import Backend

On = Annotated[str, typer.Option("--on", metavar="PLACE", help=ON_HELP)]


@contextmanager
def opened(on: str, *, gpus: float = 0.0, name: str) -> Iterator[Backend[Any] | None]:
    """Open the back end of ``--on``; None stands for processes on this machine.

    Args:
        on: value of the option.
        gpus: GPUs per worker on a cluster.
        name: name of the workers.
    """
    if on == LOCAL:
        yield None
        return
    with open_backend(on, gpus=gpus, name=name) as backend:
        yield backend


def number_of_workers(
    wanted: int | None, backend: Backend[Any] | None, items: int, here: int
) -> int:
    """Return the number of workers to start.

    Args:
        wanted: value of ``--workers``, or None if it was omitted.
        backend: back end on which they run, or None for processes on this machine.
        items: largest number of workers that have work to do.
        here: default for processes on this machine.
    """
    if wanted is not None:
        return wanted
    return here if backend is None else max(1, min(backend.places, items))
