"""Check recorded scenes (MJCF) before MuJoCo loads them: the files that they name, and the memory that they need.

A demonstration contains the scene of its episode as text. MuJoCo opens any file that a scene names, even other scenes,
and allocates textures, grids and copies of any size.
"""

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

from imitate.errors import EnvError
from imitate.system.trust import check_paths

_FOREIGN = frozenset(
    {
        *("include", "model", "attach", "plugin", "extension"),
        *("replicate", "composite", "flexcomp"),
    }
)
"""Elements that include other files or repeat other elements; MuJoCo and robosuite never write them."""
_COUNTS = ("width", "height", "nrow", "ncol", "nsample", "dim")
"""Attributes, each an integer, whose product is the number of values of an element."""
MOST_VALUES = 2**28
"""Largest total number of values in the textures, height fields and tables of a scene."""
_FACES = 6


def check_scene(xml: str, env_name: str, folder: Path, own: Callable[[], str]) -> None:
    """Raise EnvError for a scene that reads files outside the allowed folders or needs too much memory.

    Args:
        xml: the scene, with the paths of files on this machine.
        env_name: name of the environment, for error messages.
        folder: folder of the simulator, whose files the scene may name.
        own: function that returns the environment's own scene; the folders of the files in it are allowed, too.

    Raises:
        EnvError: the scene is not allowed. Files at paths that the user trusts are always allowed.
    """
    root = _parsed(xml, env_name)
    for element in root.iter():
        if element.tag in _FOREIGN or element.get("strippath") == "true":
            raise EnvError(
                f"{env_name}: the recorded scene (model_file) has a part <{element.tag}> that includes other files or "
                "multiplies itself, unlike any recorded scene: remove the demo, or its model_file"
            )
    if sum(map(_values, root.iter())) > MOST_VALUES:
        raise EnvError(
            f"{env_name}: the recorded scene (model_file) needs more than {MOST_VALUES:,} values of textures, "
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
    """Yield the paths of files that a scene names, in ``file`` or as faces of a texture, ``fileup`` to ``fileback``."""
    for element in root.iter():
        yield from (value for key, value in element.attrib.items() if key.startswith("file"))


def _is_in(path: str, folders: list[Path]) -> bool:
    """Return True for an absolute path in one of the folders, if it is a regular file or does not exist."""
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
    except ValueError:  # for example a memory size "9G"
        return math.inf
    return math.prod(counts) * (3 * _FACES if element.tag == "texture" else 1)
