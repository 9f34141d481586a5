"""Stand-ins for input devices: a source of readings, a SpaceMouse's reports, a pad of SDL."""

import struct

from imitate.deploy.robot.gamepad import sdl_library
from imitate.deploy.robot.handheld import Handheld, Pushes, Reading
from imitate.deploy.robot.limits import ActionLimits
from imitate.errors import RobotError
from tests.deploy.fake_robot import FakeRobot

ARM = ActionLimits(low=[-1.0] * 7, high=[1.0] * 7)
"""robosuite's: three pushes, three turns, a gripper."""

sdl2 = sdl_library()


class Source:
    """A source of readings that a test sets."""

    name = "device"
    axes = ("x", "y", "z", "rx", "ry", "rz")

    def __init__(self):
        self.pushes, self.buttons, self.opened, self.gone = {}, set(), 0, False

    def open(self):
        self.opened += 1

    def read(self):
        if self.gone:
            raise RobotError("the device was disconnected; the robot was stopped")
        return Reading(self.pushes, frozenset(self.buttons))

    def close(self):
        self.opened -= 1


ROLES = {
    **{"rb": "act", "rt": "close", "lt": "open", "g": "toggle"},
    **{"ok": "success", "no": "discard"},
}


SETTINGS = {
    **{"axes": None, "buttons": ROLES, "hold": True, "dead_band": 0.1, "grace_s": 0.0},
    "keys": False,
}


def handheld(source, robot=None, gripper=True, mode="relative", scale=0.5, **options):
    """A device that is connected, and was seen at rest."""
    hand = Handheld(source, Pushes(scale, gripper, mode), **{**SETTINGS, **options})
    hand.connect(robot or FakeRobot(ARM))
    hand.guide(None)
    return hand


# ---- SpaceMouse ----


def pushes(right, back, down):
    return [1, *struct.pack("<3h", right, back, down)]


def turns(right, back, down):
    return [2, *struct.pack("<3h", right, back, down)]


def both(*values):
    return [1, *struct.pack("<6h", *values)]


def buttons(bits):
    return [3, bits & 0xFF, bits >> 8]


def hid_device(**given):
    """Description by hidapi of a SpaceMouse, or of another device."""
    return {"vendor_id": 0x256F, "product_id": 0xC635, "usage_page": 1, "usage": 8, **given}


class FakeHID:
    """hidapi with one SpaceMouse, whose reports a test lays down."""

    def __init__(self, fails_to_open=False):
        self.reports, self.gone, self.closed, self.fails = [], False, False, fails_to_open

    def enumerate(self):
        keyboard = hid_device(vendor_id=0x046D, product_id=0xC31C, usage=6, path=b"k")
        return [keyboard, hid_device(path=b"m", product_string="SpaceMouse Compact")]

    def device(self):
        return self

    def open_path(self, path):
        assert path == b"m"
        if self.fails:
            raise OSError("open failed")

    def set_nonblocking(self, on):
        assert on

    def read(self, most):
        if self.gone:
            raise OSError("read error")
        return self.reports.pop(0) if self.reports else []

    def close(self):
        self.closed = True


# ---- gamepad ----

STICKS = {"leftx": 0, "lefty": 1, "rightx": 2, "righty": 3, "lefttrigger": 4, "righttrigger": 5}
KEYS = [
    "a", "b", "x", "y", "back", "guide", "start", "leftstick", "rightstick", "leftshoulder", "rightshoulder",
    "dpup", "dpdown", "dpleft", "dpright",
]  # fmt: skip


class Pad:
    """A virtual gamepad of SDL in this process."""

    def __init__(self):
        sdl2.SDL_Init(sdl2.SDL_INIT_GAMECONTROLLER)
        kind = sdl2.SDL_JOYSTICK_TYPE_GAMECONTROLLER
        self.place = sdl2.SDL_JoystickAttachVirtual(kind, len(STICKS), len(KEYS), 0)
        assert self.place >= 0, sdl2.SDL_GetError()
        self.joystick = sdl2.SDL_JoystickOpen(self.place)
        for trigger in ("lefttrigger", "righttrigger"):
            self.move(trigger, -32768)

    def move(self, stick, value):
        assert sdl2.SDL_JoystickSetVirtualAxis(self.joystick, STICKS[stick], value) == 0

    def press(self, *keys):
        for place, key in enumerate(KEYS):
            assert sdl2.SDL_JoystickSetVirtualButton(self.joystick, place, key in keys) == 0

    def unplug(self):
        if self.place is not None:
            assert sdl2.SDL_JoystickDetachVirtual(self.place) == 0
        self.place = None

    def close(self):
        self.unplug()
        sdl2.SDL_QuitSubSystem(sdl2.SDL_INIT_GAMECONTROLLER)
