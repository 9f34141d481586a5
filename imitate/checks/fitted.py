"""Causes that models fitted to demonstrations show: a robot's response to actions, and actions that states predict.

Delay, order, sign and size of motions after actions come from linear models of the response. The motion of each
position is q(t+1) - q(t) = b + sum over k < 3 of W_k u(t-k) + V q(t), with actions u. V is the pull towards a target,
and the three W_k are a lag of the controller, so velocities, displacements and position targets are all of this form.
The model has no rate, and needs no long episodes.

Too few demonstrations, and observations that are missing, come from a prediction of each demonstration's actions from
the other demonstrations. A kernel regression with Gaussian and linear kernels is fitted to all demonstrations but one;
its errors on the one that is left out come in closed form. They are no errors of the policy, but a limit that data and
observations set: what nearby demonstrations do not show, no policy learns from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import MOST, Array, Cause, scored, split_of
from imitate.deploy.check.deploy_check import CheckedDemo

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


class Effects:
    """Effect of each action on the motion of one position: the one that shows it best in the demonstrations.

    Each position has a regression of its own, motion = b + sum over k < 3 of w_k u(t-k) + v q, with its own value q: so
    it also holds where a policy has left the states of the demonstrations. The effect is the sum of w_k. Few steps have
    one w for all k.

    Args:
        pairs: episodes.
    """

    def __init__(self, pairs: Pairs) -> None:
        x, y = _rows(pairs, 0, 0)
        number = pairs[0][0].shape[1]
        lagged = x[:, : _TAPS * number]
        mean = lagged.reshape(len(x), _TAPS, number).mean(axis=1)
        changes = mean.std(axis=0) > 1e-3 * np.abs(mean).max(axis=0, initial=1e-9)
        self.size = np.zeros((number, y.shape[1]))
        """Motion (A, D) of each position after one unit of each action."""
        self.certain = np.zeros_like(self.size)
        """Effects (A, D) in standard errors; 0 where an action or a position does not change."""
        factors, taps = (lagged, _TAPS) if len(x) > 2 * lagged.shape[1] + 10 else (mean, 1)
        if len(x) < number + 5:
            return
        sums = np.tile(np.eye(number), taps)
        for d in np.flatnonzero(y.std(axis=0) > 1e-9):
            z = np.concatenate([factors, x[:, _TAPS * number + d, None]], axis=1)
            z, motion = z - z.mean(axis=0), y[:, d] - y[:, d].mean()
            width = np.maximum(z.std(axis=0), 1e-9)
            z /= width
            inverse = np.linalg.inv(z.T @ z + 1e-3 * len(z) * np.eye(z.shape[1]))
            weights = inverse @ z.T @ motion
            squares = ((motion - z @ weights) ** 2).sum() / (len(z) - z.shape[1] - 1)
            effect = np.append(sums, np.zeros((number, 1)), axis=1) / width
            error = np.sqrt(
                ((effect @ inverse) * effect).sum(axis=1) * (squares + 1e-12 * motion.var())
            )
            self.size[:, d] = np.where(changes, effect @ weights, 0.0)
            self.certain[:, d] = self.size[:, d] / np.maximum(error, 1e-12)


_CLEAR = 8.0
"""Standard errors from which on an effect in all demonstrations is certain."""
_SEEN = 6.0
"""The same in a recording."""


def of_effects(recorded: Pairs, trained: Pairs, same_rate: bool = True) -> Cause | None:
    """Compare the effects of actions in a recording and in the demonstrations: sign, size, or the rate of all.

    Args:
        recorded: episodes of the recording.
        trained: demonstrations.
        same_rate: true if both have the same rate; false if it is not known.
    """
    if _model_of(recorded, trained) is None:
        return None
    best, sure, certain, ratio = _compared(recorded, trained)
    logs = np.log(np.maximum(ratio, 1e-3))
    known = sure & (ratio > 0) & (certain >= _SEEN)
    reverse = np.where(sure, np.minimum(-ratio / _REVERSED, certain / _SEEN), 0.0)
    size = np.where(known, np.abs(logs) * (1 - 2 / np.maximum(certain, 2.0)), 0.0)
    worst = int((reverse if reverse.max() >= 1 else size).argmax())
    words = (
        f"after the same actions[{worst}] position {best[worst]} moves {ratio[worst]:.2f} times as far as in the "
        "demonstrations"
    )
    if reverse[worst] >= 1:
        return scored("sign", float(reverse[worst]), 1.0, words + ", to the other side", _SIGN)
    changes = logs[known] * np.sign(logs[known].sum())
    if not same_rate and len(changes) >= _MANY and changes.min() > 0.3 * _RATE:
        words = (
            f"after the same actions all positions move {np.exp(np.median(logs[known])):.2f} times as far in a step as "
            "in the demonstrations, as at another control rate"
        )
        return scored("rate", float(np.median(changes)), _RATE, words, _SCALE)
    seen = _observed_scale(recorded, trained, best[known], logs[known])
    if size[worst] >= _FACTOR and seen is not None:
        words += f", and the first positions vary {seen:.2f} times as much: they are in other units, or normalized"
        return scored("units", float(size[worst]), _FACTOR, words, _UNITS)
    return scored("gain", float(size[worst]), _FACTOR, words, _SCALE)


def _compared(
    recorded: Pairs, trained: Pairs
) -> tuple[NDArray[np.intp], NDArray[np.bool_], Array, Array]:
    """Compare the effect of each action on the position that shows it best.

    Returns:
        that position (A,); whether its effect in the demonstrations is certain; the certainty of the one in the
        recording, in standard errors; and its size in that of the demonstrations.
    """
    there, here = Effects(trained), Effects(recorded)
    best = np.abs(there.certain).argmax(axis=1)
    place = np.arange(len(best)), best
    sure = np.abs(there.certain[place]) >= _CLEAR
    ratio = here.size[place] / np.where(sure, there.size[place], np.inf)
    return best, sure, np.abs(here.certain[place]), ratio


def right_sides(recorded: Pairs, trained: Pairs) -> bool:
    """Return whether actions certainly move positions to the same sides as in the demonstrations, all of them.

    Args:
        recorded: episodes of the recording.
        trained: demonstrations.
    """
    if _model_of(recorded, trained) is None:
        return False
    _, sure, certain, ratio = _compared(recorded, trained)
    return bool(sure.any() and ((ratio > 0) & (certain >= _SEEN))[sure].all())


def _observed_scale(
    recorded: Pairs, trained: Pairs, columns: NDArray[np.intp], logs: Array
) -> float | None:
    """Decide whether positions are given on another scale, or actions move them otherwise.

    No action has changed the first positions of the episodes. If their spread differs by the factors of the motions, it
    is the scale of the positions; if it does not, that of the actions. The two are compared by their likelihoods.

    Args:
        recorded: episodes of the recording.
        trained: demonstrations.
        columns: positions with a known effect.
        logs: logarithms of the factors of their motions.

    Returns:
        the factor of the spread of the position whose motion differs most, or None if it is the scale of the actions.
    """
    if not len(columns) or min(len(recorded), len(trained)) < _SEVERAL:
        return None
    here, there = (
        np.stack([q[0] for _, q in pairs]).std(axis=0)[columns] for pairs in (recorded, trained)
    )
    usual = np.stack([q.std(axis=0) for _, q in trained]).mean(axis=0)[columns]
    drawn = (there > 0.05 * usual) & (here > 0)
    spread = np.log(np.where(drawn, here, 1.0) / np.where(drawn, there, 1.0))
    error = 0.5 / (len(recorded) - 1) + 0.5 / (len(trained) - 1)
    more = ((spread**2 - (spread - logs) ** 2) / (2 * error))[drawn].sum()
    worst = int(np.where(drawn, np.abs(logs), 0.0).argmax())
    return float(np.exp(spread[worst])) if more > _LIKELIER else None


_LIKELIER = 3.0
"""Difference of logarithmic likelihoods from which on the scale of the positions explains motions, not the actions."""


_REVERSED = 0.3
"""Fraction of the demonstrations' effect, to the other side, from which on an action has the other sign."""
_FACTOR = float(np.log(1.85))
"""Logarithm of the factor of one action's effect that healthy recordings do not reach."""
_RATE = float(np.log(1.4))
"""Logarithm of the factor of all actions' effects, of which each is at least 0.3 of it and to the same side."""
_MANY = 4
"""Least number of actions whose effects all differ in one direction at another control rate."""
_SCALE = "compare the control rate, the scale of actions, the controller and its gains with those of the demonstrations"


def of_parts(trained: Pairs) -> Iterator[Cause]:
    """Compare the effects of actions in each demonstration with those in the others: other signs, other sizes.

    Args:
        trained: demonstrations.
    """
    every = [Effects([pair]) for pair in trained if len(pair[0]) > _FEWEST]
    if len(every) < _SEVERAL:
        return
    size, certain = (
        np.stack([getattr(one, name) for one in every]) for name in ("size", "certain")
    )
    best = (certain**2).mean(axis=0).argmax(axis=1)
    signs, sizes = [], []
    for a, d in enumerate(best):
        own = size[np.abs(certain[:, a, d]) > _SURE, a, d]
        own = own[np.abs(own) > 0.3 * np.median(np.abs(own))] if len(own) else own
        others = int(min((own > 0).sum(), (own < 0).sum()))
        if len(own) >= _SEVERAL:
            signs.append((others / len(own) if others > 1 else 0.0, others, len(own), a, d))
        sizes.append((a, d, size[np.abs(certain[:, a, d]) > _SURE, a, d]))
    if signs:
        share, others, number, a, d = max(signs)
        words = (
            f"after actions[{a}] position {d} moves to the other side in {others} of {number} demonstrations: their "
            "signs differ"
        )
        yield scored("sign", share, 0.08, words, _PART)
    parts = [(split_of(np.abs(own), _OTHER_SIZE), a, d, len(own)) for a, d, own in sizes]
    if parts:
        (score, factor, large), a, d, number = max(parts)
        words = (
            f"after the same actions[{a}] position {d} moves {factor:.3g} times as far in {large} of {number} "
            "demonstrations as in the others"
        )
        yield scored("gain", score, 1.0, words, _PART)


_SURE = 4.0
"""Standard errors from which on an effect in one demonstration is certain."""
_SEVERAL = 4
"""Least number of demonstrations with a certain effect."""
_OTHER_SIZE = 2.5
"""Factor between the effects in two groups of demonstrations that healthy ones do not reach."""
_UNITS = "convert the units in the robot's observe(), and leave normalization to the checkpoint"
_SIGN = "compare the signs of joints and actions in the robot's observe() and in its driver"
_PART = "convert the actions of all demonstrations to the same signs and units: imitate dataset playback FILE"


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
    yield _unobserved(
        error, known, words, "record the goal as an observation, or give an instruction"
    )


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
