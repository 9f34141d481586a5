"""Create LeRobot's devices by type, connect them, and read names and ranges of their motors.

LeRobot registers a device when the module of its configuration is imported. So all of LeRobot's modules of a kind are
imported, and the installed plug-ins (distributions called ``lerobot_robot_*``, ``lerobot_teleoperator_*`` and
``lerobot_camera_*``), as LeRobot's own commands do. See https://huggingface.co/docs/lerobot.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from imitate.errors import UserError, nearest
from imitate.system.extras import missing

Kind = Literal["robot", "teleoperator"]
_CONFIGS = {"robot": "RobotConfig", "teleoperator": "TeleoperatorConfig"}
_EXAMPLES = {"robot": "so101_follower", "teleoperator": "so101_leader"}
_TORQUE = "disable_torque_on_disconnect"
_ARMS = ("left_arm", "right_arm")


def make_device(kind: Kind, name: str | None, options: Mapping[str, Any]) -> Any:
    """Create a device of one of LeRobot's types, without connecting it.

    A robot's motors keep their torque when it is disconnected, unless ``disable_torque_on_disconnect`` is among the
    options: an arm without torque falls.

    Args:
        kind: ``robot`` or ``teleoperator``.
        name: LeRobot's name of the type, such as ``so101_follower``; None raises an error that names an example.
        options: fields of the type's configuration; nested fields, such as ``cameras``, as dicts or as YAML text.

    Raises:
        UserError: LeRobot is not installed, there is no such type, or it does not accept the options.
    """
    if name is None:
        raise UserError(
            f"the type of LeRobot's {kind} is missing: give one, such as lerobot:{_EXAMPLES[kind]}"
        )
    try:
        package = import_module(f"lerobot.{kind}s")
        import draccus  # the package with which LeRobot parses configurations
    except ImportError as error:
        raise UserError(
            f"LeRobot's {kind}s need the package lerobot, in a Python environment without robosuite, which needs an "
            f"older numpy: {missing('lerobot-robots', error)}"
        ) from error
    base = getattr(package, _CONFIGS[kind])
    failed = _import_types(package.__name__)
    known = base.get_known_choices()
    if name not in known:
        broken = "".join(f"; '{module}' could not be imported: {why}" for module, why in failed)
        raise UserError(f"LeRobot has no {kind} '{name}'; {nearest(name, known)}{broken}")
    _check_options(kind, name, known[name], options)
    try:
        config = draccus.decode(base, {**{k: _parsed(v) for k, v in options.items()}, "type": name})
        if kind == "robot":
            _keep_torque(config, options)
        return getattr(package, f"make_{kind}_from_config")(config)
    except Exception as error:  # LeRobot, a plug-in or a manufacturer's SDK may raise any error
        # LeRobot's message repeats the whole configuration; the error that caused it is shorter.
        why = first_line(error.__cause__ or error)
        raise UserError(f"LeRobot's {kind} '{name}' cannot be made: {why}") from error


def open_device(kind: Kind, device: Any, calibrate: bool, given: Mapping[str, Any]) -> None:
    """Connect a device.

    Args:
        kind: ``robot`` or ``teleoperator``.
        device: device that is not connected.
        calibrate: true to let LeRobot calibrate a device that needs it, which asks questions at the terminal and may
            move it.
        given: ``type`` and fields of the device's configuration, for error messages.

    Raises:
        UserError: the device cannot be connected or is not calibrated; it is then disconnected.
    """
    takes = signature(device.connect).parameters
    try:
        device.connect(**({"calibrate": calibrate} if "calibrate" in takes else {}))
        calibrated = device.is_calibrated
        # In some of LeRobot's devices is_calibrated is a method, or None if there is nothing to calibrate.
        is_ready = (calibrated() if callable(calibrated) else calibrated) is not False
    except Exception as error:
        close_device(device)
        raise UserError(
            f"LeRobot's '{given['type']}' cannot be connected: {first_line(error)}"
        ) from error
    if is_ready:
        return
    close_device(device)
    word = "teleop" if kind == "teleoperator" else kind
    said = " ".join(
        f"--{word}.{key}={value}"
        for key, value in given.items()
        if isinstance(value, (str, int)) and not str(value).startswith("{")
    )
    file = getattr(device, "calibration_fpath", "its file")
    raise UserError(
        f"LeRobot's '{given['type']}' is not calibrated, or its motors differ from the calibration in {file}: run "
        f"lerobot-calibrate {said}"
    )


def close_device(device: Any) -> None:
    """Disconnect a device, even if it is only partly connected."""
    with contextlib.suppress(Exception):  # raised if a part is not connected
        device.disconnect()


def number_names(features: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the numbers in an array, in the order of LeRobot's features.

    Args:
        features: ``{name: float}``, or ``{"names": {name: index}, "shape": ...}`` as for gamepads.
    """
    if "names" in features and "shape" in features:
        names = features["names"]
        return tuple(sorted(names, key=lambda name: names[name]))
    return tuple(name for name, kind in features.items() if not isinstance(kind, (tuple, list)))


def ranges_of(device: Any, names: Iterable[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lowest and highest positions (A,) of the named motors, in the units of actions; infinite if unknown.

    They are ``joint_limits`` of the configuration, or else follow from the unit of a motor: -100 to 100, 0 to 100, or
    the calibrated range in degrees.
    """
    arms = [("", device)]
    arms += [(f"{arm[:-3]}", getattr(device, arm)) for arm in _ARMS if hasattr(device, arm)]
    ranges = [_range_of(arms, name) for name in names]
    low, high = np.array(ranges, dtype=np.float64).reshape(-1, 2).T
    return low, high


def buses_of(device: Any) -> list[Any]:
    """Return the motor buses whose torque can be switched off: one for each arm."""
    parts = [device, *(getattr(device, arm) for arm in _ARMS if hasattr(device, arm))]
    buses = [getattr(part, "bus", None) for part in parts]
    return [bus for bus in buses if hasattr(bus, "disable_torque")]


def first_line(error: BaseException) -> str:
    """Format an error in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def type_of(device: Any) -> str:
    """Return LeRobot's name of a connected device's type."""
    return str(getattr(getattr(device, "config", None), "type", None) or device.name)


def _import_types(package: str) -> list[tuple[str, str]]:
    """Import modules and plug-ins, which register their types; return the names of failed ones with the reason."""
    from lerobot.utils.import_utils import register_third_party_plugins

    rooms = (package, "lerobot.cameras")
    names = [m.name for r in rooms for m in iter_modules(import_module(r).__path__, f"{r}.")]
    failed = [(name, why) for name in names if (why := _import_error(name)) is not None]
    register_third_party_plugins()
    return failed


def _import_error(module: str) -> str | None:
    try:
        import_module(module)
    except Exception as error:  # if the SDK of one device is missing, others can still be used
        return first_line(error)
    return None


def _check_options(kind: Kind, name: str, config: Any, options: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(config)]
    for option in options:
        if option not in known:
            raise UserError(
                f"LeRobot's {kind} '{name}' has no option '{option}'; {nearest(option, known)}"
            )


def _parsed(value: Any) -> Any:
    """Parse an option like LeRobot's own command line: ``{front: {type: opencv}}`` is YAML."""
    if not (isinstance(value, str) and value.lstrip().startswith("{")):
        return value
    import yaml

    return yaml.safe_load(value)


def _keep_torque(config: Any, given: Any) -> None:
    """Add the option that keeps the torque on at disconnecting, for each arm, unless the options set it."""
    said = given if isinstance(given, Mapping) else {}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == _TORQUE and _TORQUE not in said:
            setattr(config, _TORQUE, False)
        elif is_dataclass(value):
            _keep_torque(value, _parsed(said.get(field.name)))


def _range_of(arms: list[tuple[str, Any]], name: str) -> tuple[float, float]:
    for prefix, arm in arms:
        motor = name.removesuffix(".pos").removeprefix(prefix)
        if not (name.endswith(".pos") and name.startswith(prefix)):
            continue
        limits = getattr(getattr(arm, "config", None), "joint_limits", None) or {}
        if motor in limits:
            low, high = limits[motor]
            return float(low), float(high)
        bus = getattr(arm, "bus", None)
        if motor in (getattr(bus, "motors", None) or {}):
            return _range_on_bus(bus, motor)
    return -np.inf, np.inf


def _range_on_bus(bus: Any, motor: str) -> tuple[float, float]:
    """Return the range of a motor's positions, which depends on the unit as in LeRobot's ``MotorsBus``."""
    unit = getattr(getattr(bus.motors[motor], "norm_mode", None), "value", None)
    if unit == "range_0_100":
        return 0.0, 100.0
    if unit == "range_m100_100":
        return -100.0, 100.0
    calibration = (getattr(bus, "calibration", None) or {}).get(motor)
    if unit != "degrees" or calibration is None:
        return -np.inf, np.inf
    resolution = getattr(bus, "model_resolution_table", {}).get(bus.motors[motor].model)
    if resolution is None:
        return -np.inf, np.inf
    half = (calibration.range_max - calibration.range_min) / 2 * 360 / (resolution - 1)
    return -float(half), float(half)
