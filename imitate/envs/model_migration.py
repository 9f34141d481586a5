"""Scenes (MJCF) that robosuite before 1.5 wrote, for the robosuite that is installed.

robosuite 1.5 renamed grippers (``gripper0_`` became ``gripper0_right_``) and mounts (``mount0_`` became
``fixed_mount0_``); its controllers look for a site ``robot0_right_center``; some meshes have moved or have another
suffix.
"""

from __future__ import annotations

import posixpath
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from imitate.errors import EnvError
from imitate.system.extras import install_command

_NEW_SCENE = re.compile(r'name="robot\d+_\w*_center"')
_PREFIXES = {
    "gripper*_": (re.compile(r"^gripper(\d+)_"), r"gripper\1_right_"),
    "mount*_": (re.compile(r"^mount(\d+)_"), r"fixed_mount\1_"),
}
_ASSETS = "robosuite/models/assets/"
_ENDINGS = (".obj", ".stl", ".msh", ".png")
_UNKNOWN_OPTIONS = ("collision", "apirate", "mpr_iterations", "mpr_tolerance")
"""Options of MuJoCo 2 that MuJoCo 3 refuses."""


def migrate_model_xml(xml: str, assets: Path | None = None) -> tuple[str, Counter[str]]:
    """Translate a scene; a scene of robosuite 1.5 or later is returned unchanged.

    Args:
        xml: ``model_file`` of a demonstration.
        assets: robosuite's folder ``models/assets``; None for the installed one's folder.

    Returns:
        the scene, and the number of changes of each kind.

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
        for attribute in _UNKNOWN_OPTIONS if element.tag == "option" else ():
            if element.attrib.pop(attribute, None) is not None:
                changes[f"option {attribute} left out"] += 1
        if "file" in element.attrib:
            _relocate(element, folder, changes)
    _add_centers(root, changes)
    _allow_flat_meshes(root, changes)
    return ElementTree.tostring(root, encoding="unicode"), changes


def _installed_assets() -> Path:
    spec = find_spec("robosuite")
    if spec is None or spec.origin is None:
        raise EnvError(f"robosuite is not installed; do: {install_command('robosuite')}")
    return Path(spec.origin).parent / "models" / "assets"


def _rename(element: ElementTree.Element, changes: Counter[str]) -> None:
    for attribute, value in element.attrib.items():
        if attribute == "file":
            continue
        for prefix, (old, new) in _PREFIXES.items():
            renamed, count = old.subn(new, value)
            if count:
                element.set(attribute, renamed)
                changes[f"{prefix} renamed"] += 1


def _relocate(element: ElementTree.Element, assets: Path, changes: Counter[str]) -> None:
    """Set the current path of a file, relative to robosuite; its folder is found when the scene is loaded."""
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


def _add_centers(root: ElementTree.Element, changes: Counter[str]) -> None:
    """Add the site at which controllers measure a robot's own motion: at the parent of the first joint's body."""
    done = set()
    for carrier in root.iter("body"):
        for body in carrier.findall("body"):
            joint = body.find("joint")
            robot = re.match(r"robot\d+_", joint.get("name", "")) if joint is not None else None
            if robot is None or robot[0] in done:
                continue
            done.add(robot[0])
            name = f"{robot[0]}right_center"
            ElementTree.SubElement(carrier, "site", name=name, size="0.01", rgba="0 0 0 0")
            changes["site *_center added"] += 1


def _allow_flat_meshes(root: ElementTree.Element, changes: Counter[str]) -> None:
    """Allow meshes without volume if they provide no inertia; MuJoCo refuses them unless their inertia is a shell's."""
    weighing = {
        geom.get("mesh")
        for body in root.iter("body")
        for geom in body.findall("geom")
        if body.find("inertial") is None or geom.get("contype") != "0"
    }
    for mesh in root.iter("mesh"):
        if mesh.get("name") not in weighing:
            mesh.set("inertia", "shell")
            changes["meshes without mass"] += 1
