"""Causes in a robot's response to actions: delay, order, sign and size of motions, and commands that are cut.

They come from linear models of the response. The motion of each position is q(t+1) - q(t) = b + sum over k < 3 of
w_k u(t-k) + v q(t), with actions u and its own value q. v is the pull towards a target, and the three w_k are a lag of
the controller, so velocities, displacements and position targets are all of this form. The model is one of free motion:
steps in contact are outliers, which are left out of it and count little when it is compared with a recording. It has
no rate, needs no long episodes, and holds where a policy has left the states of the demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import MOST, Array, Cause, scored, split_of

Pairs = Sequence[tuple[Array, Array]]
"""Actions (T, A) and positions (T, D) of each episode."""

_TAPS = 3
_AHEAD = 2
"""Steps by which a recording's motions are tried to precede its actions."""
_EXPLAINED = 0.5
"""Positions of whose motion the model leaves a larger fraction unexplained do not follow the actions."""
_FLOOR = 0.01
_FEWEST = 30
"""Least number of steps for a fit."""
_STILL = 0.1
"""Fraction of the usual motion below which a position is blocked."""
_FITS = 5
"""Number of regressions, each of which leaves out the steps in contact that the one before found."""
_OUTLIER = 5.2
"""Multiple of the median error above which a step counts as one in contact."""
_RIDGE = 1e-3
"""Ridge of the regressions."""
_COLUMNS = 16
"""Numbers of positions up to which their order is examined."""


def reach_of(pairs: Pairs) -> int:
    """Return the largest delay in steps, at most 10, for which half of the episodes are long enough."""
    median = float(np.median([len(u) for u, _ in pairs])) if pairs else 0.0
    return int(np.clip((median - _TAPS - 1) // 3, 0, 10))


class Response:
    """The response of positions to actions in some episodes.

    Args:
        pairs: episodes.
        delay: steps by which the actions are taken earlier; negative: later.
        reach: the steps are those that all delays up to this one have.
    """

    def __init__(self, pairs: Pairs, delay: int = 0, reach: int = 0) -> None:
        x, y = _rows(pairs, delay, reach)
        self._lags = _TAPS * pairs[0][0].shape[1]
        self.enough = len(x) >= max(_FEWEST, 2 * (self._lags + 2))
        self._middle, self._width = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
        self._size = y.std(axis=0)
        self._weights = np.zeros((self._lags + 2, y.shape[1]))
        for d in np.flatnonzero(self._size > 1e-9):
            self._weights[:, d] = _free(self._factors(x, d), y[:, d])
        self.left = self._left(x, y)
        """Unexplained fraction (D,) of the square of each position's motion; NaN if it does not move."""
        self.follows = np.nan_to_num(self.left, nan=1.0) < _EXPLAINED
        """True (D,) for each position that follows the actions."""

    def _factors(self, x: Array, d: int) -> Array:
        """Return the standardized lagged actions, position d and 1 of each row."""
        z = (x - self._middle) / self._width
        found: Array = np.column_stack([z[:, : self._lags], z[:, self._lags + d], np.ones(len(z))])
        return found

    def unexplained(self, pairs: Pairs, delay: int, reach: int) -> Array:
        """Return the unexplained fraction (D,) of the motion in other episodes after actions ``delay`` steps before.

        Steps in which a position is blocked, as at a limit, are left out.
        """
        return self._left(*_rows(pairs, delay, reach, min(reach, _AHEAD)))

    def parts(self, pairs: Pairs) -> tuple[Array, Array, Array, Array]:
        """Divide the motions of other episodes into the parts that follow from actions and the rest.

        Returns:
            actions (N, K, A); the motions (K, A, D) after one unit of each; the rest (N, D) of the motions; and the
            motions (N, D). They are those of the positions that follow the actions and move at all, in their usual
            size.
        """
        x, y = _rows(pairs, 0, 0)
        number = pairs[0][0].shape[1]
        follows = self.follows & (y.std(axis=0) > _STILL * self._size)
        size = self._size[follows]
        weights = self._weights[: _TAPS * number, follows] / size
        weights /= self._width[: _TAPS * number, None]
        u = x[:, : _TAPS * number]
        rest = self._errors(x, y)[:, follows] / size + u @ weights
        weights = weights.reshape(_TAPS, number, -1)
        return u.reshape(len(x), _TAPS, number), weights, rest, y[:, follows] / size

    def _errors(self, x: Array, y: Array) -> Array:
        """Return the motions (N, D) that do not follow from the actions."""
        z, weights = (x - self._middle) / self._width, self._weights
        found: Array = y - z[:, : self._lags] @ weights[: self._lags] - weights[-1]
        found = found - z[:, self._lags :] * weights[-2]
        return found

    def _left(self, x: Array, y: Array) -> Array:
        """Return the unexplained fractions (D,) of the motion, or of the usual one in as many steps if that is more.

        Steps in which a position is still do not count.
        """
        error, size = self._errors(x, y), self._size
        moved = (np.abs(y) > _STILL * size) & (size > 1e-6 * size.max(initial=0.0))
        most = _MOST * size**2
        squares = np.minimum(error**2, most).sum(axis=0, where=moved)
        total = np.minimum(y**2, most).sum(axis=0, where=moved)
        total = np.maximum(total, moved.sum(axis=0) * size**2)
        left: Array = np.where(total > 0, squares / np.where(total > 0, total, 1.0), np.nan)
        return left


def _free(x: Array, motion: Array) -> Array:
    """Fit free motions: steps in contact, of which the errors are outliers, are left out of a linear regression.

    Args:
        x: (N, F) factors, of which the last is 1.
        motion: (N,) motion of one position.

    Returns:
        the weights (F,).
    """
    ridge = _RIDGE * np.diag(np.append(np.ones(x.shape[1] - 1), 1e-6))
    free = np.ones(len(x), dtype=bool)
    for _ in range(_FITS):
        z = x[free]
        weights: Array = np.linalg.solve(z.T @ z + ridge * len(z), z.T @ motion[free])
        error = np.abs(motion - x @ weights)
        limit = _OUTLIER * float(np.median(error[free])) + 1e-3 * float(motion.std())
        free = error <= max(limit, float(np.median(error)))
    return weights


def _rows(pairs: Pairs, delay: int, reach: int, ahead: int | None = None) -> tuple[Array, Array]:
    """Return actions and positions (N, 3 A + D), and the motions (N, D) after them.

    Steps are left out at the begin of episodes for delays up to ``reach``, and ``ahead`` (None: as many) at the end.
    """
    ahead = reach if ahead is None else ahead
    factors, motions = [], []
    for u, q in pairs:
        steps = np.arange(reach + _TAPS - 1, len(u) - 1 - ahead)
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
    left = {
        delay: np.where(fit.follows, fit.left, 1.0)[np.isfinite(fit.left)] + _FLOOR
        for delay, fit in fits.items()
    }
    best = {delay: float(each.mean()) for delay, each in left.items()}
    late = min(best, key=lambda delay: (best[delay] * (1 + 0.5 * abs(delay)), abs(delay)))
    wrong = -late if late < 0 else max(late - 2, 0)
    follow = np.minimum(left[0], left[late]) < _EXPLAINED
    clear = best[0] > 2 * best[late] and (left[0] > 2 * left[late])[follow].mean() > 0.5
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

    def each(way: _Way) -> Array:
        order, signs = way
        found = model.unexplained([(u, q[:, order] * signs) for u, q in recorded], 0, 0)
        return np.nan_to_num(found, nan=1.0)

    def left(way: _Way) -> float:
        return float(each(way)[model.follows].mean())

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
    _, way = min(found)
    order, signs = way
    other = model.follows & ((np.array(order) != np.arange(size)) | (np.array(signs) < 0))
    if not other.any():
        return None
    best, as_it_is = (float(each(one)[other].mean()) for one in (way, start))
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
    model = _model_of(recorded, trained)
    if model is None:
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
    sent = Commands(model, recorded)
    turned = _of_reversed(sent)
    if turned.is_named:
        return turned
    cut = _of_limits(sent, float(model.left[model.follows].mean()))
    if cut.is_named:
        return cut
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
    words += f" ({sent.scaled:.0%} of the motion is unexplained with the best scales)"
    usual = max(float(model.left[model.follows].mean()), _FLOOR)
    explains = sent.scaled < min(_EXPLAINED, sent.as_it_is / 2) and sent.as_it_is > 2 * usual
    value = float(size[worst]) if explains else 0.0
    return max(cut, scored("gain", value, _FACTOR, words, _SCALE), key=lambda cause: cause.score)


def _of_reversed(sent: Commands) -> Cause:
    """Judge whether an action has the other sign, also if it hardly changes in the recording."""
    agrees = sent.sides()
    worst = int(agrees.argmin())
    words = (
        f"{(1 - agrees[worst]) / 2:.0%} of the motion of the position that actions[{worst}] moves most is to the other "
        "side than after the same actions in the demonstrations"
    )
    return scored("sign", max(-float(agrees[worst]), 0.0), _AGAINST, words, _SIGN)


class Commands:
    """Motions in a recording as the demonstrations' response to other commands than the recorded actions.

    All fractions are of the usual motion of the positions that follow the actions.

    Args:
        model: response in the demonstrations.
        recorded: episodes of the recording.
    """

    def __init__(self, model: Response, recorded: Pairs) -> None:
        actions = np.concatenate([u for u, _ in recorded])
        self._low, self._high = actions.min(axis=0), actions.max(axis=0)
        self._u, self._weights, self._rest, self._motion = model.parts(recorded)
        self._every = actions
        number = self._u.shape[2]
        moved = np.einsum("nka,kad->and", self._u, self._weights).reshape(number, -1)
        scales = np.linalg.lstsq(moved.T, self._rest.ravel(), rcond=1e-6)[0]
        self.as_it_is = self._left(self._u)
        """Unexplained fraction after the recorded actions."""
        self.scaled = self._left(self._u * scales)
        """Unexplained fraction after actions that the best factors multiply."""

    def _left(self, u: Array) -> float:
        error = self._rest - np.einsum("nka,kad->nd", u, self._weights)
        return float(np.minimum(error**2, _MOST).mean()) if error.size else 0.0

    def sides(self) -> Array:
        """Return how much (A,) motions agree in their side with those expected after the actions.

        It is that of the position which the action moves most: 1 if all its motion is to the expected side, -1 if none
        is, and 0 if it moves in few steps.
        """
        expected = self._motion - self._rest + np.einsum("nka,kad->nd", self._u, self._weights)
        found = np.zeros(len(self._low))
        for a, d in enumerate(
            np.abs(self._weights.sum(axis=0)).argmax(axis=1) if expected.size else ()
        ):
            motion = self._motion[:, d]
            motion = motion * (np.abs(motion) > _STILL)
            if np.count_nonzero(motion) >= _FEWEST_MOVED:
                found[a] = np.sign(expected[:, d]) @ motion / np.abs(motion).sum()
        return found

    def limits(self) -> tuple[float, Array, Array]:
        """Cut the actions at the limits after which the motions are as in the demonstrations.

        Each limit in turn is the best of a grid, twice, and at last of a fine grid around it.

        Returns:
            the unexplained fraction, and the limits (A,); those that cut nothing are the largest recorded actions.
        """
        low, high, best = self._low.copy(), self._high.copy(), self.as_it_is
        if not self._rest.size:
            return best, low, high
        grid = np.linspace(0, 1, _GRID)[1:-1]
        for sweep in range(_SWEEPS):
            for a in range(len(low)):
                without = np.clip(self._u, low, high)
                without[:, :, a] = 0
                rest = self._rest - np.einsum("nka,kad->nd", without, self._weights)
                for side in (low, high):
                    other = high if side is low else low
                    span = self._high[a] - self._low[a]
                    start = self._low[a]
                    if sweep == _SWEEPS - 1:
                        span *= 2 / _GRID
                        start = side[a] - span / 2
                    for value in start + span * grid:
                        ends = sorted((value, other[a]))
                        if ends[side is low] != other[a]:
                            continue
                        cut = np.clip(self._u[:, :, a], *ends)
                        error = rest - cut @ self._weights[:, a]
                        left = float(np.minimum(error**2, _MOST).mean())
                        if left < _BETTER * best:
                            best, side[a] = left, value
        return best, low, high

    def beyond(self, low: Array, high: Array) -> Array:
        """Return the share of steps (A,) in which actions are beyond limits."""
        found: Array = ((self._every < low) | (self._every > high)).mean(axis=0)
        return found

    def without_each(self, low: Array, high: Array) -> Array:
        """Return the unexplained fractions (A,) if all actions but one are cut."""
        found = np.zeros(len(low))
        for a in range(len(low)):
            cut = np.clip(self._u, low, high)
            cut[:, :, a] = self._u[:, :, a]
            found[a] = self._left(cut)
        return found


_FEWEST_MOVED = 10
"""Smallest number of steps with motion."""
_AGAINST = 0.5
"""Share of the motion to the other side, minus the share to the right side, that no healthy action reaches."""
_GRID, _SWEEPS = 24, 3
_MOST = 4.0
"""Largest square of an error that counts, in the usual motion."""
_BETTER = 0.98
"""Factor by which another limit has to lower what is unexplained."""
_CUT = 0.25
"""Largest fraction of the motion that limits leave unexplained."""
_TIE = 0.03
"""Unexplained fraction up to which limits are preferred to scales; both explain actions that are always cut."""


def _of_limits(sent: Commands, usual: float) -> Cause:
    """Judge whether something cuts the actions on their way to the robot.

    Args:
        sent: commands of the recording.
        usual: unexplained fraction of the motions in the demonstrations.
    """
    left, low, high = sent.limits()
    beyond = sent.beyond(low, high)
    worst = int(sent.without_each(low, high).argmax())
    words = (
        f"the robot moves as if actions[{worst}] were cut to {low[worst]:.3g} to {high[worst]:.3g}, which "
        f"{beyond[worst]:.0%} of the recorded ones exceed: {left:.0%} of the motion is unexplained with limits, "
        f"{sent.scaled:.0%} with the best scales, and {sent.as_it_is:.0%} as it is"
    )
    explains = left < _CUT and left <= max(2 * sent.scaled, usual, _TIE)
    gain = (
        float(np.log2(max(sent.as_it_is, _FLOOR) / max(left, usual, _FLOOR))) if explains else 0.0
    )
    return scored("limits", max(gain, 0.0), 1.5, words, _LIMITS)


_LIMITS = "compare the recorded actions with the limits and scales of controller, driver and imitate run (--limits)"


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
    every = [Effects([pair]) for pair in trained if len(pair[0]) > _FEWEST // 2]
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


_LATER = 0.5
"""Halvings of the unexplained fraction by a delay which healthy recordings do not reach."""
_DELAYED = 0.7
"""Largest unexplained fraction of the motion after a delay; contacts, which the model lacks, leave a part of it."""


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
        for delay in range(-_AHEAD, reach + 1)
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
        float(gain) if at[best] < _DELAYED else 0.0,
        _LATER,
        words,
        "look for a queue or a filter between policy and robot; measure with imitate run --json",
    )
