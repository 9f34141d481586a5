"""Teleoperation by a gamepad through SDL, which supports several hundred models (extra ``gamepad``).

    left stick    first number of the action (forward, back), second (left, right)
    right stick   third (up, down), sixth (turn left, right)
    D-pad         fourth (left, right), fifth (up, down)
    RB            hold to act; nothing moves without it
    RT LT         close, open the gripper
    Y success   A failure   B discard   X redo   Start end   Back quit

The letters are the labels of an Xbox pad; on other pads, use the buttons in the same places. The person stands behind
the robot and faces the same way; ``axes`` reverses directions. If the pad is disconnected, the episode ends and the
robot is stopped; a lost radio connection is noticed when the operating system reports it.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from imitate.deploy.robot.handheld import DeviceSource, Gripper, Handheld, Mode, Pushes, Reading
from imitate.errors import RobotError, UserError
from imitate.system.extras import missing

AXES = ("forward", "left", "up", "dpad_left", "dpad_up", "turn_left")
"""Axes in the order of the action dimensions; each is positive in the direction of its name."""
BUTTONS = {
    "rightshoulder": "act",
    "righttrigger": "close",
    "lefttrigger": "open",
    "y": "success",
    "a": "failure",
    "b": "discard",
    "x": "redo",
    "start": "end",
    "back": "quit",
}
"""Roles of the buttons, by SDL's names; the two triggers count as buttons, pressed beyond half of their travel."""
_FULL = 32767.0


class Gamepad(Handheld):
    """Teleoperation device: a gamepad, see the module.

    Args:
        scale: fraction of the action's range for a full push, in (0, 1].
        dead_band: pushes up to this fraction of the travel are ignored.
        axes: an axis (:data:`AXES`, with ``-`` for the opposite direction) for each number of an action besides the
            gripper; null for a number that stays. By default all six in order, or the first ones.
        buttons: roles that differ from :data:`BUTTONS`, such as ``{"leftshoulder": "toggle"}``.
        hold: false if pushing a stick suffices to act.
        grace_s: seconds for which the pose is kept after the button was released.
        gripper: see :class:`imitate.deploy.robot.handheld.Pushes`.
        mode: see :class:`imitate.deploy.robot.handheld.Pushes`.
        index: index of the gamepad if several are connected, from 0.
        keys: true to let keys of the terminal end an episode, too.
        source: reader of the gamepad; by default through SDL.
    """

    def __init__(
        self,
        scale: float = 0.3,
        dead_band: float = 0.1,
        axes: Sequence[str | None] | None = None,
        buttons: Mapping[str, str] | None = None,
        hold: bool = True,
        grace_s: float = 0.3,
        gripper: Gripper = True,
        mode: Mode | None = None,
        index: int = 0,
        keys: bool = True,
        source: DeviceSource | None = None,
    ) -> None:
        super().__init__(
            source or SDLGamepad(index),
            Pushes(scale, gripper, mode),
            axes=axes,
            buttons={**BUTTONS, **(buttons or {})},
            hold=hold,
            dead_band=dead_band,
            grace_s=grace_s,
            keys=keys,
        )


class SDLGamepad:
    """Gamepad read through SDL, without a window.

    Args:
        index: index among the connected gamepads.
    """

    axes: tuple[str, ...] = AXES

    def __init__(self, index: int = 0) -> None:
        self.name, self._index = "gamepad", index
        self._sdl: Any = None
        self._pad: Any = None

    def open(self) -> None:
        """Open the pad.

        Raises:
            UserError: there is no gamepad, or SDL is not installed.
        """
        sdl = self._sdl = sdl_library()
        sdl.SDL_SetHint(b"SDL_NO_SIGNAL_HANDLERS", b"1")  # Python, not SDL, handles Ctrl-C
        sdl.SDL_SetHint(b"SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS", b"1")
        if sdl.SDL_Init(sdl.SDL_INIT_GAMECONTROLLER):
            raise UserError(f"gamepads cannot be used: {_text(sdl.SDL_GetError())}")
        places = range(sdl.SDL_NumJoysticks())
        pads = [place for place in places if sdl.SDL_IsGameController(place)]
        if self._index >= len(pads):
            others = [_text(sdl.SDL_JoystickNameForIndex(place)) for place in places]
            self.close()
            raise UserError(
                f"there is no gamepad {self._index}; SDL finds {len(pads)} among the devices {others or 'none'}. "
                "Describe an unknown gamepad in the environment variable SDL_GAMECONTROLLERCONFIG; on Linux make "
                "/dev/input readable"
            )
        self._pad = sdl.SDL_GameControllerOpen(pads[self._index])
        if not self._pad:
            raise UserError(f"the gamepad cannot be opened: {_text(sdl.SDL_GetError())}")
        self.name = _text(sdl.SDL_GameControllerName(self._pad))

    def read(self) -> Reading:
        """Return the current state.

        Raises:
            RobotError: the pad was disconnected.
        """
        sdl = self._sdl
        sdl.SDL_GameControllerUpdate()
        sdl.SDL_FlushEvents(
            sdl.SDL_JOYAXISMOTION, sdl.SDL_JOYAXISMOTION + 0xFF
        )  # discard SDL's events, which are not used
        if not sdl.SDL_GameControllerGetAttached(self._pad):
            raise RobotError(f"the gamepad '{self.name}' was disconnected; the robot was stopped")
        raw = {
            _text(sdl.SDL_GameControllerGetStringForAxis(axis)): max(
                -1.0, sdl.SDL_GameControllerGetAxis(self._pad, axis) / _FULL
            )
            for axis in range(sdl.SDL_CONTROLLER_AXIS_MAX)
        }
        down = {
            _text(sdl.SDL_GameControllerGetStringForButton(button))
            for button in range(sdl.SDL_CONTROLLER_BUTTON_MAX)
            if sdl.SDL_GameControllerGetButton(self._pad, button)
        }
        return reading_of(raw, down)

    def close(self) -> None:
        """Release the pad."""
        if self._pad:
            self._sdl.SDL_GameControllerClose(self._pad)
        if self._sdl is not None:
            self._sdl.SDL_QuitSubSystem(self._sdl.SDL_INIT_GAMECONTROLLER)
        self._pad = self._sdl = None


def reading_of(raw: Mapping[str, float], down: set[str]) -> Reading:
    """Convert SDL's values to a reading.

    Args:
        raw: SDL's axes: sticks in [-1, 1], positive to the right and towards the person; triggers in [0, 1].
        down: SDL's names of the pressed buttons.
    """
    triggers = {name for name in ("lefttrigger", "righttrigger") if raw.get(name, 0.0) > 0.5}
    axes = {
        "forward": -raw.get("lefty", 0.0),
        "left": -raw.get("leftx", 0.0),
        "up": -raw.get("righty", 0.0),
        "turn_left": -raw.get("rightx", 0.0),
        "dpad_up": float("dpup" in down) - float("dpdown" in down),
        "dpad_left": float("dpleft" in down) - float("dpright" in down),
    }
    return Reading(axes, frozenset(down | triggers))


def sdl_library() -> Any:
    """Import SDL's module; raise UserError if it is not installed."""
    try:
        with warnings.catch_warnings():  # the package warns that it uses its own SDL library
            warnings.simplefilter("ignore")
            import sdl2
    except ImportError as error:
        raise UserError(f"gamepad: {missing('gamepad', error)}") from error
    return sdl2


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace")
