"""Scenes (MJCF) out of files, checked before MuJoCo reads them: the files that they name, and the memory they ask for.

A demonstration has the scene of its episode as text. MuJoCo opens whatever file a scene names, whole other scenes too,
and makes textures, grids and copies of any size.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

from imitate.envs.trust import check_paths
from imitate.errors import EnvError

_FOREIGN = frozenset(
    {
        *("include", "model", "attach", "plugin", "extension"),
        *("replicate", "composite", "flexcomp"),
    }
)
"""Elements that take in other files or multiply a part: MuJoCo's and robosuite's own writers leave none in a scene."""
_COUNTS = ("width", "height", "nrow", "ncol", "nsample", "dim")
"""Attributes whose product is the number of values of an element; of ``size`` all are, of ``numeric`` its size."""
MOST_VALUES = 2**28
"""Largest total number of values in the textures, height fields and tables of a scene."""
_FACES = 6


def check_scene(xml: str, env_name: str, folder: Path, own: Callable[[], str]) -> None:
    """Refuse a scene that reads files from elsewhere, or takes much more memory than its text.

    Args:
        xml: the scene, with the places of files on this machine.
        env_name: of the environment, for messages.
        folder: of the simulator, whose files it may name.
        own: gives the environment's own scene, in whose files' folders others may be too.

    Raises:
        EnvError: see above; a file that the user trusts by its path is no reason.
    """
    root = _parsed(xml, env_name)
    for element in root.iter():
        if element.tag in _FOREIGN or element.get("strippath") == "true":
            raise EnvError(
                f"{env_name}: the recorded scene (model_file) has a part <{element.tag}> that takes in other files or "
                "multiplies itself, which no recorded scene does: remove the demo, or its model_file"
            )
    if sum(map(_values, root.iter())) > MOST_VALUES:
        raise EnvError(
            f"{env_name}: the recorded scene (model_file) asks for more than {MOST_VALUES:,} values of textures, "
            "fields or tables: remove the demo, or its model_file"
        )
    outside = [path for path in _files(root) if not _is_in(path, [folder])]
    if outside:
        folders = [Path(path).parent for path in _files(_parsed(own(), env_name))]
        outside = [path for path in outside if not _is_in(path, folders)]
    check_paths(env_name, "model_file", outside)


def _parsed(xml: str, env_name: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(xml)
    except (ElementTree.ParseError, ValueError) as error:
        raise EnvError(
            f"{env_name}: model_file is not XML ({error}): remove the demo, or its model_file"
        ) from error


def _files(root: ElementTree.Element) -> Iterator[str]:
    """Yield the files that a scene names: ``file``, and those of the faces of a texture, ``fileup`` to ``fileback``."""
    for element in root.iter():
        yield from (value for key, value in element.attrib.items() if key.startswith("file"))


def _is_in(path: str, folders: list[Path]) -> bool:
    """Return true for an absolute path to a regular file, or to nothing, in one of the folders."""
    if "\0" in path or not Path(path).is_absolute():
        return False
    place = Path(path).resolve()
    return (place.is_file() or not place.exists()) and any(
        place.is_relative_to(folder.resolve()) for folder in folders
    )


def _values(element: ElementTree.Element) -> float:
    keys = [key for key in element.attrib if key in _COUNTS or element.tag == "size"]
    keys += ["size"] if element.tag == "numeric" and "size" in element.attrib else []
    if not keys:
        return 0
    try:
        counts = [max(1, int(element.attrib[key])) for key in keys]
    except ValueError:  # such as a memory of "9G"
        return math.inf
    return math.prod(counts) * (3 * _FACES if element.tag == "texture" else 1)
