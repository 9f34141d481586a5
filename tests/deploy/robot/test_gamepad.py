"""A virtual pad of SDL: the real library from the state of a pad to the action."""

import inspect
import signal
import subprocess
import sys
import warnings
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


def test_every_call_of_sdl_for_the_second_of_two_pads_among_three_devices(sdl):
    sdl.SDL_NumJoysticks.return_value = 3
    sdl.SDL_IsGameController.side_effect = lambda place: place in (0, 2)
    sdl.SDL_GameControllerOpen.side_effect = lambda place: f"pad {place}"
    sdl.SDL_JOYAXISMOTION = 0x600
    sdl.SDL_CONTROLLER_AXIS_MAX, sdl.SDL_CONTROLLER_BUTTON_MAX = 2, 3
    sdl.SDL_GameControllerGetStringForAxis.side_effect = [b"lefty", b"leftx"].__getitem__
    sdl.SDL_GameControllerGetAxis.side_effect = lambda pad, axis: [16383.5, -8191.75][axis]
    sdl.SDL_GameControllerGetStringForButton.side_effect = [b"a", None, b"x"].__getitem__
    sdl.SDL_GameControllerGetButton.side_effect = lambda pad, button: [0, 1, 1][button]
    source = SDLGamepad(1)
    assert source.name == "gamepad"
    source.open()
    assert source.name == "pad"
    hints = (b"SDL_NO_SIGNAL_HANDLERS", b"SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS")
    assert [made.args for made in sdl.SDL_SetHint.call_args_list] == [
        (hint, b"1") for hint in hints
    ]
    sdl.SDL_Init.assert_called_once_with(sdl.SDL_INIT_GAMECONTROLLER)
    sdl.SDL_GameControllerOpen.assert_called_once_with(2)
    found = source.read()
    assert (found.axes["forward"], found.axes["left"]) == (-0.5, 0.25)
    assert found.buttons == {"", "x"}
    sdl.SDL_GameControllerUpdate.assert_called_once_with()
    sdl.SDL_FlushEvents.assert_called_once_with(0x600, 0x6FF)
    sdl.SDL_GameControllerGetAttached.assert_called_once_with("pad 2")
    source.close()
    sdl.SDL_GameControllerClose.assert_called_once_with("pad 2")


def test_pads_that_are_absent_or_cannot_be_opened_are_named_and_sdl_is_given_back(sdl):
    sdl.SDL_JoystickNameForIndex.return_value, sdl.SDL_IsGameController.return_value = b"mouse", 0
    for present, words in (
        (1, r"1; SDL finds 0 among the devices \['mouse'\]\."),
        (0, "1; SDL finds 0 .* none"),
    ):
        sdl.SDL_NumJoysticks.return_value = present
        with pytest.raises(UserError, match=f"^there is no gamepad {words}"):
            SDLGamepad(1).open()
    assert sdl.SDL_QuitSubSystem.call_count == 2
    sdl.SDL_GameControllerClose.assert_not_called()
    sdl.SDL_NumJoysticks.return_value, sdl.SDL_IsGameController.return_value = 1, 1
    with pytest.raises(UserError, match="^there is no gamepad 1; SDL finds 1 "):
        SDLGamepad(1).open()
    sdl.SDL_GameControllerOpen.return_value, sdl.SDL_GetError.return_value = None, b"busy"
    with pytest.raises(UserError, match="^the gamepad cannot be opened: busy$"):
        SDLGamepad().open()


def test_the_warnings_of_sdls_module_are_not_shown(monkeypatch, tmp_path):
    (tmp_path / "sdl2.py").write_text("import warnings\nwarnings.warn('which library')\n")
    monkeypatch.setitem(sys.modules, "sdl2", None)
    with pytest.raises(UserError, match="^gamepad: the package 'sdl2' is not installed"):
        gamepad.sdl_library()
    monkeypatch.delitem(sys.modules, "sdl2")
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert gamepad.sdl_library().__file__ == str(tmp_path / "sdl2.py")
    assert shown == []


def test_sdl_that_does_not_start_is_named(sdl):
    sdl.SDL_Init.return_value, sdl.SDL_GetError.return_value = -1, b"no bus"
    with pytest.raises(UserError, match="gamepads cannot be used: no bus"):
        SDLGamepad().open()


def test_axes_that_a_pad_lacks_are_at_rest():
    reading = reading_of({}, set())
    assert reading.axes == dict.fromkeys(AXES, 0.0) and reading.buttons == frozenset()


def test_a_whole_reading_by_hand():
    raw = {"lefty": 0.25, "leftx": 0.5, "righty": -0.75, "rightx": -1.0}
    triggers = {"lefttrigger": 0.51, "righttrigger": 0.5}
    axes = {"forward": -0.25, "left": -0.5, "up": 0.75, "turn_left": 1.0}
    found = reading_of(raw | triggers, {"dpdown", "dpleft", "x"})
    assert found.axes == {**axes, "dpad_up": -1.0, "dpad_left": 1.0}
    assert found.buttons == {"dpdown", "dpleft", "x", "lefttrigger"}


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
