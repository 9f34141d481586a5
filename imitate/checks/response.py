"""Delay, order and size of motions after actions, by a linear model of a robot's response to them in demonstrations.

The motion of each position is q(t+1) - q(t) = b + sum over k < 3 of W_k u(t-k) + V q(t), with actions u. V is the pull
towards a target, and the three W_k are a lag of the controller, so velocities, displacements and position targets are
all of this form. The model has no rate, and needs no long episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import MOST, Array, Cause, scored

Pairs = Sequence[tuple[Array, Array]]
"""Actions (T, A) and positions (T, D) of each episode."""

_TAPS = 3
_EXPLAINED = 0.5
"""Positions of whose motion the model leaves a larger fraction unexplained do not follow the actions."""
_FLOOR = 0.01
_FEWEST = 30
"""Least number of steps for a fit."""
_STILL = 0.02
"""Fraction of the usual motion below which a position is blocked."""
_COLUMNS = 16
"""Numbers of positions up to which their order is examined."""


def reach_of(pairs: Pairs) -> int:
    """Return the largest delay in steps, at most 6, for which half of the episodes are long enough."""
    median = float(np.median([len(u) for u, _ in pairs])) if pairs else 0.0
    return int(np.clip((median - _TAPS - 1) // 3, 0, 6))


class Response:
    """The response of positions to actions in some episodes.

    Args:
        pairs: episodes.
        delay: steps by which the actions are taken earlier; negative: later.
        reach: the steps are those that all delays up to this one have.
    """

    def __init__(self, pairs: Pairs, delay: int = 0, reach: int = 0) -> None:
        x, y = _rows(pairs, delay, reach)
        self.enough = len(x) >= max(_FEWEST, 2 * x.shape[1])
        self._middle, self._width = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
        self._motion, self._size = y.mean(axis=0), y.std(axis=0)
        z = (x - self._middle) / self._width
        ridge = 1e-6 * len(z) * np.eye(z.shape[1])
        self._weights = np.linalg.solve(z.T @ z + ridge, z.T @ (y - self._motion))
        self.left = self._left(x, y)
        """Unexplained fraction (D,) of the variance of each position's motion; NaN if it does not move."""
        self.follows = np.nan_to_num(self.left, nan=1.0) < _EXPLAINED
        """True (D,) for each position that follows the actions."""

    def unexplained(self, pairs: Pairs, delay: int, reach: int) -> Array:
        """Return the unexplained fraction (D,) of the motion in other episodes after actions ``delay`` steps before.

        Steps in which a position is blocked, as at a limit, are left out.
        """
        x, y = _rows(pairs, delay, reach)
        return self._left(x, y, np.abs(y) > _STILL * self._size)

    def gain(self, pairs: Pairs) -> tuple[Array, Array]:
        """Return the factors (D,) of the motions in other episodes, and the fraction of the errors that they explain.

        The factor is 1 if a position moves as far after its actions as in the episodes of the fit. It is of the whole
        motion, as in a controller with other gains, or of the actions alone, whichever explains more.
        """
        x, y = _rows(pairs, 0, 0)
        moves = np.abs(y) > _STILL * self._size
        number = _TAPS * pairs[0][0].shape[1]
        expected = y - self._errors(x, y)
        by_actions = x[:, :number] / self._width[:number] @ self._weights[:number]
        size = np.maximum((y**2).sum(axis=0, where=moves), 1e-12)
        as_it_is = np.maximum(((y - expected) ** 2).sum(axis=0, where=moves), 1e-12)
        found = []
        for part in (expected, by_actions):
            rest = expected - part
            power = np.maximum((part**2).sum(axis=0, where=moves), 1e-12)
            factor = (part * (y - rest)).sum(axis=0, where=moves) / power
            left = ((y - rest - factor * part) ** 2).sum(axis=0, where=moves)
            found.append((factor, np.where(left < _EXPLAINED * size, 1 - left / as_it_is, 0.0)))
        (whole, of_whole), (alone, of_alone) = found
        best = of_alone > of_whole + 0.1
        return np.where(best, alone, whole), np.maximum(np.where(best, of_alone, of_whole), 0.0)

    def _errors(self, x: Array, y: Array) -> Array:
        found: Array = y - self._motion - (x - self._middle) / self._width @ self._weights
        return found

    def _left(self, x: Array, y: Array, counted: NDArray[np.bool_] | None = None) -> Array:
        error = self._errors(x, y)
        steps = np.ones(y.shape, dtype=bool) if counted is None else counted
        total = ((y - self._motion) ** 2).sum(axis=0, where=steps)
        moves = total > 1e-6 * max(float(total.max(initial=0.0)), 1e-12)
        squares = (error**2).sum(axis=0, where=steps)
        left: Array = np.where(moves, squares / np.where(moves, total, 1.0), np.nan)
        return left


def _rows(pairs: Pairs, delay: int, reach: int) -> tuple[Array, Array]:
    """Return actions and positions (N, 3 A + D), and the motions (N, D) after them."""
    factors, motions = [], []
    for u, q in pairs:
        steps = np.arange(reach + _TAPS - 1, len(u) - 1 - reach)
        lagged = [u[steps - delay - k] for k in range(_TAPS)]
        factors.append(np.concatenate([*lagged, q[steps]], axis=1))
        motions.append(q[steps + 1] - q[steps])
    return np.concatenate(factors), np.concatenate(motions)


def of_shift(trained: Pairs) -> Cause | None:
    """Judge the delay in the training data: motion before its action means that both are shifted in the file."""
    reach = reach_of(trained)
    if not reach:
        return None
    fits = {delay: Response(trained, delay, reach) for delay in range(-reach, reach + 1)}
    if not fits[0].enough or not any(fit.follows.any() for fit in fits.values()):
        return None
    best = {
        delay: np.where(fit.follows, fit.left, 1.0)[np.isfinite(fit.left)].mean() + _FLOOR
        for delay, fit in fits.items()
    }
    late = min(best, key=lambda delay: (best[delay] * (1 + 0.5 * abs(delay)), abs(delay)))
    wrong = -late if late < 0 else max(late - 2, 0)
    clear = best[0] > 2 * best[late]
    words = (
        f"in the demonstrations actions {late} steps earlier explain the motion best: {best[late]:.0%} of it is left, "
        f"and {best[0]:.0%} with those of the same step"
    )
    advice = "imitate dataset doctor FILE finds and repairs shifted arrays"
    return scored("shift", float(wrong if clear else 0), 0.9, words, advice)


def _model_of(recorded: Pairs, trained: Pairs) -> Response | None:
    """Return the response in the demonstrations, or None if they show none or the recording has other positions."""
    if not recorded or not trained or recorded[0][1].shape[1] != trained[0][1].shape[1]:
        return None
    model = Response(trained)
    return model if model.enough and model.follows.any() else None


def of_order(recorded: Pairs, trained: Pairs) -> Cause | None:
    """Exchange and negate positions of a recording until they move after the actions as in the demonstrations.

    Args:
        recorded: episodes of the recording.
        trained: demonstrations.
    """
    model = _model_of(recorded, trained)
    if model is None or len(model.left) > _COLUMNS:
        return None

    def left(way: _Way) -> float:
        order, signs = way
        found = model.unexplained([(u, q[:, order] * signs) for u, q in recorded], 0, 0)
        return float(np.nan_to_num(found[model.follows], nan=1.0).mean())

    size = len(model.left)
    start = list(range(size)), [1] * size
    as_it_is, found = left(start), []
    for ways in (_negated, _exchanged):
        way, best = start, as_it_is
        for _ in range(size):
            nearest = min(ways(way), key=left, default=way)
            if left(nearest) > 0.9 * best:
                break
            way, best = nearest, left(nearest)
        found.append((best, way))
    best, (order, signs) = min(found)
    if best >= min(_EXPLAINED, 0.4 * as_it_is):
        return None
    named = ", ".join(
        f"{'-' if sign < 0 else ''}{at}" for at, sign in zip(order, signs, strict=True)
    )
    words = (
        f"the positions move after the actions as in the demonstrations if they are in the order {named} "
        f"({best:.0%} of the motion is unexplained, and {as_it_is:.0%} as it is)"
    )
    if order == sorted(order):
        advice = (
            "compare the signs of joints and actions in the robot's observe() and in its driver"
        )
        return Cause("sign", MOST, words, advice)
    advice = "give the joints in the order of the demonstrations in the robot's observe()"
    return Cause("order", MOST, words, advice)


_Way = tuple[list[int], list[int]]
"""An order of positions, and their signs."""


def _exchanged(way: _Way) -> Iterator[_Way]:
    """Yield all ways with two positions exchanged or one negated."""
    order, signs = way
    for i, j in combinations(range(len(order)), 2):
        new = [*order]
        new[i], new[j] = order[j], order[i]
        yield new, signs
    yield from _negated(way)


def _negated(way: _Way) -> Iterator[_Way]:
    """Yield all ways with one position negated."""
    order, signs = way
    for i in range(len(order)):
        yield order, [-sign if i == at else sign for at, sign in enumerate(signs)]


def of_gain(recorded: Pairs, trained: Pairs) -> Cause | None:
    """Compare how far positions move after their actions in a recording and in the demonstrations.

    Args:
        recorded: episodes of the recording.
        trained: demonstrations.
    """
    model = _model_of(recorded, trained)
    if model is None:
        return None
    factor, explained = model.gain(recorded)
    ratio = np.abs(np.log(np.clip(factor, 0.05, 20.0)))
    scores = np.where(model.follows, ratio * explained, 0.0)
    worst = int(scores.argmax())
    words = f"after the same actions position {worst} moves {factor[worst]:.2f} times as far as in the demonstrations"
    return scored(
        "gain",
        float(scores[worst]),
        np.log(1.4),
        words,
        "compare the scale of actions, the controller and its gains with those of the demonstrations",
    )


def of_delay(recorded: Pairs, trained: Pairs) -> Cause | None:
    """Compare the delays of a recording and of the training data.

    Args:
        recorded: episodes of the recording.
        trained: demonstrations.
    """
    reach, model = reach_of(recorded), _model_of(recorded, trained)
    if model is None or not reach:
        return None
    follows = model.follows
    usual = float(model.left[follows].mean())
    at = {
        delay: float(
            np.nan_to_num(model.unexplained(recorded, delay, reach)[follows], nan=1.0).mean()
        )
        for delay in range(-2, reach + 1)
        if abs(delay) <= reach
    }
    best = min(at, key=lambda delay: at[delay])
    words = (
        f"the robot follows its actions {best} steps later in the recording than in the demonstrations: as they moved, "
        f"{at[best]:.0%} of its motion is unexplained, and {at[0]:.0%} without the delay"
    )
    gain = np.log2(at[0] / max(at[best], usual, _FLOOR)) if best else 0.0
    return scored(
        "delay",
        float(gain) if at[best] < _EXPLAINED else 0.0,
        1.0,
        words,
        "look for a queue or a filter between policy and robot; measure with imitate run --json",
    )
