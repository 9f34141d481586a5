"""Dataset formats by name, and detection of a path's format.

Other packages add formats by entry points in the group ``imitate.formats``. They are tried after the built-in formats.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

from imitate.data.file.confined import OutsideFileError
from imitate.data.formats.base import Format, reading
from imitate.errors import DatasetError, UserError, nearest
from imitate.system.extras import installed_points
from imitate.system.missing import no_such
from imitate.system.recognition import diagnosis

# in the order of detection: formats with more distinctive features come first
_MODULES = {
    "imitation": "imitation_npz",
    "ogbench": "ogbench_npz",
    "d3rlpy": "d3rlpy",
    "d4rl": "d4rl",
    "robosuite": "robosuite_raw",
    "mimicgen": "mimicgen",
    "libero": "libero",
    "aloha": "aloha",
    "npz-episodes": "npz_episodes",
    "diffusion-policy": "diffusion_policy",
    "minari": "minari",
    "lerobot": "lerobot",
    "robomimic": "robomimic",
}

ENTRY_POINTS = "imitate.formats"


def names() -> list[str]:
    """Return the names of all formats; formats of other packages come last."""
    return [*_MODULES, *_installed()]


def _installed() -> dict[str, EntryPoint]:
    """Return the entry points of other packages, without names of built-in formats."""
    points = installed_points(ENTRY_POINTS)
    return {point.name: point for point in points if point.name not in _MODULES}


def _all() -> Iterator[Format]:
    """Yield the formats in the order of detection; other packages are searched only at the end."""
    for name in _MODULES:
        yield find(name)
    for point in _installed().values():
        yield _loaded(point)


def find(name: str) -> Format:
    """Return the format with this name.

    Raises:
        DatasetError: there is no such format, or the package that provides it is damaged.
    """
    if name not in _MODULES:
        installed = _installed()
        if name in installed:
            return _loaded(installed[name])
        raise DatasetError(
            f"there is no dataset format '{name}'; {nearest(name, names())} (other packages may add formats by entry "
            f"points in the group '{ENTRY_POINTS}')"
        )
    found: Format = import_module(f"imitate.data.formats.{_MODULES[name]}").FORMAT
    return found


def _loaded(point: EntryPoint) -> Format:
    """Return the format of another package.

    Raises:
        DatasetError: the format cannot be loaded, or has another name.
    """
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise DatasetError(
            f"dataset format '{point.name}' is offered by {point.value}, which cannot be loaded ({error}): repair or "
            "reinstall that package"
        ) from error
    if not isinstance(found, Format) or found.name != point.name:
        raise DatasetError(
            f"dataset format '{point.name}': {point.value} is {found!r}; expected a Format of that name from "
            "imitate.data.formats.base: repair or reinstall that package"
        )
    return found


def detect(path: Path) -> Format:
    """Return the format of the dataset at a path.

    Raises:
        DatasetError: the path does not exist, or its format is unknown.
    """
    if not path.exists():
        raise DatasetError(no_such(path, "file or folder", "correct the path"))
    for candidate in _all():
        if _recognised(candidate, path):
            return candidate
    raise DatasetError(
        diagnosis(path)
        or f"{path}: looks like none of the formats {', '.join(names())}: "
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
        DatasetError: the ending does not determine a format.
    """
    for candidate in _all():
        if candidate.write is not None and path.suffix.lower() in candidate.endings:
            return candidate
    writable = [candidate.name for candidate in _all() if candidate.write is not None]
    raise DatasetError(
        f"{path}: its ending does not determine the format to write: name one with --to: {', '.join(writable)}"
    )
