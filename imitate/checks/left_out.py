"""Prediction of a demonstration's actions from the other demonstrations: are there too few, does the policy see enough?

A kernel regression with Gaussian and linear kernels is fitted to all demonstrations but one; its errors on the one that
is left out come in closed form. They are no errors of the policy, but a limit that data and observations set: what
nearby demonstrations do not show, no policy learns from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import Array, Cause, scored
from imitate.deploy.check.deploy_check import CheckedDemo

_ROWS = 600
_KERNELS = ((1.5, 0.01), (1.5, 0.3), (5.0, 0.01), (5.0, 0.3))
"""Widths in standard deviations per number, and ridges; the best one is taken."""


class LeftOut:
    """Some steps of demonstrations, and errors of their actions when each demonstration is left out.

    Args:
        demos: at least three demonstrations.
        keys: names of the vectors that the policy observes.
    """

    def __init__(self, demos: Sequence[CheckedDemo], keys: Sequence[str]) -> None:
        count = max(_ROWS // len(demos), 3)
        states, actions = [], []
        for demo in demos:
            rows = np.unique(np.linspace(0, len(demo.actions) - 1, count).astype(int))
            flat = [demo.obs[key].reshape(len(demo.actions), -1)[rows] for key in keys]
            states.append(np.concatenate(flat, axis=1).astype(np.float64))
            actions.append(demo.actions[rows])
        self.of = np.repeat(np.arange(len(demos)), [len(part) for part in states])
        self.states = standardized(np.concatenate(states))
        y = np.concatenate(actions)
        varied = y.std(axis=0) > 0.01 * max(float(y.std(axis=0).max()), 1e-12)
        self.actions = (y - np.median(y, axis=0))[:, varied]
        firsts = np.flatnonzero(np.diff(self.of, prepend=-1))
        lasts = np.flatnonzero(np.diff(self.of, append=len(demos)))
        self.first, self.last = self.states[firsts], self.states[lasts]
        """Standardized states (N, D) at the begin and end of each demonstration."""

    def errors(self, context: Array | None = None) -> Array:
        """Return the mean absolute errors (A,) of left-out actions, in those of the best constant action.

        Args:
            context: (N, C) further numbers of each demonstration.
        """
        x = (
            self.states
            if context is None
            else np.concatenate([self.states, context[self.of]], axis=1)
        )
        usual = np.maximum(np.abs(self.actions).mean(axis=0), 1e-9)
        relative: Array = _left_out_errors(x, self.actions, self.of) / usual
        return relative

    def novelty(self) -> float:
        """Return the share of a first state that is no combination of the other demonstrations' first states."""
        points = np.concatenate([self.first, np.ones((len(self.first), 1))], axis=1)
        left = []
        for number, point in enumerate(points):
            others = np.delete(points, number, axis=0)
            weights = np.linalg.lstsq(others.T, point, rcond=1e-2)[0]
            own = max(float(((point - others.mean(axis=0)) ** 2).sum()), 1e-9)
            left.append(float(((point - others.T @ weights) ** 2).sum()) / own)
        return float(np.mean(left))

    def surprise(self) -> float:
        """Return the error of the last states of left-out demonstrations, predicted from the first ones.

        It is that of the worst number, in mean deviations of all states, or that of a constant if this is smaller.
        """
        left = self.last - np.median(self.last, axis=0)
        usual = np.abs(self.states).mean(axis=0)
        return max(
            (
                min(
                    _left_out_errors(self.first, column[:, None], np.arange(len(left)))[0] / size,
                    float(np.abs(column).mean() / size),
                )
                for column, size in zip(left.T, usual, strict=True)
                if size > 0
            ),
            default=0.0,
        )


def standardized(x: Array) -> Array:
    """Return (N, D) values with mean 0 and deviation 1; numbers that do not vary become 0."""
    std = x.std(axis=0)
    found: Array = (x - x.mean(axis=0)) / np.where(
        std > 1e-9 + 1e-6 * np.abs(x.mean(axis=0)), std, np.inf
    )
    return found


def _left_out_errors(x: Array, y: Array, of: NDArray[np.intp]) -> Array:
    """Return the mean absolute errors (A,) of y (N, A), left out by their demonstration ``of`` (N,)."""
    norms = (x**2).sum(axis=1)
    products = x @ x.T / max(x.shape[1], 1)
    squares = norms[:, None] / max(x.shape[1], 1) + norms / max(x.shape[1], 1) - 2 * products
    errors = []
    for width, ridge in _KERNELS:
        kernel = np.exp(-squares / (2 * width**2)) + 0.05 * products + 1.0
        inverse = np.linalg.inv(kernel + ridge * np.eye(len(kernel)))
        weighted, left = inverse @ y, np.empty_like(y)
        for number in np.unique(of):
            rows = of == number
            left[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], weighted[rows])
        errors.append(np.abs(left).mean(axis=0))
    best: Array = min(errors, key=lambda error: float(error.mean()))
    return best


def of_number(data: LeftOut, own: float) -> Cause:
    """Judge whether more demonstrations are needed.

    Args:
        data: the demonstrations.
        own: error of the policy on all of them, in that of the best constant action.
    """
    error, new, count = float(data.errors().mean()), data.novelty(), len(data.first)
    words = (
        f"each of the {count} demonstrations begins in a state of which {new:.0%} is new to the others, and they "
        f"predict its actions with an error of {error:.2f} (1: as badly as by a constant action; the policy: {own:.2f})"
    )
    return scored(
        "few demonstrations",
        max(error - own, 0.0) * new,
        0.3,
        words,
        "record more, from other starts",
    )


def of_unobserved(data: LeftOut, others: Mapping[str, Array]) -> Iterator[Cause]:
    """Search for what the actions depend on and the policy does not see.

    Args:
        data: the demonstrations.
        others: (N, C) values in the first step of vectors in the file that the policy does not observe.
    """
    error = data.errors()
    best = {key: data.errors(standardized(values)) for key, values in others.items()}
    if best:
        key = min(best, key=lambda one: float(best[one].mean()))
        words = f"'{key}' of the first step, which the policy does not observe, is known"
        yield _unobserved(error, best[key], words, f"train with '{key}' in observation.modalities")
    surprise = data.surprise()
    words = f"the last state is known, which does not follow from what the policy observes first (error {surprise:.2f})"
    known = data.errors(data.last) if surprise > _SURPRISE else error
    yield _unobserved(
        error, known, words, "record the goal as an observation, or give an instruction"
    )


_SURPRISE = 0.5


def _unobserved(error: Array, known: Array, given: str, advice: str) -> Cause:
    """Judge the action (A,) whose left-out error falls most if more is known."""
    gain = np.where(known < 0.75 * error, np.minimum(error, 1.0) - known, 0.0)
    most = int(gain.argmax())
    words = (
        f"actions[{most}] of left-out demonstrations are predicted with an error of {known[most]:.2f} in place of "
        f"{error[most]:.2f} (1: as badly as by a constant action) if {given}"
    )
    return scored("unobserved", float(gain[most]), 0.25, words, advice)
