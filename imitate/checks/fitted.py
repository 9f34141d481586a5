"""Tests of whether demonstrations are too few, or observations are missing: do states predict demonstrated actions?

The actions of each demonstration are predicted from the other demonstrations by a kernel regression with Gaussian and
linear kernels (leave-one-out in closed form). The errors do not depend on the policy: they show what any policy could
learn from these demonstrations and observations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import Array, Cause, scored
from imitate.deploy.check.deploy_check import CheckedDemo

_ROWS = 600
_KERNELS = ((1.5, 0.01), (1.5, 0.3), (1.5, 1.0), (5.0, 0.01), (5.0, 0.3))
"""Kernel widths, in standard deviations per dimension, with ridges; the pair with the smallest error is used."""


class LeftOut:
    """Leave-one-out regression from observed states to actions, over some steps of each demonstration.

    Args:
        demos: at least three demonstrations.
        keys: observation keys of the vectors that the policy observes.
        before: true to append the change of the observations since the step before.
    """

    def __init__(
        self, demos: Sequence[CheckedDemo], keys: Sequence[str], before: bool = False
    ) -> None:
        count = max(_ROWS // len(demos), 3)
        states, actions = [], []
        for demo in demos:
            rows = np.unique(np.linspace(0, len(demo.actions) - 1, count).astype(int))
            whole = [demo.obs[key].reshape(len(demo.actions), -1) for key in keys]
            flat = [each[rows] for each in whole]
            if before:
                flat += [each[rows] - each[np.maximum(rows - 1, 0)] for each in whole]
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
        """Standardized states (N, D) at the beginning and end of each of the N demonstrations."""
        self.middle = self.states[(firsts + lasts) // 2]

    def errors(self) -> Array:
        """Return the mean absolute error (A,) of left-out actions, divided by the error of the best constant action."""
        usual = np.maximum(np.abs(self.actions).mean(axis=0), 1e-9)
        every = [
            np.abs(left).mean(axis=0) for left in _left_out(self.states, self.actions, self.of)
        ]
        relative: Array = min(every, key=lambda error: float(error.mean())) / usual
        return relative

    def unexplained(self, context: Array | None = None) -> Array:
        """Return the mean squared action error (N, A) of each left-out demonstration, divided by the actions' variance.

        Args:
            context: (N, C) further inputs, constant within each demonstration. The predicted actions are linear in
                these inputs, with coefficients that depend on the state.
        """
        y = self.actions - self.actions.mean(axis=0)
        every = np.stack([left**2 for left in _left_out(self.states, y, self.of, context)])
        best = every.mean(axis=1).argmin(axis=0)
        errors = every[best, :, np.arange(len(best))].T / np.maximum(y.var(axis=0), 1e-12)
        return np.stack([errors[self.of == number].mean(axis=0) for number in np.unique(self.of)])

    def novelty(self) -> float:
        """Return how new first states are to other demonstrations, from 0 (combinations of their first states) to 1.

        The value is the mean fraction of a first state's squared distance from the other first states' mean that no
        combination of these explains.
        """
        points = np.concatenate([self.first, np.ones((len(self.first), 1))], axis=1)
        left = []
        for number, point in enumerate(points):
            others = np.delete(points, number, axis=0)
            weights = np.linalg.lstsq(others.T, point, rcond=1e-2)[0]
            own = max(float(((point - others.mean(axis=0)) ** 2).sum()), 1e-9)
            left.append(float(((point - others.T @ weights) ** 2).sum()) / own)
        return float(np.mean(left))

    def surprise(self, later: Array) -> tuple[float, Array, Array]:
        """Return how badly first states predict later states of left-out demonstrations.

        A constant is used instead of the regression where its error is smaller.

        Args:
            later: (N, D) standardized states, such as :attr:`last`.

        Returns:
            the mean absolute error in the worst dimension, divided by the mean deviation of all states; and the values
            (N,) and their errors (N,) in this dimension.
        """
        left = later - np.median(later, axis=0)
        usual, each = np.abs(self.states).mean(axis=0), np.arange(len(left))
        worst, values, errors = 0.0, left[:, 0], left[:, 0]
        for column, size in zip(left.T, usual, strict=True):
            if size > 0:
                fits = (one[:, 0] for one in _left_out(self.first, column[:, None], each))
                best = min((column, *fits), key=lambda one: float(np.abs(one).mean()))
                if (found := float(np.abs(best).mean() / size)) > worst:
                    worst, values, errors = found, column, best
        return worst, values, errors


def standardized(x: Array) -> Array:
    """Return values (N, D) with mean 0 and standard deviation 1; columns that do not vary become 0."""
    std = x.std(axis=0)
    found: Array = (x - x.mean(axis=0)) / np.where(
        std > 1e-9 + 1e-6 * np.abs(x.mean(axis=0)), std, np.inf
    )
    return found


def _left_out(
    x: Array, y: Array, of: NDArray[np.intp], context: Array | None = None
) -> Iterator[Array]:
    """Yield for each kernel the errors (N, A) of outputs that are predicted from the other demonstrations.

    Args:
        x: (N, D) standardized inputs.
        y: (N, A) outputs.
        of: (N,) number of the demonstration of each row.
        context: further inputs (K, C) of each of the K demonstrations.
    """
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
        data: regression over the demonstrations.
        own: the policy's action error on all demonstrations, divided by the error of the best constant action.
    """
    error, new, count = float(data.errors().mean()), data.novelty(), len(data.first)
    words = (
        f"{new:.0%} of the first state of each of the {count} demonstrations is new to the others, which predict the "
        f"actions with an error of {error:.2f} (the policy: {own:.2f}; a constant action: 1)"
    )
    return scored(
        "few demonstrations",
        max(error - own, 0.0) * new,
        0.3,
        words,
        "record more demonstrations, from other starts",
    )


def of_motion(seen: LeftOut, moving: LeftOut) -> Cause:
    """Test whether the actions depend on velocities that the policy, which observes one step, cannot know.

    Args:
        seen: regression from the observations of one step.
        moving: the same with the changes since the step before.
    """
    error, known = (float(data.unexplained().mean()) for data in (seen, moving))
    words = (
        f"predictions of actions in left-out demonstrations leave {known:.0%} of the variance unexplained instead of "
        f"{error:.0%} if the change of the observations since the step before is an input too"
    )
    advice = (
        "record velocities as observations or name them in observation.modalities, or train with train.frame_stack 2 "
        "or with a memory: bc_rnn"
    )
    return scored("unobserved", max(error - known, 0.0), _MOVING, words, advice)


_MOVING = 0.3
"""The cause is reported if a larger fraction of the actions' variance follows from the change of observations alone."""


def of_unobserved(
    data: LeftOut, others: Mapping[str, Array], several_ways: bool
) -> Iterator[Cause]:
    """Test whether the actions depend on something that the policy does not observe.

    Args:
        data: regression over the demonstrations.
        others: values (N, C) in the first step of each vector in the file that the policy does not observe.
        several_ways: true for policies that can learn several ways of acting in one state.

    Returns:
        the cause for the best of these vectors; if it explains little, also the causes for the last and the middle
        state, which are substitutes for an unobserved goal and for the way that a person chose. If such states form
        two groups, the demonstrations are called inconsistent.
    """
    error = data.unexplained()
    found = []
    for key, values in others.items():
        words = f"'{key}' in the first step, which the policy does not observe, is an input too"
        advice = f"train with '{key}' in observation.modalities"
        found.append(_unobserved(error, data.unexplained(standardized(values)), words, advice))
    best = max(found, key=lambda cause: cause.score, default=None)
    if best is not None:
        yield best
        if best.is_named:
            return
    for place, later in (("last", data.last), ("middle", data.middle)):
        surprise, *ends = data.surprise(later)
        in_two_ways = any(map(are_two_groups, ends))
        if place == "middle" and not in_two_ways:
            continue
        words = (
            f"the {place} state, which the first observations do not predict (error {surprise:.2f}), "
            "is an input too"
        )
        known = data.unexplained(standardized(later)) if surprise > _SURPRISE else error
        cause = _unobserved(error, known, words, _DECIDE)
        if in_two_ways:
            words = f"{cause.words}; these states form two groups, without values between them"
            score = cause.score / (_WAYS if several_ways else 1.0)
            cause = replace(cause, kind="inconsistent", words=words, score=score)
        yield cause


_DECIDE = (
    "record the goal as an observation, or give an instruction; if the policy observes all that matters, people acted "
    "differently in the same state: keep one way (imitate dataset filter)"
)
_WAYS = 5.0
"""Factor by which the score of two ways is reduced for policies that can learn both."""


def are_two_groups(values: Array) -> bool:
    """Return whether values (N,) form two groups, each of at least 15 %, that are far apart for their width."""
    x = np.sort(values)
    least = max(int(np.ceil(0.15 * len(x))), 2)
    total = float(x.var() * len(x))
    within = [
        x[:n].var() * n + x[n:].var() * (len(x) - n) for n in range(least, len(x) - least + 1)
    ]
    return total > 0 and min(within, default=total) < _APART * total


_APART = 0.1
"""Two groups are apart if less than this fraction of the variance is within them; 0.25 for a uniform distribution."""
_SURPRISE = 0.5
_GAIN = 0.1
"""Largest fraction of an action's variance that further inputs explain in healthy trainings."""
_CERTAIN = 3.2
"""Improvement by a further input, in standard errors, that does not occur by chance with many demonstrations."""


def _unobserved(error: Array, known: Array, given: str, advice: str) -> Cause:
    """Judge the action dimension whose error falls most with a further input.

    Args:
        error: (N, A) errors of left-out demonstrations without the further input.
        known: (N, A) errors with the further input.
        given: words for the further input.
        advice: words for what to do.
    """
    usual = error / np.maximum(error.mean(axis=0), 1.0)
    fall = usual - known
    gain = fall.mean(axis=0)
    certain = gain / np.maximum(fall.std(axis=0, ddof=1) / np.sqrt(len(fall)), 1e-9)
    scores = np.minimum(gain / _GAIN, certain / (_CERTAIN + 20 / len(fall)))
    most = int(scores.argmax())
    words = (
        f"predictions of actions[{most}] in left-out demonstrations leave {known.mean(axis=0)[most]:.0%} of the "
        f"variance unexplained instead of {error.mean(axis=0)[most]:.0%} if {given}"
    )
    return scored("unobserved", max(float(scores[most]), 0.0), 1.0, words, advice)
