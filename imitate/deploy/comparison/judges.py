"""Judges of trials: the robot itself, or a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from imitate.deploy.driver import solved
from imitate.deploy.robot import Guidance, Observation, Robot, Teleoperator
from imitate.deploy.terminal import TerminalKeys, show
from imitate.errors import UserError

QUIT = "quit"
_RUNNING = "running: s success, f failure, 0-9 progress, r redo, . end and judge then, q quit\n"
_VERDICT = "s success, f failure, r redo; before it, as you like: 0-9 progress, n note; q quit: "
_STOPPED = "f failure, r redo; before it, as you like: 0-9 progress, n note; q quit: "


@dataclass(frozen=True)
class Start:
    """A trial that is about to begin.

    Attributes:
        words: such as "pair 3 of at most 30, first policy".
        is_set: True where the robot has put up the scene; a person does it otherwise.
        before: pictures of the start of the pair's first trial, where this is the second.
        overlay: saves pictures of the first start and the scene as it is now, and gives their paths; empty where the
            robot has no camera.
    """

    words: str
    is_set: bool
    before: Sequence[Path]
    overlay: Callable[[], Sequence[Path]]


@dataclass(frozen=True)
class Verdict:
    """Judgement of a trial.

    Attributes:
        success: True if the task was done.
        progress: 0 to 9; None: not rated.
        note: of the person.
        redo: reason to repeat the trial, which then does not count; empty: it counts.
    """

    success: bool
    progress: int | None = None
    note: str = ""
    redo: str = ""


class Judge(Protocol):
    """Judge of trials.

    Attributes:
        blind: True where nobody may learn which policy acts.
        keys: device whose events end a trial; None if there is none.
        until_success: True where a trial ends as soon as the robot tells success.
    """

    blind: bool
    keys: Teleoperator | None
    until_success: bool

    def ready(self, start: Start) -> bool:
        """Return True when the trial may begin; False: quit."""

    def judge(self, ended_by: str, stopped: str) -> Verdict | None:
        """Judge a trial; None: quit, the trial is lost.

        Args:
            ended_by: as in :class:`imitate.deploy.loop.Report`.
            stopped: why the control loop ended the trial; empty where it did not.
        """

    def close(self) -> None:
        """Let go of devices."""


class RobotJudge:
    """The verdict of a robot that knows success and puts up the scene by itself, without a person.

    Args:
        robot: connected.

    Raises:
        UserError: the robot cannot tell.
    """

    blind = False
    keys: Teleoperator | None = None
    until_success = True

    def __init__(self, robot: Robot) -> None:
        if solved(robot) is None:
            raise UserError("the robot cannot tell success: take --judge person")
        self._robot = robot

    def ready(self, start: Start) -> bool:
        """See :class:`Judge`. Raises UserError where a person has to put up the scene, perhaps with a hand in it."""
        if not start.is_set:
            raise UserError(
                "the robot does not put up the scene by itself (its reset gives no observation), so nothing may move "
                "without a person: take --judge person"
            )
        return True

    def judge(self, ended_by: str, stopped: str) -> Verdict | None:
        """See :class:`Judge`."""
        return Verdict(success=not stopped and bool(solved(self._robot)))

    def close(self) -> None:
        """See :class:`Judge`."""


class PersonJudge:
    """A person at a terminal, who does not know which policy acts.

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
        """Give the terminal back."""
        self._terminal.close()

    def ready(self, start: Start) -> bool:
        """See :class:`Judge`. The person may have the overlay drawn again until the scene is as it was."""
        show(f"{start.words}\n")
        if start.is_set:
            show("  the robot has put up the scene")
        else:
            show(f"  put the scene {'as it was' if start.before else 'at its beginning'}")
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
        """See :class:`Judge`."""
        if ended_by == QUIT:
            return None
        progress = self._keys.progress
        if ended_by == "redo":
            return Verdict(False, progress, redo=self._reason())
        if ended_by in ("success", "failure"):
            return Verdict(ended_by == "success", progress)
        if stopped:
            show(f"  the robot was stopped: {stopped}\n")
        return self._asked(progress, "fr" if stopped else "sfr")

    def _asked(self, progress: int | None, verdicts: str) -> Verdict | None:
        """The verdict of keys after a trial, one of ``verdicts``; None: quit."""
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
        while not (reason := self._terminal.line("\n  redo, since: ")):
            show("  a redo needs its reason\n")
        return reason


class _Keys(Teleoperator):
    """The keys of a judge during a trial.

    Attributes:
        progress: last digit that was pressed; None: none was.
    """

    _EVENTS = {"s": "success", "f": "failure", "r": "redo", ".": "end", "q": QUIT}

    def __init__(self, terminal: TerminalKeys) -> None:
        self._terminal = terminal
        self.progress: int | None = None

    def guide(self, observation: Observation) -> Guidance:
        """The events of the keys; never an action. Of several the first counts."""
        for key in self._terminal.read():
            if key.isascii() and key.isdigit():
                self.progress = int(key)
            elif key in self._EVENTS:
                return Guidance(events=frozenset({self._EVENTS[key]}))
        return Guidance()
