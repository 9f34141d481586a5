"""Translate env_args and scenes of older robosuite versions for the installed version.

robosuite 1.5 gave every robot a composite controller, but files of 1.0 to 1.4 describe the controller of one arm. The
differences are:

==================  ==========================================  =====================================================
                    1.0 - 1.4                                   1.5
==================  ==========================================  =====================================================
controller          ``{"type": "OSC_POSE", ...}``               ``{"type": "BASIC", "body_parts": {"right": {...}}}``
no controller       ``JOINT_VELOCITY``                          ``OSC_POSE``
delta or absolute   ``control_delta: true | false``             ``input_type: "delta" | "absolute"``
frame of commands   the world                                   ``input_ref_frame``, by default the robot's base
``damping``         the name before 1.2; later without effect   ``damping_ratio``
physics             every substep                               ``lite_physics: true`` omits some
==================  ==========================================  =====================================================

Scenes (MJCF) that robosuite before 1.5 wrote are translated too. robosuite 1.5 renamed grippers (``gripper0_`` became
``gripper0_right_``) and mounts (``mount0_`` became ``fixed_mount0_``); its controllers look for a site
``robot0_right_center``; some meshes have moved or have another suffix.
"""

import copy
import json
import logging
import posixpath
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from imitate.errors import EnvError
from imitate.system.extras import install_command

ROBOSUITE = 1
"""``env_args.type`` of robosuite."""
ABSENT = "absent"
COMMAND = "imitate dataset migrate-env FILE"

_logger = logging.getLogger(__name__)

_OSC = ("OSC_POSE", "OSC_POSITION")
ARM_TYPES = (*_OSC, "IK_POSE", "JOINT_POSITION", "JOINT_VELOCITY", "JOINT_TORQUE")
_OLD_DEFAULT = {
    "type": "JOINT_VELOCITY",
    "input_max": 1,
    "input_min": -1,
    "output_max": 0.5,
    "output_min": -0.5,
    "kp": 0.03,
    "velocity_limits": [-1, 1],
    "interpolation": None,
    "ramp_ratio": 0.2,
}
_RENAMED_KWARGS = {"mount_types": "base_types", "camera_depth": "camera_depths"}
_REMOVED_KWARGS = (
    "gripper_visualization",
    "gripper_visualizations",
    "use_indicator_object",
    "renderer",
    "renderer_config",
)
_ARRANGEMENTS = {
    "single-arm-opposed": "opposed",
    "single-arm-parallel": "parallel",
    "bimanual": "single-robot",
}
_TWO_ARMED = ("Baxter",)


@dataclass(frozen=True)
class Change:
    """One change of the env_args.

    Attributes:
        key: dotted key, such as ``env_kwargs.lite_physics``.
        old: previous value as JSON, or 'absent' if there was none.
        new: new value as JSON, or 'absent' if the key was removed.
        reason: short explanation.
    """

    key: str
    old: str
    new: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new} ({self.reason})"


def installed_robosuite() -> str | None:
    """Return the version of the installed robosuite, without importing it, or None."""
    try:
        return metadata.version("robosuite")
    except metadata.PackageNotFoundError:
        return None


def migrate_env_args(
    env_args: Mapping[str, Any], installed: str | None = None
) -> tuple[dict[str, Any], list[Change]]:
    """Translate env_args for robosuite 1.5 or later.

    Args:
        env_args: env_args of a demonstration file or a checkpoint; those of other simulators or newer versions are
            returned unchanged.
        installed: version to translate for, or None for the installed version.

    Returns:
        The new env_args, and the changes.

    Raises:
        EnvError: the env_args cannot be translated.
    """
    new: dict[str, Any] = copy.deepcopy(dict(env_args))
    target = installed or installed_robosuite()
    if new.get("type") != ROBOSUITE or target is None:
        return new, []
    version = str(new.get("env_version") or "")
    recorded, wanted = _release(version), _release(target)
    if wanted is None or wanted < (1, 5) or (recorded is not None and recorded > wanted):
        return new, []
    kwargs = dict(new.get("env_kwargs") or {})
    is_old = recorded < (1, 5) if recorded is not None else _has_flat_controller(kwargs)
    if recorded is not None and recorded < (1, 0):
        raise EnvError(
            f"env_args: recorded with robosuite {version}: versions before 1.0 have other tasks and controllers; "
            "record again, or train without the simulator"
        )
    changes: list[Change] = []
    edit = _Editor(kwargs, "env_kwargs", changes)
    if is_old:
        _migrate_old_kwargs(edit)
    _migrate_controllers(edit, is_old=is_old, damping_works=recorded is None or recorded < (1, 2))
    new["env_kwargs"] = kwargs
    if version != target and (version or changes):
        _Editor(new, "", changes).put("env_version", target, "the installed one")
    return new, changes


def version_note(env_args: Mapping[str, Any], installed: str | None = None) -> str | None:
    """Return a line on a mismatch between env_args and the installed robosuite, with the remedy, or None.

    Versions that differ only in their third number are not a mismatch.
    """
    target = installed or installed_robosuite()
    if env_args.get("type") != ROBOSUITE or target is None:
        return None
    name, version = env_args.get("env_name"), str(env_args.get("env_version") or "")
    recorded, wanted = _release(version), _release(target)
    if recorded is not None and wanted is not None and recorded > wanted:
        return (
            f"{name}: recorded with robosuite {version}, but {target} is installed, which may refuse or change newer "
            f"settings; run: pip install 'robosuite=={version}'"
        )
    kwargs = env_args.get("env_kwargs") or {}
    if recorded != wanted and recorded is not None:
        what = f"recorded with robosuite {version}, {target} is installed"
    elif recorded is None and _has_flat_controller(kwargs):
        what = f"its controller is described as before robosuite 1.5, {target} is installed"
    else:
        return None
    return (
        f"{name}: {what}; its description is translated for this run, and the motion may differ a little. To translate "
        f"and check a file: {COMMAND}"
    )


def fitted(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the env_args for the installed robosuite; log a mismatch in one line.

    A command with many processes calls this before it starts them, so that the line appears once.

    Raises:
        EnvError: the env_args cannot be translated.
    """
    tell_mismatch(env_args)
    return migrate_env_args(env_args)[0]


def tell_mismatch(env_args: Mapping[str, Any]) -> None:
    """Log the result of :func:`version_note`, unless it is None."""
    note = version_note(env_args)
    if note is not None:
        _logger.warning(note)


class _Editor:
    """Changes a dict and keeps a list of the changes."""

    def __init__(self, table: dict[str, Any], path: str, changes: list[Change]) -> None:
        self.table, self.path, self.changes = table, path, changes

    def put(self, key: str, value: Any, reason: str) -> None:
        old = _json(self.table[key]) if key in self.table else ABSENT
        self.table[key] = value
        self._note(key, old, _json(value), reason)

    def drop(self, key: str, reason: str) -> None:
        if key in self.table:
            self._note(key, _json(self.table.pop(key)), ABSENT, reason)

    def rename(self, key: str, new: str, reason: str) -> None:
        if key not in self.table:
            return
        value = self.table.pop(key)
        self.table.setdefault(new, value)
        self._note(key, _json(value), f"{new} {_json(self.table[new])}", reason)

    def _note(self, key: str, old: str, new: str, reason: str) -> None:
        self.changes.append(Change(f"{self.path}.{key}" if self.path else key, old, new, reason))


def _migrate_old_kwargs(edit: _Editor) -> None:
    for key, new in _RENAMED_KWARGS.items():
        edit.rename(key, new, "renamed")
    for key in _REMOVED_KWARGS:
        edit.drop(key, "no longer there")
    arrangement = _ARRANGEMENTS.get(str(edit.table.get("env_configuration")))
    if arrangement is not None:
        edit.put("env_configuration", arrangement, "renamed")
    if "lite_physics" not in edit.table:
        edit.put("lite_physics", False, "the simulation steps before 1.5")
    robots = edit.table.get("robots", "Panda")
    for robot in [robots] if isinstance(robots, str) else robots:
        if robot in _TWO_ARMED:
            raise EnvError(
                f"env_args: since robosuite 1.5 the actions of {robot} are in another order (arms, then grippers): "
                "install robosuite 1.4.1 for this file"
            )


def _migrate_controllers(edit: _Editor, *, is_old: bool, damping_works: bool) -> None:
    configs = edit.table.get("controller_configs")
    if configs is None:
        if is_old:
            edit.put("controller_configs", _composite(dict(_OLD_DEFAULT)), "the default before 1.5")
        return
    single = not isinstance(configs, list)
    translated = []
    for number, config in enumerate([configs] if single else configs):
        if not isinstance(config, dict):
            raise EnvError(
                f"env_args['env_kwargs']['controller_configs'] is {_json(config)[:60]}: expected a dict with the "
                "controller's settings"
            )
        key = "controller_configs" if single else f"controller_configs[{number}]"
        translated.append(
            _translated(config, key, edit, is_old=is_old, damping_works=damping_works)
        )
    edit.table["controller_configs"] = translated[0] if single else translated


def _translated(
    config: dict[str, Any], key: str, edit: _Editor, *, is_old: bool, damping_works: bool
) -> dict[str, Any]:
    path = f"{edit.path}.{key}"
    if _is_flat(config):
        old = config
        config = _composite(config)
        edit.changes.append(
            Change(
                path,
                f"flat {old['type']}",
                f"BASIC, body_parts.right: {old['type']}",
                "all parts of a robot",
            )
        )
    elif (
        "control_delta" in config
    ):  # keys for older versions that a configuration has added to a composite controller
        delta = config.pop("control_delta")
        for part in config.get("body_parts", {}).values():
            part["control_delta"] = delta
    for name, part in (config.get("body_parts") or {}).items():
        if isinstance(part, dict) and part.get("type") in ARM_TYPES:
            _migrate_arm(
                _Editor(part, f"{path}.body_parts.{name}", edit.changes), is_old, damping_works
            )
    return config


def _migrate_arm(edit: _Editor, is_old: bool, damping_works: bool) -> None:
    part = edit.table
    for key, new in (("damping", "damping_ratio"), ("damping_limits", "damping_ratio_limits")):
        if damping_works:
            edit.rename(key, new, "renamed")
        else:
            edit.drop(key, f"without effect since 1.2, which uses {new}")
    if part["type"] in (*_OSC, "JOINT_POSITION") and "control_delta" in part:
        delta = part.pop("control_delta")
        mode = "delta" if delta else "absolute"
        if part.setdefault("input_type", mode) != mode:
            mode = part["input_type"]
        edit.changes.append(
            Change(f"{edit.path}.control_delta", _json(delta), f'input_type "{mode}"', "renamed")
        )
    if is_old and part["type"] in _OSC and "input_ref_frame" not in part:
        edit.put("input_ref_frame", "world", "commands were in the world's frame before 1.5")
    for key in ("position_limits", "orientation_limits"):
        if part.get(key) is not None:
            edit.put(key, None, "1.5 cannot limit goals, so commands beyond the limit move farther")


def _composite(arm: dict[str, Any]) -> dict[str, Any]:
    return {"type": "BASIC", "body_parts": {"right": {**arm, "gripper": {"type": "GRIP"}}}}


def _is_flat(config: Any) -> bool:
    return (
        isinstance(config, dict) and "body_parts" not in config and config.get("type") in ARM_TYPES
    )


def _has_flat_controller(kwargs: Mapping[str, Any]) -> bool:
    configs = kwargs.get("controller_configs")
    return any(map(_is_flat, configs if isinstance(configs, list) else [configs]))


def _release(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return None


def _json(value: Any) -> str:
    return json.dumps(value, default=str)


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
        assets: robosuite's folder ``models/assets``; None for the folder of the installed robosuite.

    Returns:
        The translated scene, and the number of changes of each kind.

    Raises:
        EnvError: the scene cannot be read, or is not from robosuite.
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
                changes[f"option {attribute} removed"] += 1
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
    """Replace a file's path by its path in the installed robosuite, relative to robosuite's folder."""
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
    """Add the site at which controllers measure the base's motion, at the parent of the first joint's body."""
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
    """Mark meshes without volume that provide no inertia as shells, because MuJoCo would refuse them otherwise."""
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
