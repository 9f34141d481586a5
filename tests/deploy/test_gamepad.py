"""A virtual pad of SDL: the real library from the state of a pad to the action."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from imitate.deploy.gamepad import AXES, BUTTONS, Gamepad, SDLGamepad, reading_of, sdl_library
from imitate.deploy.limits import ActionLimits
from imitate.deploy.loop import ControlLoop, Safety
from imitate.deploy.robot import RobotError, make_teleoperator
from imitate.deploy.simulated import ExpertTeleoperator, SimulatedRobot
from imitate.errors import UserError
from tests.deploy.fake_robot import FakeRobot

sdl2 = sdl_library()
ARM = ActionLimits(low=[-1.0] * 7, high=[1.0] * 7)
STICKS = {"leftx": 0, "lefty": 1, "rightx": 2, "righty": 3, "lefttrigger": 4, "righttrigger": 5}
KEYS = [
    "a",
    "b",
    "x",
    "y",
    "back",
    "guide",
    "start",
    "leftstick",
    "rightstick",
    "leftshoulder",
    "rightshoulder",
    "dpup",
    "dpdown",
    "dpleft",
    "dpright",
]


class Pad:
    """A virtual gamepad in this process."""

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


@pytest.fixture
def pad():
    pad = Pad()
    yield pad
    pad.close()


@pytest.fixture
def hand(pad):
    hand = Gamepad(scale=0.5, grace_s=0.0, keys=False)
    hand.connect(FakeRobot(ARM, pose=np.zeros(7)))
    hand.guide(None)
    yield hand
    hand.close()


@pytest.mark.parametrize(
    ("stick", "value", "place", "sign"),
    [
        ("lefty", -32768, 0, 1),  # up is forward
        ("lefty", 32767, 0, -1),
        ("leftx", -32768, 1, 1),  # left is left
        ("righty", -32768, 2, 1),
        ("rightx", -32768, 5, 1),
        ("rightx", 32767, 5, -1),
    ],
)
def test_sticks_move_the_axes(pad, hand, stick, value, place, sign):
    pad.press("rightshoulder")
    pad.move(stick, value)
    wanted = np.array([0, 0, 0, 0, 0, 0, -1.0])
    wanted[place] = 0.5 * sign
    np.testing.assert_allclose(hand.guide(None).action, wanted, atol=1e-6)
    pad.press()
    assert hand.guide(None).action is None


@pytest.mark.parametrize(
    ("key", "place", "sign"),
    [("dpleft", 3, 1), ("dpright", 3, -1), ("dpup", 4, 1), ("dpdown", 4, -1)],
)
def test_the_d_pad_turns(pad, hand, key, place, sign):
    pad.press("rightshoulder", key)
    assert hand.guide(None).action[place] == 0.5 * sign


def test_triggers_close_and_open_the_gripper(pad, hand):
    pad.press("rightshoulder")
    pad.move("righttrigger", 32767)
    assert hand.guide(None).action[-1] == 1.0
    pad.move("righttrigger", -32768)
    assert hand.guide(None).action[-1] == 1.0
    pad.move("lefttrigger", 32767)
    assert hand.guide(None).action[-1] == -1.0


@pytest.mark.parametrize(
    ("key", "event"),
    zip(
        ["y", "a", "b", "x", "start", "back"],
        ["success", "failure", "discard", "redo", "end", "quit"],
        strict=True,
    ),
)
def test_buttons_end_episodes(pad, hand, key, event):
    pad.press(key)
    assert hand.guide(None).events == {event}
    assert hand.guide(None).events == frozenset()


def test_an_unplugged_pad_moves_nothing_more(pad, hand):
    pad.press("rightshoulder")
    pad.move("lefty", -32768)
    assert hand.guide(None).action is not None
    pad.unplug()
    with pytest.raises(RobotError, match=r"'.*' was disconnected; the robot was stopped"):
        hand.guide(None)


def test_roles_of_buttons_may_be_changed(pad):
    hand = Gamepad(buttons={"leftshoulder": "toggle", "rightstick": "success"}, keys=False)
    hand.connect(FakeRobot(ARM, pose=np.zeros(7)))
    hand.guide(None)
    pad.press("rightshoulder", "leftshoulder")
    assert hand.guide(None).action[-1] == 1.0
    pad.press("rightstick")
    assert hand.guide(None).events == {"success"}
    hand.close()


def test_signals_remain_pythons(pad, hand):
    code = (
        "import signal; from imitate.deploy.gamepad import SDLGamepad\n"
        "try: SDLGamepad(9).open()\n"
        "except Exception as e: print(e)\n"
        "print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True); signal.raise_signal(signal.SIGTERM)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGTERM, done.stderr  # SDL would have swallowed it
    assert "True" in done.stdout


def test_without_a_pad_it_is_one_line():
    with pytest.raises(
        UserError, match=r"there is no gamepad 0; SDL finds 0 .*SDL_GAMECONTROLLERCONFIG"
    ):
        SDLGamepad().open()
    device = make_teleoperator("gamepad")
    with pytest.raises(UserError, match="there is no gamepad 0"):
        device.connect(FakeRobot(ARM, pose=np.zeros(7)))


def test_without_sdl_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sdl2", None)
    with pytest.raises(UserError, match=r"gamepad: the package 'sdl2' .*pysdl2-dll"):
        SDLGamepad().open()


def test_a_reading_has_every_axis_and_triggers_as_buttons():
    reading = reading_of({"lefty": -1.0, "righttrigger": 0.6, "lefttrigger": 0.4}, {"a"})
    assert tuple(sorted(reading.axes)) == tuple(sorted(AXES))
    assert reading.axes["forward"] == 1.0
    assert reading.buttons == {"a", "righttrigger"}
    assert set(BUTTONS) <= {*KEYS, "lefttrigger", "righttrigger"}


class Hands(Gamepad):
    """Hands on the pad that do what a scripted expert of robosuite wants."""

    def __init__(self, pad, expert):
        super().__init__(scale=1.0, dead_band=0.0, grace_s=0.0, keys=False)
        self.pad, self.expert, self.errors = pad, expert, []

    def start_episode(self):
        super().start_episode()
        super().guide(None)  # seen at rest

    def guide(self, observation):
        wanted = self.expert.guide(observation)
        if wanted.action is None or wanted.events:
            self.pad.press(
                *(["y"] if "success" in wanted.events else ["a"] if wanted.events else [])
            )
            return super().guide(observation)
        forward, left, up, _, _, turn, grip = wanted.action
        for stick, value in (
            ("lefty", -forward),
            ("leftx", -left),
            ("righty", -up),
            ("rightx", -turn),
        ):
            self.pad.move(stick, round(32767 * value))
        self.pad.move("righttrigger", 32767 if grip > 0 else -32768)
        self.pad.move("lefttrigger", 32767 if grip <= 0 else -32768)
        self.pad.press("rightshoulder")
        guidance = super().guide(observation)
        if guidance.action is not None:
            self.errors.append(np.abs(guidance.action - wanted.action)[[0, 1, 2, 5]].max())
        return guidance


@pytest.mark.robosuite
def test_an_expert_at_the_sticks_lifts_robosuites_cube(pad):
    robot = SimulatedRobot({"env_name": "Lift", "type": 1, "env_kwargs": {}}, seed=5, in_step=True)
    robot.connect()
    expert = ExpertTeleoperator("Lift", seed=0)
    expert.connect(robot)
    hand = Hands(pad, expert)
    hand.connect(robot)
    try:
        safety = Safety(late=0, watchdog_s=30.0)
        loop = ControlLoop(robot, None, 1000.0, any_rate=True, teleoperator=hand, safety=safety)
        report = loop.run(200)
    finally:
        hand.close()
        robot.close()
    assert report.ended_by == "success"
    assert len(hand.errors) > 20
    assert max(hand.errors) < 1e-4
