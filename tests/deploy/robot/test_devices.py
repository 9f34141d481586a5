"""Promises of each input device: pushes, events, its loss, its settings, what is not there, its end."""

import sys
import termios
from dataclasses import dataclass

import numpy as np
import pytest

from imitate.deploy.robot.gamepad import Gamepad, SDLGamepad
from imitate.deploy.robot.handheld import Handheld, Pushes
from imitate.deploy.robot.keyboard import Keyboard
from imitate.deploy.robot.lerobot_teleoperator import LeRobotTeleoperator
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.robot import make_teleoperator
from imitate.deploy.robot.spacemouse import HIDSpaceMouse, SpaceMouse
from imitate.errors import RobotError, UserError
from imitate.system import clock
from tests.deploy import lerobot_stand_ins
from tests.deploy.devices import ARM, SETTINGS, FakeHID, Pad, Source, buttons, handheld, pushes
from tests.deploy.fake_robot import Constant, FakeRobot
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("virtual_time")

BOX = ActionLimits(low=[-90.0, -100.0, 0.0], high=[90.0, 100.0, 100.0])


@dataclass
class Rig:
    """A device that is connected to a robot, and what a person does at it; `lost` are the words of its loss."""

    device: object
    push: callable
    release: callable
    press: callable
    is_closed: callable
    lose: callable = None
    lost: str = "was disconnected"
    limits: ActionLimits = ARM

    def __post_init__(self):
        self.robot = FakeRobot(self.limits, pose=np.zeros(len(self.limits.low)))
        self.device.connect(self.robot)
        assert self.device.guide(None).action is None


def sets(thing, name, value):
    return lambda: setattr(thing, name, value)


def keyboard(terminal):
    before = termios.tcgetattr(terminal.stdin)
    return Rig(
        Keyboard(),
        push=lambda: terminal.press("w"),
        release=lambda: clock.sleep(1.0),
        press=terminal.press,
        is_closed=lambda: termios.tcgetattr(terminal.stdin) == before,
    )


def buttons_and_pushes(terminal):
    source = Source()
    return Rig(
        Handheld(source, Pushes(0.5, True, "relative"), **{**SETTINGS, "hold": False}),
        push=sets(source, "pushes", {"x": 1.0}),
        release=sets(source, "pushes", {}),
        press=lambda button: setattr(source, "buttons", {button}),
        is_closed=lambda: source.opened == 0,
        lose=sets(source, "gone", True),
    )


def spacemouse(terminal):
    hid = FakeHID()
    return Rig(
        SpaceMouse(grace_s=0.0, keys=False, source=HIDSpaceMouse(hid=hid)),
        push=lambda: hid.reports.append(pushes(0, -350, 0)),
        release=lambda: hid.reports.append(pushes(0, 0, 0)),
        press=lambda bits: hid.reports.append(buttons(bits)),
        is_closed=lambda: hid.closed,
        lose=sets(hid, "gone", True),
        lost="'SpaceMouse Compact' was disconnected (read error",
    )


def gamepad(terminal):
    pad = Pad()
    pad.move("lefty", -32768)
    return Rig(
        Gamepad(grace_s=0.0, keys=False),
        push=lambda: pad.press("rightshoulder"),
        release=pad.press,
        press=pad.press,
        is_closed=lambda: pad.close() is None,
        lose=pad.unplug,
    )


def lerobot(terminal):
    device = lerobot_stand_ins.Gamepad()

    def unplugged():
        raise OSError("unplugged")

    return Rig(
        LeRobotTeleoperator(device),
        push=sets(device, "pressed", {"is_intervention"}),
        release=sets(device, "pressed", set()),
        press=lambda events: setattr(device, "pressed", set(events.split())),
        is_closed=lambda: not device.is_connected,
        lose=sets(device, "get_action", unplugged),
        lost="failed: OSError: unplugged",
        limits=BOX,
    )


def leader(terminal):
    device = lerobot_stand_ins.Leader()
    return Rig(
        LeRobotTeleoperator(device, acts="key"),
        push=lambda: terminal.press(" "),
        release=lambda: terminal.press(" "),
        press=terminal.press,
        is_closed=lambda: not device.is_connected,
        limits=BOX,
    )


RIGS = [keyboard, buttons_and_pushes, spacemouse, gamepad, lerobot, leader]


@pytest.fixture
def rig_of(terminal):
    rigs = []

    def made(kind):
        rigs.append(kind(terminal))
        return rigs[-1]

    yield made
    for rig in rigs:
        rig.device.close()
        assert rig.is_closed()
        rig.device.close()


@pytest.mark.parametrize("kind", RIGS)
def test_the_person_acts_as_long_as_they_push(rig_of, kind):
    rig = rig_of(kind)
    for _ in range(2):
        rig.push()
        assert rig.device.guide(rig.robot.observe()).action[0] > 0
        rig.release()
        assert rig.device.guide(rig.robot.observe()).action is None


EVENTS = ["success", "failure", "discard", "redo", "end", "quit"]


@pytest.mark.parametrize(
    ("kind", "pressed", "event"),
    [
        *((keyboard, *pair) for pair in zip("\nx\x7fz.\x1b", EVENTS, strict=True)),
        *((buttons_and_pushes, *pair) for pair in [("ok", "success"), ("no", "discard")]),
        (spacemouse, 2, "success"),
        *((gamepad, *pair) for pair in zip(["y", "a", "b", "x", "start", "back"], EVENTS, strict=True)),
        *((lerobot, event, event) for event in ("success", "failure")),
        (lerobot, "success terminate_episode", "success"),
        (lerobot, "terminate_episode", "failure"),
        (lerobot, "rerecord_episode terminate_episode", "redo"),
        *((leader, *pair) for pair in zip("\nx\x7f\x1b", ["success", "failure", "discard", "quit"], strict=True)),
    ],
)  # fmt: skip
def test_an_episode_is_ended_once(rig_of, kind, pressed, event):
    rig = rig_of(kind)
    rig.press(pressed)
    assert rig.device.guide(None).events == {event}
    if kind is lerobot:  # its events are states
        rig.release()
    assert rig.device.guide(None).events == frozenset()


@pytest.mark.parametrize("kind", [buttons_and_pushes, spacemouse, gamepad, lerobot])
@pytest.mark.parametrize("action", [None, 0.1])
def test_nothing_is_sent_after_a_device_is_gone(rig_of, kind, action):
    rig = rig_of(kind)
    robot, seen = rig.robot, len(rig.robot.times("observe"))
    policy = None if action is None else Constant([action] * len(rig.limits.low))

    def person():  # pushes from the second step on; the device is gone in the fifth
        step = len(robot.times("observe")) - seen - 1
        if step > 1:
            rig.push()
        if step > 4:
            rig.lose()

    robot.faults["observe"] = person
    loop = ControlLoop(robot, policy, 100.0, teleoperator=rig.device, safety=Safety(late=0))
    with refused(rig.lost, error=RobotError):
        loop.run(100)
    first = "hold" if policy is None else "send"
    assert robot.last_calls() == [first, *["send"] * 3, "stop"]
    assert robot.times("stop")[0] == robot.times("observe")[-1]


@pytest.mark.parametrize("kind", [keyboard, buttons_and_pushes])
def test_absolute_actions_begin_at_the_pose(terminal, kind):
    robot, source = FakeRobot(pose=np.array([0.2, 0.4])), Source()
    settings = {"gripper": False, "mode": "absolute", "scale": 1.0}
    if kind is keyboard:
        device = Keyboard(**settings)
        device.connect(robot)
        device.guide(None)
    else:
        device = handheld(source, robot, **settings)
    clock.sleep(0.05)
    source.pushes, source.buttons = {"x": 1.0}, {"rb"}
    if kind is keyboard:
        terminal.press("w")
    action = device.guide(robot.observe()).action
    np.testing.assert_allclose(action, [0.2 + 2.0 * 0.05, 0.4])
    device.close()


# ---- refusals ------------------------------------------------------------------------------------


def connected(kind, *words, **options):
    """A call that makes a device and connects it to a robot."""
    return lambda: kind(*words, **options).connect(FakeRobot(ARM, pose=np.zeros(7)))


def held(limits=ARM, **options):
    return lambda: handheld(Source(), FakeRobot(limits), **options)


EIGHT, WIDE = ActionLimits([-1.0] * 8, [1.0] * 8), ActionLimits([-np.inf] * 7, [np.inf] * 7)
TWO = ActionLimits([-1.0] * 2, [1.0] * 2)
LEADER = lerobot_stand_ins.Leader


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Keyboard(scale=0.0), "scale is 0.0, but must be"),
        (lambda: Keyboard(mode="sideways"), "wanted"),
        (held(EIGHT), "have 7 numbers beside the gripper, and 6 axes|null"),
        (held(TWO, axes=["x"], gripper=False), "have 2 numbers, and 1 axes are given"),
        (held(WIDE), "limits are infinite"),
        (held(axes=["w"]), "there is no axis 'w'"),
        (held(buttons={"rb": "act", "a": "dance"}), "a button cannot be 'dance'"),
        (held(buttons={"a": "success"}), "the robot would never move"),
        (held(dead_band=1.0), "dead_band is 1.0"),
        (held(grace_s=-1.0), "grace_s is -1.0"),
        (held(scale=2.0), "scale is 2.0"),
        (held(gripper="left"), "gripper is 'left'"),
        (lambda: LeRobotTeleoperator(LEADER(), acts="now"), "acts|expected"),
        (lambda: LeRobotTeleoperator(LEADER(), follow_speed=0.0), "follow_speed|expected"),
        # What is not there.
        (connected(Keyboard), "needs a terminal"),
        (SDLGamepad().open, "there is no gamepad 0; SDL finds 0|SDL_GAMECONTROLLERCONFIG"),
        (connected(make_teleoperator, "gamepad"), "there is no gamepad 0"),
        (HIDSpaceMouse(1, FakeHID()).open, "there is no SpaceMouse 1: 1 are connected"),
        (HIDSpaceMouse(hid=FakeHID(fails_to_open=True)).open, "cannot be opened (open failed)|udev rule"),
        (connected(make_teleoperator, "spacemouse", index=99), "there is no SpaceMouse 99"),  # hidapi itself
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_and_devices_that_are_not_there_are_one_line(
    call, words, monkeypatch, tmp_path
):
    with (tmp_path / "empty").open("w+") as no_terminal, refused(words, error=UserError):
        monkeypatch.setattr(sys, "stdin", no_terminal)
        call()


@pytest.mark.parametrize(
    ("package", "call", "words"),
    [
        ("sdl2", SDLGamepad().open, "gamepad: the package 'sdl2'|pysdl2-dll"),
        ("hid", HIDSpaceMouse().open, "spacemouse: the package 'hid'|hidapi"),
    ],
)
def test_without_its_package_it_says_what_to_install(package, call, words, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with refused(words, error=UserError):
        call()
