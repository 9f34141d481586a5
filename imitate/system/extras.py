"""Other packages: optional dependencies with the advice to install them, and entry points.

The extras of ``pyproject.toml`` are repeated here, because a package that runs from a clone has no metadata; a test
compares the two. This package is not on a package index, so the advice names the required packages.
"""

import os
import sys
from importlib import metadata
from pathlib import Path

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "robosuite": (
        "robosuite>=1.5.2,<1.6",
        "mujoco>=3.3,<3.10",
        'numpy<2; python_version < "3.13"',
        'opencv-python<4.12; python_version < "3.13"',
        'pynput<1.7; sys_platform == "linux"',
    ),
    "robotics": ("gymnasium-robotics>=1.4.2,<1.5", "mujoco>=3.3,<4"),
    "aloha": ("gym-aloha>=0.1.4,<0.2",),
    "metaworld": ("metaworld>=3.1,<3.2",),
    "ogbench": ("ogbench>=1.2,<1.3", "dm-control<=1.0.41", "mujoco>=3.3,<3.10"),
    "pettingzoo": ("pettingzoo>=1.25",),
    "wandb": ("wandb>=0.17",),
    "language": ("transformers>=4.40",),
    "zarr": ("zarr>=3",),
    "minari": (
        "minari[hdf5,arrow]>=0.5.3",
        'pyarrow>=15,<23; python_version < "3.13"',
    ),
    "lerobot": (
        'pyarrow>=15,<23; python_version < "3.13"',
        'pyarrow>=15; python_version >= "3.13"',
        "av>=12",
    ),
    "lerobot-robots": ("lerobot>=0.4.4",),
    "deploy": ("websockets>=14", "msgpack>=1.0.5"),
    "gamepad": ("pysdl2>=0.9.16", "pysdl2-dll>=2.28"),
    "spacemouse": ("hidapi>=0.14",),
    "limits": ("ruckig>=0.14",),
    "ray": ("ray>=2.52",),
    "remote": ("fsspec>=2024.2",),
    "onnx": ("onnx>=1.15", "onnxruntime>=1.16"),
}
"""Requirements by extra; the only markers are ``python_version < "3.13"`` and its opposite."""


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra into the running Python."""
    wanted = [part for part in map(_for_this_python, REQUIREMENTS[extra]) if part]
    return " ".join(["pip install", *(f"'{part}'" for part in wanted)])


def missing(extra: str, error: ImportError) -> str:
    """Describe a package that could not be imported, the reason, and the command that fixes it.

    Args:
        extra: the extra that installs it.
        error: error of the import.
    """
    package = (error.name or str(error)).partition(".")[0]
    cure = f"do: {install_command(extra)} (in a clone: pip install '.[{extra}]')"
    if isinstance(error, ModuleNotFoundError):
        return f"the package '{package}' is not installed; {cure}"
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"the package '{package}' is installed{_version(package)} but cannot be imported: {reason}; {cure}"


def _version(package: str) -> str:
    try:
        return f" ({metadata.version(package)})"
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _for_this_python(requirement: str) -> str:
    """Return the requirement without its marker, or '' if the marker excludes this Python."""
    wanted, _, marker = requirement.partition(";")
    old = sys.version_info < (3, 13)
    return "" if marker and ("<" in marker) != old else wanted.strip()


def installed_points(group: str, name: str | None = None) -> list[metadata.EntryPoint]:
    """Return the entry points of a group that installed packages offer.

    ``python -m`` adds the working directory to the module path, but a folder of demonstrations or checkpoints does not
    contain installed packages. Package metadata found there are therefore ignored, unless the folder is on the path for
    another reason (PYTHONPATH, an editable installation).

    Args:
        group: name of the group, such as ``imitate.algos``.
        name: name of the entry points to return, or None for all.
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
