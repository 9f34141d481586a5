"""Readable report on a comparison of two policies on a robot."""

from __future__ import annotations

from imitate.deploy.comparison.outcome import Outcome
from imitate.deploy.comparison.trial_file import POLICIES
from imitate.functional.sequential import share_interval

_PLACES = ("first", "second")


def is_open(outcome: Outcome) -> bool:
    """Return True if the report may name the policies: a robot judged, or the comparison has ended."""
    file = outcome.file
    return (
        file.settings["judge"] == "robot"
        or outcome.decided is not None
        or file.revealed is not None
    )


def sealed_lines(outcome: Outcome) -> list[str]:
    """State of a running comparison, without anything that distinguishes the policies."""
    differed = outcome.wins + outcome.losses
    return [
        f"{outcome.file.path}: {outcome.pairs} complete pairs, of which {differed} differ; e-value "
        f"{outcome.e_value:.3g}, {1 / outcome.alpha:.3g} decides",
        "the policies are named at the end, or by --report --reveal",
    ]


def comparison_lines(outcome: Outcome) -> list[str]:
    """Return the whole result, with the policies' names."""
    width = max(len(_name(outcome, letter)) for letter in POLICIES)
    lines = [outcome.words, ""]
    for letter in POLICIES:
        of = outcome.of(letter)
        low, high = of.interval
        line = f"{_name(outcome, letter):{width}}  {of.successes} of {of.trials}"
        if of.trials:
            line += f" ({of.successes / of.trials:.0%}; 95 % {low:.0%} - {high:.0%})"
        if of.progress is not None:
            line += f", progress {of.progress:.1f} of 9 ({of.rated} rated)"
        if of.stopped:
            line += f", {of.stopped} stopped by the control loop"
        lines.append(line)
    paired = outcome.paired
    if paired is not None:
        lines.append(
            f"difference A - B: {paired.difference:+.0%} (95 % {paired.low:+.0%} - {paired.high:+.0%})"
        )
    low, high = share_interval(outcome.wins, outcome.losses, outcome.alpha)
    lines += [
        f"valid at any time: p {outcome.p_value:.3g}; A wins {low:.0%} - {high:.0%} of the "
        "pairs that differ",
        "the other intervals are for a fixed number of pairs: after an early end they "
        "overestimate the better policy",
    ]
    if outcome.file.revealed is not None and outcome.file.revealed < outcome.pairs:
        lines.append(f"blind for only {outcome.file.revealed} of {outcome.pairs} pairs")
    return lines + _notes(outcome)


def _name(outcome: Outcome, letter: str) -> str:
    policy = outcome.file.policies[letter]
    return f"{letter}: {policy['name']} ({policy['sha256'][:12]})"


def _notes(outcome: Outcome) -> list[str]:
    """Return notes, stops and repetitions, by policy."""
    file, lines = outcome.file, []
    for letter in POLICIES:
        for trial in file.trials:
            words = "; ".join(filter(None, (trial.note, trial.stopped)))
            if words and file.policy(trial.pair, trial.position) == letter:
                verdict = "success" if trial.success else "failure"
                lines.append(f"{letter}, pair {trial.pair + 1}, {verdict}: {words}")
        lines += [
            f"{letter}, pair {redo.pair + 1}, redone: {redo.reason}"
            for redo in file.redos
            if file.policy(redo.pair, redo.position) == letter
        ]
    return lines
