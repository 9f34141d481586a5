"""Compare two policies on one robot by pairs of trials from the same initial scene, in random order.

A pair consists of a trial of each policy from the same initial scene. The robot restores the scene
(:meth:`~imitate.deploy.Robot.reset_to`), or a person does, with the help of a picture of the first trial's start. After
each pair the test of :mod:`imitate.system.statistics` may end the comparison. Trials go through the same control loop
as those of ``imitate run``, within the same limits.

The module also saves pictures of the initial scenes, and overlays of the two scenes of a pair.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.comparison.judges import Judge, Start, Verdict
from imitate.deploy.comparison.trial_file import POLICIES, Redo, Trial, TrialFile
from imitate.deploy.robot.driver import observed
from imitate.deploy.robot.loop import ControlLoop, ControlStep
from imitate.deploy.robot.report import Report
from imitate.deploy.robot.robot import Observation
from imitate.deploy.robot.watchdog import reset_robot
from imitate.errors import RobotError
from imitate.system.plain_files import cleared, replaced
from imitate.system.statistics import (
    PairedComparison,
    anytime_p_value,
    compare_paired,
    e_value,
    log_e_value,
    share_interval,
    wilson_interval,
)


def images_of(observation: Observation) -> dict[str, NDArray[np.uint8]]:
    """Return the colour images (H, W, 3) of an observation as uint8, by key."""
    return {
        key: value
        for key, value in observation.values.items()
        if getattr(value, "ndim", 0) == 3 and value.shape[2] == 3 and value.dtype == np.uint8
    }


def save_images(
    images: Mapping[str, NDArray[np.uint8]], folder: Path, name: str
) -> dict[str, Path]:
    """Write each image as ``<folder>/<name>_<key>.png``; return paths by key."""
    paths = {}
    for key, image in images.items():
        paths[key] = folder / f"{name}_{key.replace('/', '_')}.png"
        _save(image, paths[key])
    return paths


def save_overlays(
    before: Mapping[str, Path], now: Mapping[str, NDArray[np.uint8]], folder: Path, name: str
) -> list[Path]:
    """Write pictures that show the initial scene of the first trial, the current scene, and a blend of both.

    Args:
        before: picture files of the first trial's scene by key; keys whose file is missing or has another size are
            skipped.
        now: the current images by key.
        folder: folder of the pictures.
        name: prefix of the file names.
    """
    from PIL import Image

    sheets = {}
    for key in (key for key in before if key in now and before[key].is_file()):  # a pipe blocks
        try:
            with Image.open(before[key], formats=("PNG",)) as picture:
                if picture.size[::-1] != now[key].shape[:2]:
                    continue
                first = np.asarray(picture.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
        if first.shape == now[key].shape:
            sheets[key] = np.concatenate([first, now[key], blend(first, now[key])], axis=1)
    return list(save_images(sheets, folder, name).values())


def blend(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Average two images of the same shape."""
    mixed: NDArray[Any] = (first.astype(np.uint16) + second + 1) // 2
    return mixed.astype(np.uint8)


def _save(image: NDArray[np.uint8], path: Path) -> None:
    """Write a PNG file atomically."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as part:
        Image.fromarray(image).save(cleared(part), format="PNG")


_PLACES = ("first", "second")


class Comparison:
    """Runs the remaining trials of a comparison.

    Args:
        file: file of the comparison, to which each new trial is added.
        loops: control loops of A and B, on the same connected robot. The judge's ``keys`` are their teleoperator.
        judge: judge of the trials.
        steps: largest number of control steps per trial.
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
        outcome = ComparisonOutcome(self._file)
        return outcome.decided is not None or outcome.pairs >= self._most

    def run(self) -> bool:
        """Run trials until the comparison is finished, or the judge quits.

        Returns:
            True if the comparison is finished.

        Raises:
            RobotError: the robot was stopped before it moved. The trial does not count and is not written.
        """
        while not self.finished:
            if not self._trial(*self._file.next):
                return False
        return True

    def _trial(self, pair: int, position: int) -> bool:
        """Run one trial and write its result; return False if the judge quits."""
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
        """Run policy A or B for an episode; return the loop's report, or None and the reason of a stop."""
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

    def _counting(
        self, on_step: Callable[[ControlStep], None] | None
    ) -> Callable[[ControlStep], None]:
        """Return a function for a control loop that counts the sent actions and then calls ``on_step``."""

        def count(step: ControlStep) -> None:
            self._sent += step.action is not None
            if on_step is not None:
                on_step(step)

        return count


def _words(verdict: Verdict, stopped: str) -> str:
    words = "success" if verdict.success else "failure"
    if verdict.progress is not None:
        words += f", progress {verdict.progress} of 9"
    return f"{words}, stopped by the control loop" if stopped else words


# ---- result --------------------------------------------------------------------------------------

_ROUNDING = 1e-12


@dataclass(frozen=True)
class PolicyOutcome:
    """Results of one policy in the complete pairs.

    Attributes:
        name: name of the policy as the user gave it.
        sha256: checksum of the policy's checkpoint.
        successes, trials: numbers of successes and trials.
        interval: 95 % Wilson interval of the success rate.
        progress: mean of the ratings from 0 to 9, or None without ratings.
        rated: number of trials with a rating.
        stopped: number of trials that the control loop ended, which count as failures.
    """

    name: str
    sha256: str
    successes: int
    trials: int
    interval: tuple[float, float]
    progress: float | None
    rated: int
    stopped: int


class ComparisonOutcome:
    """Result computed from the trials so far.

    Args:
        file: file of the trials. A pair counts if both of its trials are judged.

    Attributes:
        pairs: number of complete pairs.
        wins, losses: numbers of pairs in which only A, and only B, succeeded.
        e_value: current evidence against the hypothesis that both are equally good.
        p_value: p-value that is valid at any time.
        decided: the better policy, ``A`` or ``B``, at the first pair with ``e_value >= 1 / alpha``; None if there is no
            such pair yet.
        alpha: largest probability of a decision if both policies are equally good.
    """

    def __init__(self, file: TrialFile) -> None:
        self.file = file
        self.alpha = float(file.settings["alpha"])
        self.pairs = len(file.trials) // 2
        self.success: dict[str, list[bool]] = {letter: [] for letter in POLICIES}
        for trial in file.trials[: 2 * self.pairs]:
            self.success[file.policy(trial.pair, trial.position)].append(trial.success)
        outcomes = [int(a) - int(b) for a, b in zip(*self.success.values(), strict=True)]
        self.wins, self.losses = outcomes.count(1), outcomes.count(-1)
        self.e_value = e_value(self.wins, self.losses)
        self.p_value = anytime_p_value(outcomes)
        self.decided = _decision(outcomes, self.alpha)

    @property
    def paired(self) -> PairedComparison | None:
        """Success rates and their difference, with an interval for a fixed number of pairs; None without pairs."""
        return compare_paired(self.success["A"], self.success["B"]) if self.pairs else None

    def trials_of(self, letter: str) -> list[Trial]:
        """Trials of a policy in the complete pairs."""
        counted = self.file.trials[: 2 * self.pairs]
        return [t for t in counted if self.file.policy(t.pair, t.position) == letter]

    def of(self, letter: str) -> PolicyOutcome:
        """Return the results of ``A`` or ``B``."""
        trials = self.trials_of(letter)
        ratings = [trial.progress for trial in trials if trial.progress is not None]
        successes = sum(trial.success for trial in trials)
        return PolicyOutcome(
            **self.file.policies[letter],
            successes=successes,
            trials=len(trials),
            interval=wilson_interval(successes, len(trials)),
            progress=fmean(ratings) if ratings else None,
            rated=len(ratings),
            stopped=sum(bool(trial.stopped) for trial in trials),
        )

    @property
    def words(self) -> str:
        """Describe the result of the comparison in a sentence."""
        differed = self.wins + self.losses
        count = f"{self.pairs} pair{'s' * (self.pairs != 1)}"
        evidence = f"e-value {self.e_value:.3g}, {1 / self.alpha:.3g} decides"
        if self.decided is not None:
            won = self.wins if self.decided == "A" else self.losses
            return (
                f"{self.decided} is better: after {count} only it succeeded in {won} of the {differed} pairs that "
                f"differ ({evidence})"
            )
        if not differed:
            return f"not decided after {count}: no pair differs ({evidence})"
        return (
            f"not decided after {count}: {differed} differ, A alone succeeded in {self.wins}, B alone in {self.losses} "
            f"({evidence})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        paired = self.paired
        named = [
            {
                "pair": redo.pair,
                "policy": self.file.policy(redo.pair, redo.position),
                "reason": redo.reason,
                "stopped": redo.stopped,
            }
            for redo in self.file.redos
        ]
        return {
            "decided": self.decided,
            "words": self.words,
            "pairs": self.pairs,
            "wins": self.wins,
            "losses": self.losses,
            "alpha": self.alpha,
            "e_value": self.e_value,
            "p_value": self.p_value,
            "share_of_differing_won_by_A": share_interval(self.wins, self.losses, self.alpha),
            "policies": {letter: vars(self.of(letter)) for letter in POLICIES},
            "difference": None if paired is None else paired.difference,
            "difference_interval": None if paired is None else [paired.low, paired.high],
            "redos": named,
            "revealed_after_pairs": self.file.revealed,
            "settings": self.file.settings,
            "trials": [
                {"policy": self.file.policy(t.pair, t.position), **vars(t)}
                for t in self.file.trials
            ],
        }


def _decision(outcomes: list[int], alpha: float) -> str | None:
    """Return the policy that leads at the first pair at which the evidence suffices; None if it never does."""
    wins = losses = 0
    for outcome in outcomes:
        wins += outcome > 0
        losses += outcome < 0
        if log_e_value(wins, losses) >= -math.log(alpha) - _ROUNDING:
            return "A" if wins > losses else "B"
    return None
