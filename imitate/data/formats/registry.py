"""The formats by name, and the format of a path."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from imitate.data.file.confined import OutsideFileError
from imitate.data.formats.base import Format
from imitate.data.formats.damage import reading
from imitate.errors import DatasetError, UserError, nearest

# In the order in which a path is tried: what has more marks of its own comes first.
_MODULES = {
    "imitation": "imitation_npz",
    "d3rlpy": "d3rlpy",
    "d4rl": "d4rl",
    "robosuite": "robosuite_raw",
    "mimicgen": "mimicgen",
    "libero": "libero",
    "aloha": "aloha",
    "diffusion-policy": "diffusion_policy",
    "minari": "minari",
    "lerobot": "lerobot",
    "robomimic": "robomimic",
}


def names() -> list[str]:
    """Return the names of all formats."""
    return list(_MODULES)


def find(name: str) -> Format:
    """Return the format of that name.

    Raises:
        DatasetError: there is none.
    """
    if name not in _MODULES:
        raise DatasetError(f"there is no dataset format '{name}'; {nearest(name, _MODULES)}")
    found: Format = import_module(f"imitate.data.formats.{_MODULES[name]}").FORMAT
    return found


def detect(path: Path) -> Format:
    """Return the format of the dataset at a path.

    Raises:
        DatasetError: there is nothing, or no known format.
    """
    if not path.exists():
        raise DatasetError(f"{path}: there is no such file or folder: correct the path")
    for name in _MODULES:
        candidate = find(name)
        if _recognised(candidate, path):
            return candidate
    raise DatasetError(
        f"{path}: looks like none of the formats {', '.join(_MODULES)}: "
        "it is damaged or of another kind; name the format with --from if you know it"
    )


def _recognised(candidate: Format, path: Path) -> bool:
    try:
        with reading(path):
            return candidate.recognises(path)
    except OutsideFileError:
        raise
    except UserError:
        return False


def target_format(path: Path) -> Format:
    """Return the format of a file to be written, by its ending.

    Raises:
        DatasetError: the ending says nothing.
    """
    for name in _MODULES:
        candidate = find(name)
        if candidate.write is not None and path.suffix.lower() in candidate.endings:
            return candidate
    writable = [name for name in _MODULES if find(name).write is not None]
    raise DatasetError(
        f"{path}: its ending does not say in which format to write: name one with --to: {', '.join(writable)}"
    )
