"""A virtual pad of SDL: the real library from the state of a pad to the action."""

import inspect
import signal
import subprocess
import sys
from unittest.mock import MagicMock

import numpy as np
import pytest

from imitate.deploy.robot import gamepad
from imitate.deploy.robot.gamepad import AXES, BUTTONS, Gamepad, SDLGamepad, reading_of
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.simulated import ExpertTeleoperator, SimulatedRobot
from imitate.errors import RobotError, UserError
from tests.deploy.devices import ARM, KEYS, Pad
from tests.deploy.fake_robot import FakeRobot


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
    ("keys", "stick", "value", "place", "wanted"),
    [
        ((), "lefty", -32768, 0, 0.5),  # up is forward
        ((), "lefty", 32767, 0, -0.5),
        ((), "leftx", -32768, 1, 0.5),  # left is left
        ((), "righty", -32768, 2, 0.5),
        ((), "rightx", -32768, 5, 0.5),
        ((), "rightx", 32767, 5, -0.5),
        (["dpleft"], "lefty", 0, 3, 0.5),
        (["dpright"], "lefty", 0, 3, -0.5),
        (["dpup"], "lefty", 0, 4, 0.5),
        (["dpdown"], "lefty", 0, 4, -0.5),
    ],
)
def test_sticks_and_the_d_pad_move_the_axes(pad, hand, keys, stick, value, place, wanted):
    pad.press("rightshoulder", *keys)
    pad.move(stick, value)
    action = np.array([0, 0, 0, 0, 0, 0, -1.0])
    action[place] = wanted
    np.testing.assert_allclose(hand.guide(None).action, action, atol=1e-6)
    pad.press()
    assert hand.guide(None).action is None


def test_triggers_close_and_open_the_gripper(pad, hand):
    pad.press("rightshoulder")
    pad.move("righttrigger", 32767)
    assert hand.guide(None).action[-1] == 1.0
    pad.move("righttrigger", -32768)
    assert hand.guide(None).action[-1] == 1.0
    pad.move("lefttrigger", 32767)
    assert hand.guide(None).action[-1] == -1.0


def test_settings_of_a_pad_by_default():
    settings = inspect.signature(Gamepad).parameters.values()
    numbers = {"scale": 0.3, "dead_band": 0.1, "grace_s": 0.3, "index": 0}
    others = {"axes": None, "buttons": None, "mode": None, "source": None}
    flags = {"hold": True, "gripper": True, "keys": True}
    assert {one.name: one.default for one in settings} == {**numbers, **others, **flags}


def test_a_pad_that_is_gone_is_named(pad, hand):
    pad.close()
    with pytest.raises(RobotError, match="the gamepad '(?!gamepad').+' was disconnected"):
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
        "import signal; from imitate.deploy.robot.gamepad import SDLGamepad\n"
        "try: SDLGamepad(9).open()\n"
        "except Exception as e: print(e)\n"
        "print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True); signal.raise_signal(signal.SIGTERM)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGTERM, done.stderr  # SDL would have swallowed it
    assert "True" in done.stdout


@pytest.fixture
def sdl(monkeypatch):
    sdl = MagicMock(SDL_CONTROLLER_AXIS_MAX=1, SDL_CONTROLLER_BUTTON_MAX=0, SDL_JOYAXISMOTION=1)
    sdl.SDL_Init.return_value, sdl.SDL_NumJoysticks.return_value = 0, 1
    sdl.SDL_GameControllerName.return_value = b"pad"
    sdl.SDL_GameControllerGetStringForAxis.return_value = b"lefty"
    sdl.SDL_GameControllerGetAxis.return_value = -32768  # one more than the largest
    monkeypatch.setattr(gamepad, "sdl_library", lambda: sdl)
    return sdl


def test_sdl_is_set_up_read_and_given_back_once(sdl):
    source = SDLGamepad()
    source.open()
    assert sdl.SDL_SetHint.call_args_list[0].args == (b"SDL_NO_SIGNAL_HANDLERS", b"1")
    assert source.read().axes["forward"] == 1.0
    for _ in range(2):
        source.close()
    sdl.SDL_GameControllerClose.assert_called_once()
    sdl.SDL_QuitSubSystem.assert_called_once_with(sdl.SDL_INIT_GAMECONTROLLER)


def test_sdl_that_does_not_start_is_named(sdl):
    sdl.SDL_Init.return_value, sdl.SDL_GetError.return_value = -1, b"no bus"
    with pytest.raises(UserError, match="gamepads cannot be used: no bus"):
        SDLGamepad().open()


def test_axes_that_a_pad_lacks_are_at_rest():
    assert set(reading_of({}, set()).axes.values()) == {0.0}


def test_a_reading_has_every_axis_and_triggers_as_buttons():
    reading = reading_of({"lefty": -1.0, "righttrigger": 0.6, "lefttrigger": 0.4}, {"a"})
    assert tuple(sorted(reading.axes)) == tuple(sorted(AXES))
    assert reading.axes["forward"] == 1.0 and reading.buttons == {"a", "righttrigger"}
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
            key = ["y"] if "success" in wanted.events else ["a"]
            self.pad.press(*key * bool(wanted.events))
            return super().guide(observation)
        forward, left, up, _, _, turn, grip = wanted.action
        sticks = {"lefty": -forward, "leftx": -left, "righty": -up, "rightx": -turn}
        for stick, value in sticks.items():
            self.pad.move(stick, round(32767 * value))
        self.pad.move("righttrigger", 32767 if grip > 0 else -32768)
        self.pad.move("lefttrigger", 32767 if grip <= 0 else -32768)
        self.pad.press("rightshoulder")
        guidance = super().guide(observation)
        if guidance.action is not None:
            self.errors.append(np.abs(guidance.action - wanted.action)[[0, 1, 2, 5]].max())
        return guidance


@pytest.mark.nightly
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
