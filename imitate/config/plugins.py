"""Entry points of other packages: algorithms, encoders, and other components."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path


def installed_points(group: str, name: str | None = None) -> list[metadata.EntryPoint]:
    """Return the entry points of a group that installed packages offer.

    ``python -m`` adds the working directory to the module path, but a folder of demonstrations or checkpoints does not
    contain installed packages. Package metadata found there are therefore ignored, unless the folder is on the path for
    another reason (PYTHONPATH, an editable installation).

    Args:
        group: name of the group, such as ``imitate.algos``.
        name: return only entry points of this name; None: all.
    """
    points = metadata.entry_points(group=group)
    return [
        point for point in points if (name is None or point.name == name) and _is_installed(point)
    ]


def _is_installed(point: metadata.EntryPoint) -> bool:
    dist = getattr(point, "dist", None)
    if dist is None:
        return True
    folder, here = Path(str(dist.locate_file(""))).resolve(), Path.cwd().resolve()
    if folder != here:
        return True
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path[1:]]
    return any(path and Path(path).resolve() == here for path in paths)
