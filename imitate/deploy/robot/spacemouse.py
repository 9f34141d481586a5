"""Teleoperation by a SpaceMouse through hidapi (extra ``spacemouse``), without 3Dconnexion's driver.

Pushing the cap moves the first three numbers of an action (forward, left, up), turning it the next three (about these
axes, anticlockwise). The left button (``0``) opens and closes the gripper, the right one (``1``) is success; in a
terminal the keys of the keyboard device end episodes too. Pushing the cap is enough to act; no button has to be held.

The person sits behind the robot and faces the same way; ``axes`` reverses directions. If the device is disconnected,
the episode ends and the robot is stopped.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imitate.deploy.robot.handheld import DeviceSource, Gripper, Handheld, Mode, Pushes, Reading
from imitate.errors import RobotError, UserError
from imitate.system import clock
from imitate.system.extras import missing

AXES = ("forward", "left", "up", "roll", "pitch", "yaw")
"""Axes in the order of the action dimensions; turns are about forward, left and up, by the right-hand rule."""
BUTTONS = {"0": "toggle", "1": "success"}
"""Roles by the numbers of the buttons, the left one first."""

PRODUCTS = {
    0x046D: {0xC623, 0xC625, 0xC626, 0xC627, 0xC628, 0xC629, 0xC62B},
    0x256F: {0xC62E, 0xC62F, 0xC631, 0xC632, 0xC633, 0xC635, 0xC636, 0xC638, 0xC63A, 0xC641, 0xC652},
}  # fmt: skip
"""Product numbers of devices with six axes, by the vendor number of Logitech or 3Dconnexion."""
_SIX_AXES = (1, 8)
"""HID usage page and usage of a multi-axis controller."""
_FULL = 350.0
_REPORT_S = 0.5
"""Seconds without a report after which the cap counts as released; a pushed cap reports many times a second."""


class SpaceMouse(Handheld):
    """Teleoperation device: a SpaceMouse, see the module.

    Args:
        scale: fraction of the action's range for a full push, in (0, 1].
        dead_band: pushes up to this fraction of the travel are ignored.
        axes: an axis (:data:`AXES`, with ``-`` for the opposite direction) for each number of an action besides the
            gripper; null for a number that stays. By default all six in their order, or the first ones.
        buttons: roles that differ from :data:`BUTTONS`, such as ``{"0": "close", "1": "open"}``.
        grace_s: seconds for which the pose is kept after the cap was released.
        gripper: see :class:`imitate.deploy.robot.handheld.Pushes`.
        mode: see :class:`imitate.deploy.robot.handheld.Pushes`.
        index: index of the device if several are connected, from 0.
        keys: true to let keys of the terminal end an episode, too.
        source: reader of the device; by default through hidapi.
    """

    def __init__(
        self,
        scale: float = 0.3,
        dead_band: float = 0.1,
        axes: Sequence[str | None] | None = None,
        buttons: Mapping[str, str] | None = None,
        grace_s: float = 0.3,
        gripper: Gripper = True,
        mode: Mode | None = None,
        index: int = 0,
        keys: bool = True,
        source: DeviceSource | None = None,
    ) -> None:
        super().__init__(
            source or HIDSpaceMouse(index),
            Pushes(scale, gripper, mode),
            axes=axes,
            buttons={**BUTTONS, **(buttons or {})},
            hold=False,
            dead_band=dead_band,
            grace_s=grace_s,
            keys=keys,
        )


class Cap:
    """State of a SpaceMouse according to its reports."""

    def __init__(self) -> None:
        self._raw = [
            0
        ] * 6  # pushes to the right, towards the person, down; then turns about these axes
        self._buttons = 0
        self._moved = -float("inf")

    def take(self, report: Sequence[int], now: float) -> None:
        """Process a report: a byte with its number, then 16-bit little-endian values, or the bits of the buttons.

        Report 1 contains the pushes (and on some devices the turns), report 2 the turns, report 3 the buttons. Other
        reports are ignored.
        """
        kind, data = (report[0], bytes(report[1:])) if report else (0, b"")
        if kind == 3:
            self._buttons = int.from_bytes(data, "little")
            return
        begin = {1: 0, 2: 3}.get(kind)
        if begin is None or len(data) < 6:
            return
        count = min(len(data) // 2, 6 - begin)
        for place in range(count):
            pair = data[2 * place : 2 * place + 2]
            self._raw[begin + place] = int.from_bytes(pair, "little", signed=True)
        self._moved = now

    def reading(self, now: float) -> Reading:
        """Return the pushes and the pressed buttons."""
        fresh = now - self._moved <= _REPORT_S
        right, back, down, about_right, about_back, about_down = (
            max(-1.0, min(1.0, value / _FULL)) if fresh else 0.0 for value in self._raw
        )
        pushes = (-back, -right, -down, -about_back, -about_right, -about_down)
        buttons = (
            str(bit) for bit in range(self._buttons.bit_length()) if self._buttons >> bit & 1
        )
        return Reading(dict(zip(AXES, pushes, strict=True)), frozenset(buttons))


class HIDSpaceMouse:
    """SpaceMouse read through hidapi.

    Args:
        index: index among the connected devices.
        hid: module with hidapi's ``enumerate()`` and ``device()``; by default hidapi is imported.
    """

    axes: tuple[str, ...] = AXES

    def __init__(self, index: int = 0, hid: Any = None) -> None:
        self.name, self._index, self._hid = "SpaceMouse", index, hid
        self._device: Any = None
        self._cap = Cap()

    def open(self) -> None:
        """Open the device.

        Raises:
            UserError: no device is connected, opening it is not permitted, or hidapi is not installed.
        """
        hid = self._hid or _hidapi()
        found = list(spacemice(hid.enumerate()))
        if self._index >= len(found):
            raise UserError(
                f"there is no SpaceMouse {self._index}: {len(found)} are connected, and index counts from "
                "0"
            )
        chosen = found[self._index]
        self.name = chosen.get("product_string") or "SpaceMouse"
        device = hid.device()
        try:
            device.open_path(chosen["path"])
            device.set_nonblocking(True)
        except OSError as error:
            raise UserError(
                f"the SpaceMouse '{self.name}' cannot be opened ({error}): close other programs that use it; on Linux "
                'a udev rule must allow access, such as: KERNEL=="hidraw*", ATTRS{idVendor}=="256f", MODE="0666"'
            ) from error
        self._device = device

    def read(self) -> Reading:
        """Return the current state.

        Raises:
            RobotError: the device was disconnected.
        """
        now = clock.now()
        try:
            while report := self._device.read(64):
                self._cap.take(report, now)
        except (OSError, ValueError) as error:
            raise RobotError(
                f"the SpaceMouse '{self.name}' was disconnected ({error}); the robot was stopped"
            ) from error
        return self._cap.reading(now)

    def close(self) -> None:
        """Release the device."""
        device, self._device = self._device, None
        if device is not None:
            device.close()


def spacemice(devices: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Return the SpaceMice among hidapi's devices, each once, by the interface that reports the axes.

    Some systems do not report the usage of an interface (0); then all interfaces count.
    """
    seen = set()
    for device in devices:
        usage = (device.get("usage_page") or 0, device.get("usage") or 0)
        known = device.get("product_id") in PRODUCTS.get(device.get("vendor_id", 0), ())
        if known and usage in (_SIX_AXES, (0, 0)) and device["path"] not in seen:
            seen.add(device["path"])
            yield device


def _hidapi() -> Any:
    try:
        import hid
    except ImportError as error:
        raise UserError(f"spacemouse: {missing('spacemouse', error)}") from error
    return hid
