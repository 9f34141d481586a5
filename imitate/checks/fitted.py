"""Causes in what the observed states say of the demonstrated actions: too few demonstrations, missing observations.

Each demonstration's actions are predicted from the other demonstrations. A kernel regression with Gaussian and linear
kernels is fitted to all demonstrations but one; its errors on the one that is left out come in closed form. They are no
errors of the policy, but a limit that data and observations set: what nearby demonstrations do not show, no policy
learns from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import Array, Cause, scored
from imitate.deploy.check.deploy_check import CheckedDemo

_ROWS = 600
_KERNELS = ((1.5, 0.01), (1.5, 0.3), (1.5, 1.0), (5.0, 0.01), (5.0, 0.3))
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

    def errors(self) -> Array:
        """Return the mean absolute errors (A,) of left-out actions, divided by those of the best constant action."""
        usual = np.maximum(np.abs(self.actions).mean(axis=0), 1e-9)
        every = [
            np.abs(left).mean(axis=0) for left in _left_out(self.states, self.actions, self.of)
        ]
        relative: Array = min(every, key=lambda error: float(error.mean())) / usual
        return relative

    def unexplained(self, context: Array | None = None) -> Array:
        """Return the squared errors (N, A) of each left-out demonstration's actions, in the actions' variance.

        Args:
            context: (N, C) further numbers of each demonstration. The actions are linear in them, by factors that
                depend on the state.
        """
        y = self.actions - self.actions.mean(axis=0)
        every = np.stack([left**2 for left in _left_out(self.states, y, self.of, context)])
        best = every.mean(axis=1).argmin(axis=0)
        errors = every[best, :, np.arange(len(best))].T / np.maximum(y.var(axis=0), 1e-12)
        return np.stack([errors[self.of == number].mean(axis=0) for number in np.unique(self.of)])

    def novelty(self) -> float:
        """Return the part of a first state, in [0, 1], that the others' first states do not combine to."""
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
        usual, each = np.abs(self.states).mean(axis=0), np.arange(len(left))
        return max(
            (
                min(
                    min(np.abs(one).mean() for one in _left_out(self.first, column[:, None], each))
                    / size,
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


def _left_out(
    x: Array, y: Array, of: NDArray[np.intp], context: Array | None = None
) -> Iterator[Array]:
    """Yield the errors of y (N, A) for each kernel, when the demonstration ``of`` (N,) of each row is left out."""
    norms = (x**2).sum(axis=1)
    products = x @ x.T / max(x.shape[1], 1)
    squares = norms[:, None] / max(x.shape[1], 1) + norms / max(x.shape[1], 1) - 2 * products
    factors: Array | float = 1.0
    if context is not None:
        factors += (context @ context.T / context.shape[1])[np.ix_(of, of)]
    for width, ridge in _KERNELS:
        kernel = factors * np.exp(-squares / (2 * width**2)) + 0.05 * products + 1.0
        inverse = np.linalg.inv(kernel + ridge * np.eye(len(kernel)))
        weighted, left = inverse @ y, np.empty_like(y)
        for number in np.unique(of):
            rows = of == number
            left[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], weighted[rows])
        yield left


def of_number(data: LeftOut, own: float) -> Cause:
    """Judge whether more demonstrations are needed.

    Args:
        data: the demonstrations.
        own: error of the policy on all of them, divided by that of the best constant action.
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
    error = data.unexplained()
    found = []
    for key, values in others.items():
        words = f"'{key}' of the first step, which the policy does not observe, is known"
        advice = f"train with '{key}' in observation.modalities"
        found.append(_unobserved(error, data.unexplained(standardized(values)), words, advice))
    best = max(found, key=lambda cause: cause.score, default=None)
    if best is not None:
        yield best
        if best.is_named:
            return
    surprise = data.surprise()
    words = f"the last state is known, which does not follow from what the policy observes first (error {surprise:.2f})"
    known = data.unexplained(standardized(data.last)) if surprise > _SURPRISE else error
    advice = (
        "record the goal as an observation, or give an instruction; if the policy sees all that decides, people acted "
        "differently in one state: keep one way (imitate dataset filter)"
    )
    yield _unobserved(error, known, words, advice)


_SURPRISE = 0.5
_GAIN = 0.1
"""Fraction of an action's variance that further numbers explain in healthy trainings at most."""
_CERTAIN = 3.2
"""Standard errors over many demonstrations from which on it is no chance."""


def _unobserved(error: Array, known: Array, given: str, advice: str) -> Cause:
    """Judge the action whose left-out errors (N, A), at most those of a constant, fall most if more is known."""
    usual = error / np.maximum(error.mean(axis=0), 1.0)
    fall = usual - known
    gain = fall.mean(axis=0)
    certain = gain / np.maximum(fall.std(axis=0, ddof=1) / np.sqrt(len(fall)), 1e-9)
    scores = np.minimum(gain / _GAIN, certain / (_CERTAIN + 20 / len(fall)))
    most = int(scores.argmax())
    words = (
        f"actions[{most}] of left-out demonstrations are predicted with {known.mean(axis=0)[most]:.0%} of their "
        f"variance as error in place of {error.mean(axis=0)[most]:.0%} if {given}"
    )
    return scored("unobserved", max(float(scores[most]), 0.0), 1.0, words, advice)
