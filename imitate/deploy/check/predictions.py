"""Call a policy with recorded observations as a control loop does, and measure its action errors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.check.finding import Finding, Level
from imitate.deploy.loop import Actor

_SMALL = 0.01
"""Dimensions that vary less than this fraction of the most varied one are not judged."""


@dataclass(frozen=True)
class Demo:
    """One recorded demonstration.

    Attributes:
        name: its name in the file.
        obs: (T, ...) observations by key.
        actions: (T, A) recorded actions.
        lang: its instruction, or None.
    """

    name: str
    obs: Mapping[str, NDArray[Any]]
    actions: NDArray[np.float64]
    lang: str | None = None


@dataclass(frozen=True)
class Predictions:
    """A policy's actions beside the recorded ones.

    Attributes:
        demos: the demos.
        actions: (T, A) the policy's actions for each demo.
        first_ms: duration of the first call, which warms up.
        calls_ms: durations of all other calls.
    """

    demos: Sequence[Demo]
    actions: Sequence[NDArray[np.float64]]
    first_ms: float
    calls_ms: NDArray[np.float64]


def predict(policy: Actor, demos: Sequence[Demo]) -> Predictions:
    """Call a policy with each observation of some demos; each demo is one episode.

    Raises:
        UserError: the policy refuses an observation, or the instruction.
        ConnectionError: its server does not answer in time.
    """
    policy.start_episode(demos[0].lang)
    began = time.perf_counter()
    policy({key: values[0] for key, values in demos[0].obs.items()})
    first_ms = 1e3 * (time.perf_counter() - began)
    calls, predicted = [], []
    for demo in demos:
        policy.start_episode(demo.lang)
        actions = []
        for step in range(len(demo.actions)):
            seen = {key: values[step] for key, values in demo.obs.items()}
            began = time.perf_counter()
            actions.append(policy(seen))
            calls.append(1e3 * (time.perf_counter() - began))
        predicted.append(np.array(actions, dtype=np.float64))
    return Predictions(demos, predicted, first_ms, np.array(calls))


class ActionErrors:
    """Errors of predicted actions, in the units of the data.

    Args:
        predictions: predictions of the policy.

    Attributes:
        mean, p95: (A,) mean and 95 % quantile of the absolute error.
        std: (A,) standard deviation of the recorded actions.
        constant: (A,) mean absolute error of the best constant action, the median of the recorded ones.
        relative: (A,) ``mean / constant``: 1 is no better than a constant action, 0 is perfect; NaN if the recorded
            actions hardly vary.
        overall: mean of ``relative``; NaN if no dimension varies.
        worst_demo: name of the demo with the largest mean relative error.
        worst_step: demo, step and dimension of the error that is largest relative to ``std``.
    """

    def __init__(self, predictions: Predictions) -> None:
        recorded = np.concatenate([demo.actions for demo in predictions.demos])
        errors = [
            np.abs(actions - demo.actions)
            for demo, actions in zip(predictions.demos, predictions.actions, strict=True)
        ]
        every = np.concatenate(errors)
        self.mean, self.p95 = every.mean(axis=0), np.quantile(every, 0.95, axis=0)
        self.std = recorded.std(axis=0)
        self.constant = np.abs(recorded - np.median(recorded, axis=0)).mean(axis=0)
        varied = (self.std > _SMALL * self.std.max()) & (self.constant > 0)
        scale = np.where(varied, self.constant, np.inf)
        self.relative = np.where(varied, self.mean / scale, np.nan)
        self.overall = float(np.nanmean(self.relative)) if varied.any() else float("nan")
        std = np.where(varied, self.std, np.inf)
        demo = int(np.argmax([(error / scale).mean() for error in errors]))
        self.worst_demo = predictions.demos[demo].name
        demo = int(np.argmax([(error / std).max() for error in errors]))
        step, dim = np.unravel_index(np.argmax(errors[demo] / std), errors[demo].shape)
        self.worst_step = (predictions.demos[demo].name, int(step), int(dim))

    def findings(self, tolerance: float) -> list[Finding]:
        """Compare the errors with those of a constant action.

        Args:
            tolerance: largest allowed ``overall``.
        """
        if self.overall > tolerance:
            words = (
                f"the policy's action error is {self.overall:.2f} times that of the best "
                f"constant action (allowed: {tolerance:g}); the worst demo is "
                f"{self.worst_demo}: other observations, units or actions?"
            )
            return [Finding(Level.problem, "actions", "", words)]
        bad = np.flatnonzero(self.relative > max(tolerance, 1.0))
        if not len(bad):
            return []
        dims = ", ".join(map(str, bad))
        words = f"actions[{dims}] have larger errors than the best constant action"
        return [Finding(Level.warning, "actions", "", words)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        demo, step, dim = self.worst_step
        return {
            "mean": self.mean.tolist(),
            "p95": self.p95.tolist(),
            "std": self.std.tolist(),
            "constant": self.constant.tolist(),
            "relative": [None if np.isnan(value) else float(value) for value in self.relative],
            "overall": None if np.isnan(self.overall) else self.overall,
            "worst_demo": self.worst_demo,
            "worst_step": {"demo": demo, "step": step, "dimension": dim},
        }


def limit_findings(
    predictions: Predictions, low: NDArray[Any], high: NDArray[Any], more: float = 0.2
) -> list[Finding]:
    """Find dimensions in which the policy is at its limits much more often than the demonstrations.

    Args:
        predictions: predictions of the policy.
        low, high: (A,) limits of its actions; infinite if there are none.
        more: difference of the shares of steps that is reported.
    """
    room = 1e-6 * np.where(np.isfinite(high - low), high - low, 0.0)

    def share(actions: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        x = np.concatenate(list(actions))
        at: NDArray[np.float64] = ((x <= low + room) | (x >= high - room)).mean(axis=0)
        return at

    acted, recorded = share(predictions.actions), share([d.actions for d in predictions.demos])
    bad = np.flatnonzero(acted > recorded + more)
    if not len(bad):
        return []
    named = ", ".join(f"{dim} ({acted[dim]:.0%}, demos {recorded[dim]:.0%})" for dim in bad)
    words = f"the policy's actions are at their limits in dimensions {named} of the steps"
    return [Finding(Level.warning, "limits", "", words)]
