"""Scenes (MJCF) that robosuite before 1.5 wrote, for the robosuite that is installed.

What 1.5 named anew: grippers (``gripper0_`` became ``gripper0_right_``) and mounts (``mount0_`` became
``fixed_mount0_``); its controllers look for a site ``robot0_right_center``; some meshes have moved, or have another
ending.
"""

from __future__ import annotations

import posixpath
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from imitate.errors import EnvError

_NEW_SCENE = re.compile(r'name="robot\d+_\w*_center"')
_PREFIXES = (
    (re.compile(r"^gripper(\d+)_"), r"gripper\1_right_"),
    (re.compile(r"^mount(\d+)_"), r"fixed_mount\1_"),
)
_ASSETS = "robosuite/models/assets/"
_ENDINGS = (".obj", ".stl", ".msh", ".png")
_NO_LONGER_READ = {"compiler": ("coordinate",), "option": ("collision", "apirate")}


def migrate_model_xml(xml: str, assets: Path | None = None) -> tuple[str, Counter[str]]:
    """Translate a scene; one of robosuite 1.5 or later comes back as it is.

    Args:
        xml: ``model_file`` of a demonstration.
        assets: robosuite's folder ``models/assets``; None: that of the one installed.

    Returns:
        the scene, and how often what was changed.

    Raises:
        EnvError: the scene cannot be read, or is not one of robosuite's.
    """
    changes: Counter[str] = Counter()
    if _NEW_SCENE.search(xml):
        return xml, changes
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise EnvError(
            f"model_file is not XML ({error}): remove the demo, or its model_file"
        ) from error
    folder = assets or _installed_assets()
    for element in root.iter():
        _rename(element, changes)
        for attribute in _NO_LONGER_READ.get(element.tag, ()):
            if element.attrib.pop(attribute, None) is not None:
                changes[f"{element.tag} {attribute} left out"] += 1
        if "file" in element.attrib:
            _relocate(element, folder, changes)
    _add_centers(root, folder, changes)
    return ElementTree.tostring(root, encoding="unicode"), changes


def _installed_assets() -> Path:
    spec = find_spec("robosuite")
    if spec is None or spec.origin is None:
        raise EnvError("robosuite is not installed; do: pip install 'imitate[robosuite]'")
    return Path(spec.origin).parent / "models" / "assets"


def _rename(element: ElementTree.Element, changes: Counter[str]) -> None:
    for attribute, value in element.attrib.items():
        if attribute == "file":
            continue
        for prefix, new in _PREFIXES:
            renamed, count = prefix.subn(new, value)
            if count:
                element.set(attribute, renamed)
                changes[f"{prefix.pattern[1:-6]}* renamed"] += 1


def _relocate(element: ElementTree.Element, assets: Path, changes: Counter[str]) -> None:
    """Where the file is now, relative to robosuite; the folders before that are found when the scene is loaded."""
    path = element.attrib["file"]
    before, found, inside = path.rpartition(_ASSETS)
    if not found:
        return
    place = posixpath.normpath(inside)
    if place.startswith("mounts/"):
        place = "bases/" + place[len("mounts/") :]
    if not (assets / place).exists():
        stem = posixpath.splitext(place)[0]
        others = [stem + ending for ending in _ENDINGS if (assets / (stem + ending)).exists()]
        place = others[0] if others else place
    if place != inside:
        element.set("file", before + _ASSETS + place)
        changes["asset paths corrected"] += 1


def _add_centers(root: ElementTree.Element, assets: Path, changes: Counter[str]) -> None:
    bodies = {body.get("name"): body for body in root.iter("body")}
    for number, folder in sorted(_robot_folders(root)):
        for site, parent in _centers(assets / "robots" / folder / "robot.xml"):
            body = bodies.get(f"robot{number}_{parent}")
            if body is None:
                raise EnvError(
                    f"model_file: robot{number} ({folder}) has no body '{parent}': the robot was another one; "
                    "remove model_file, and robosuite builds the scene"
                )
            name = f"robot{number}_{site}"
            ElementTree.SubElement(
                body, "site", name=name, pos="0 0 0", size="0.01", rgba="0 0 0 0"
            )
            changes["site *_center added"] += 1


def _robot_folders(root: ElementTree.Element) -> set[tuple[int, str]]:
    """Number and folder of each robot, by the paths of its meshes."""
    found = set()
    for mesh in root.iter("mesh"):
        robot = re.match(r"robot(\d+)_", mesh.get("name", ""))
        place = re.search(rf"{_ASSETS}robots/([^/]+)/", mesh.get("file", ""))
        if robot and place:
            found.add((int(robot[1]), place[1]))
    return found


def _centers(robot: Path) -> list[tuple[str, str]]:
    """Sites of an installed robot that its controllers measure from, with the bodies they are in."""
    if not robot.exists():
        return []
    return [
        (name, body.get("name", ""))
        for body in ElementTree.parse(robot).iter("body")
        for site in body.findall("site")
        if (name := site.get("name", "")).endswith("_center")
    ]
