"""Result of a comparison: success, difference, evidence, verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from imitate.deploy.comparison.trial_file import POLICIES, Trial, TrialFile
from imitate.system.statistics import (
    PairedComparison,
    anytime_p_value,
    compare_paired,
    e_value,
    log_e_value,
    share_interval,
    wilson_interval,
)

_ROUNDING = 1e-12


@dataclass(frozen=True)
class PolicyOutcome:
    """Success of one policy in the complete pairs.

    Attributes:
        name: name as given.
        sha256: checksum of its checkpoint.
        successes, trials: numbers of successes and trials.
        interval: 95 % Wilson interval of the success rate.
        progress: mean of the ratings from 0 to 9, or None without ratings.
        rated: number of trials with such a rating.
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
        decided: the better policy, ``A`` or ``B``, decided at the first pair with ``e_value >= 1 / alpha``; None
            before.
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
        """Rates and their difference with an interval for a fixed number of pairs; None before the first pair."""
        return compare_paired(self.success["A"], self.success["B"]) if self.pairs else None

    def trials_of(self, letter: str) -> list[Trial]:
        """Trials of a policy in the complete pairs."""
        counted = self.file.trials[: 2 * self.pairs]
        return [t for t in counted if self.file.policy(t.pair, t.position) == letter]

    def of(self, letter: str) -> PolicyOutcome:
        """Success of ``A`` or ``B``."""
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
        """Describe the verdict."""
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
    """Return the policy that leads when the evidence first suffices."""
    wins = losses = 0
    for outcome in outcomes:
        wins += outcome > 0
        losses += outcome < 0
        if log_e_value(wins, losses) >= -math.log(alpha) - _ROUNDING:
            return "A" if wins > losses else "B"
    return None
