"""Trials of two policies on one robot, in pairs with the same initial scene and random order.

A pair consists of a trial of each policy from the same initial scene. The robot restores it
(:meth:`~imitate.deploy.Robot.reset_to`), or a person does with the help of a picture of the first start. After each
pair the test of :mod:`imitate.functional.sequential` may end the comparison. Trials go through the same control loop as
those of ``imitate run``, within the same limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.comparison.judges import Judge, Start, Verdict
from imitate.deploy.comparison.outcome import Outcome
from imitate.deploy.comparison.pictures import images_of, save_images, save_overlays
from imitate.deploy.comparison.trial_file import Redo, Trial, TrialFile
from imitate.deploy.driver import observed
from imitate.deploy.loop import ControlLoop, Step
from imitate.deploy.report import Report
from imitate.deploy.watchdog import reset_robot
from imitate.errors import RobotError

_PLACES = ("first", "second")


class Comparison:
    """Runs the trials that a comparison still needs.

    Args:
        file: judged trials so far, to which each new trial is added.
        loops: control loops of A and B, on the same connected robot. Their teleoperator is the judge's ``keys``.
        judge: judge of the trials.
        steps: longest trial, in control steps.
        max_pairs: number of pairs after which the comparison ends undecided.
        lang: instruction, for multi-task policies.
        say: called with a line of text after each trial.
    """

    def __init__(
        self,
        file: TrialFile,
        loops: Mapping[str, ControlLoop],
        judge: Judge,
        *,
        steps: int,
        max_pairs: int,
        lang: str | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._file, self._loops, self._judge = file, dict(loops), judge
        self._steps, self._most, self._lang, self._say = steps, max_pairs, lang, say
        self._robot = self._loops["A"].robot
        self._pictures = file.path.with_name(f"{file.path.stem}_starts")
        self._sent = 0
        for loop in self._loops.values():
            loop.on_step = self._counting(loop.on_step)

    @property
    def finished(self) -> bool:
        """True if no further trial is needed."""
        outcome = Outcome(self._file)
        return outcome.decided is not None or outcome.pairs >= self._most

    def run(self) -> bool:
        """Run trials until the comparison is finished, or the judge quits.

        Returns:
            True if it is finished.

        Raises:
            RobotError: the robot was stopped before it moved, which says nothing about a policy; nothing was written.
        """
        while not self.finished:
            if not self._trial(*self._file.next):
                return False
        return True

    def _trial(self, pair: int, position: int) -> bool:
        """Run one trial and write it; return False if the judge quits."""
        place = f"pair {pair + 1} of at most {self._most}, {_PLACES[position]} policy"
        attempt = sum((redo.pair, redo.position) == (pair, position) for redo in self._file.redos)
        name = f"pair{pair + 1:03d}_{_PLACES[position]}" + (f"_redo{attempt}" if attempt else "")
        before: dict[str, Path] = {}
        if position == 1:
            folder = self._file.path.parent
            before = {key: folder / file for key, file in self._file.trials[-1].pictures.items()}
        is_set = reset_robot(self._robot, pair) is not None

        def overlay() -> list[Path]:
            now = self._images() if before else {}
            return save_overlays(before, now, self._pictures, f"{name}_overlay")

        if not self._judge.ready(Start(place, is_set, list(before.values()), overlay)):
            return False
        saved = save_images(self._images(), self._pictures, name)
        report, stopped = self._act(self._file.policy(pair, position))
        verdict = self._judge.judge("stopped" if report is None else report.ended_by, stopped)
        if verdict is None:
            return False
        if verdict.redo:
            self._file.add_redo(Redo(pair, position, verdict.redo, stopped))
            self._say(f"{place}: repeated, reason: {verdict.redo}")
            return True
        self._file.add(
            Trial(
                pair,
                position,
                success=verdict.success,
                progress=verdict.progress,
                note=verdict.note,
                stopped=stopped,
                steps=self._sent,
                pictures={k: str(p.relative_to(self._file.path.parent)) for k, p in saved.items()},
                report=None if report is None else report.to_dict(),
            )
        )
        self._say(f"{place}: {_words(verdict, stopped)}")
        return True

    def _act(self, letter: str) -> tuple[Report | None, str]:
        """Run a policy for an episode; return its report, or the reason why it was stopped."""
        self._sent = 0
        try:
            report = self._loops[letter].run(
                self._steps, self._lang, until_success=self._judge.until_success
            )
        except RobotError as error:
            if not self._sent:
                raise
            return None, str(error)
        return report, ""

    def _images(self) -> dict[str, NDArray[np.uint8]]:
        """Return the pictures of the current scene while the robot is still."""
        return images_of(observed(self._robot))

    def _counting(self, on_step: Callable[[Step], None] | None) -> Callable[[Step], None]:
        """Return a function for a control loop that counts the sent actions and then calls ``on_step``."""

        def count(step: Step) -> None:
            self._sent += step.action is not None
            if on_step is not None:
                on_step(step)

        return count


def _words(verdict: Verdict, stopped: str) -> str:
    words = "success" if verdict.success else "failure"
    if verdict.progress is not None:
        words += f", progress {verdict.progress} of 9"
    return f"{words}, stopped by the control loop" if stopped else words
