"""Judges that decide whether a trial succeeded: the robot itself, or a person at a terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from imitate.deploy.robot.driver import solved
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.deploy.robot.terminal import TerminalKeys, show
from imitate.errors import UserError

QUIT = "quit"
_RUNNING = "while running: s success, f failure, 0-9 progress, r redo, . end, then judge, q quit\n"
_VERDICT = "s success, f failure, r redo; before it, if you like: 0-9 progress, n note; q quit: "
_STOPPED = "f failure, r redo; before it, if you like: 0-9 progress, n note; q quit: "


@dataclass(frozen=True)
class Start:
    """A trial that is about to begin.

    Attributes:
        words: description such as "pair 3 of at most 30, first policy".
        is_set: true if the robot has prepared the scene; otherwise a person must prepare it.
        before: pictures of the initial scene of the pair's first trial; empty if this is the first trial.
        overlay: function that saves pictures of the first trial's scene over the current one and returns their paths;
            the list is empty if the robot has no camera.
    """

    words: str
    is_set: bool
    before: Sequence[Path]
    overlay: Callable[[], Sequence[Path]]


@dataclass(frozen=True)
class Verdict:
    """Judgement of a trial.

    Attributes:
        success: true if the task was solved.
        progress: rating from 0 to 9, or None if not rated.
        note: note of the person.
        redo: reason to repeat the trial, which then does not count; empty if the trial counts.
    """

    success: bool
    progress: int | None = None
    note: str = ""
    redo: str = ""


class Judge(Protocol):
    """Judge of trials.

    Attributes:
        blind: true if the judge must not learn which policy acts.
        keys: device whose events end a trial; None to judge without a device.
        until_success: true if a trial ends as soon as the robot reports success.
    """

    blind: bool
    keys: Teleoperator | None
    until_success: bool

    def ready(self, start: Start) -> bool:
        """Return True when the trial may begin, or False to quit."""

    def judge(self, ended_by: str, stopped: str) -> Verdict | None:
        """Judge a trial; return None to quit and lose the trial.

        Args:
            ended_by: as in :class:`imitate.deploy.robot.loop.Report`.
            stopped: reason why the control loop stopped the robot; empty if it did not.
        """

    def close(self) -> None:
        """Release the devices."""


class RobotJudge:
    """Judge without a person: the robot measures success and resets the scene itself.

    Args:
        robot: connected robot.

    Raises:
        UserError: the robot does not measure success.
    """

    blind = False
    keys: Teleoperator | None = None
    until_success = True

    def __init__(self, robot: Robot) -> None:
        if solved(robot) is None:
            raise UserError("the robot does not measure success; use --judge person")
        self._robot = robot

    def ready(self, start: Start) -> bool:
        """Return True; raise UserError if a person must prepare the scene, whose hand may then be in it."""
        if not start.is_set:
            raise UserError(
                "the robot does not prepare the scene itself (its reset returns no "
                "observation), so a person must prepare it before the robot moves: use --judge person"
            )
        return True

    def judge(self, ended_by: str, stopped: str) -> Verdict | None:
        """Return the robot's verdict; a trial in which the control loop stopped the robot is a failure."""
        return Verdict(success=not stopped and bool(solved(self._robot)))

    def close(self) -> None:
        """Do nothing, because there is no device to release."""


class PersonJudge:
    """Judge who is a person at a terminal and does not know which policy acts.

    Raises:
        UserError: there is no terminal.
    """

    blind = True
    until_success = False

    def __init__(self) -> None:
        self._terminal = TerminalKeys("--judge person")
        self._keys = _Keys(self._terminal)
        self.keys: Teleoperator | None = self._keys

    def close(self) -> None:
        """Restore the terminal."""
        self._terminal.close()

    def ready(self, start: Start) -> bool:
        """Wait until the person has prepared the scene and presses Enter; return False if the person quits."""
        show(f"{start.words}\n")
        if start.is_set:
            show("  the robot has prepared the scene")
        else:
            show(f"  prepare the scene {'as it was' if start.before else 'for the start'}")
        for path in start.before:
            show(f"\n  first start: {path}")
        self._show_overlay(start)
        keys = (
            "Enter starts, o draws the overlay again, q quits"
            if start.before
            else "Enter starts, q quits"
        )
        show(f"\n  {keys}: ")
        while (key := self._terminal.wait()) not in ("\n", "\r", "q"):
            if key == "o":
                self._show_overlay(start)
        show("\n")
        if key == "q":
            return False
        self._keys.progress = None
        show(f"  {_RUNNING}")
        return True

    def _show_overlay(self, start: Start) -> None:
        for path in start.overlay():
            show(f"\n  both starts: {path}")

    def judge(self, ended_by: str, stopped: str) -> Verdict | None:
        """Ask the person for a verdict, unless a key during the trial gave it; return None to quit."""
        if ended_by == QUIT:
            return None
        progress = self._keys.progress
        if ended_by == "redo":
            return Verdict(False, progress, redo=self._reason())
        if ended_by in ("success", "failure"):
            return Verdict(ended_by == "success", progress)
        if stopped:
            show(f"  the robot was stopped: {stopped}\n")
        return self._verdict_of_keys(progress, "fr" if stopped else "sfr")

    def _verdict_of_keys(self, progress: int | None, verdicts: str) -> Verdict | None:
        """Read keys after a trial until one of ``verdicts`` is chosen; return None to quit."""
        show(f"  {_VERDICT if 's' in verdicts else _STOPPED}")
        note = ""
        while (key := self._terminal.wait()) != "q":
            if key.isascii() and key.isdigit():
                progress = int(key)
                show(f"[progress {progress} of 9] ")
            elif key == "n":
                note = self._terminal.line("\n  note: ")
            elif key in verdicts:
                redo = self._reason() if key == "r" else ""
                show("\n")
                return Verdict(key == "s", progress, note, redo)
        show("\n")
        return None

    def _reason(self) -> str:
        while not (reason := self._terminal.line("\n  reason for the redo: ")):
            show("  a redo needs a reason\n")
        return reason


class _Keys(Teleoperator):
    """Device that reads the keys a person presses during a trial.

    Attributes:
        progress: last digit that was pressed, the rating of the progress; None if no digit was.
    """

    _EVENTS = {"s": "success", "f": "failure", "r": "redo", ".": "end", "q": QUIT}

    def __init__(self, terminal: TerminalKeys) -> None:
        self._terminal = terminal
        self.progress: int | None = None

    def guide(self, observation: Observation) -> Guidance:
        """Return the event of the first key pressed since the last call, never an action."""
        for key in self._terminal.read():
            if key.isascii() and key.isdigit():
                self.progress = int(key)
            elif key in self._EVENTS:
                return Guidance(events=frozenset({self._EVENTS[key]}))
        return Guidance()
