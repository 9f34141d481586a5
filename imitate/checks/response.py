"""Causes in a robot's response to actions: delay, order, sign and size of motions, and actions that are cut.

They are measured with the linear models of :mod:`imitate.checks.motion_model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import MOST, Array, Cause, scored, split_of
from imitate.checks.motion_model import (
    AHEAD,
    EXPLAINED,
    FEWEST,
    FLOOR,
    LARGEST_SQUARE,
    STILL,
    Effects,
    Pairs,
    Response,
    correlations,
    left_by_one,
    reach_of,
)

_COLUMNS = 16
"""Largest number of positions whose order is examined."""


def of_shift(trained: Pairs) -> Cause | None:
    """Judge the delay in the training data: if motions precede their actions, arrays in the file are shifted.

    Args:
        trained: actions and positions of the demonstrations.

    Returns:
        the cause, or None if the demonstrations are too short or no position follows the actions.
    """
    reach = reach_of(trained)
    if not reach:
        return None
    fits = {delay: Response(trained, delay, reach) for delay in range(-reach, reach + 1)}
    if not fits[0].enough or not any(fit.follows.any() for fit in fits.values()):
        return None
    left = {
        delay: np.where(fit.follows, fit.left, 1.0)[np.isfinite(fit.left)] + FLOOR
        for delay, fit in fits.items()
    }
    best = {delay: float(each.mean()) for delay, each in left.items()}
    late = min(best, key=lambda delay: (best[delay] * (1 + 0.5 * abs(delay)), abs(delay)))
    wrong = -late if late < 0 else max(late - 2, 0)
    follow = np.minimum(left[0], left[late]) < EXPLAINED
    clear = best[0] > 2 * best[late] and (left[0] > 2 * left[late])[follow].mean() > 0.5
    clear = clear and left_by_one(trained, late) < left_by_one(trained, 0)
    words = (
        f"in the demonstrations the motion is explained best by the actions {abs(late)} steps "
        f"{'later' if late < 0 else 'earlier'}: {best[late]:.0%} of it is unexplained, and "
        f"{best[0]:.0%} by the actions of the same step"
    )
    advice = "imitate dataset doctor FILE finds and repairs shifted arrays"
    return scored("shift", float(wrong if clear else 0), 0.9, words, advice)


def of_action_units(trained: Pairs) -> Cause | None:
    """Test whether actions relative to observed positions are targets in another unit than the positions.

    Args:
        trained: actions and positions of the demonstrations.

    Returns:
        the cause, or None if no action follows a position closely.
    """
    pairs = [(u[:-1], q[1:]) for u, q in trained if len(u) > 1]
    if not pairs:
        return None
    u, q = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    x, y = q - q.mean(axis=0), u - u.mean(axis=0)
    sizes = np.sqrt((x**2).sum(axis=0)), np.sqrt((y**2).sum(axis=0))
    related = np.abs(y.T @ x) / np.maximum(sizes[1][:, None] * sizes[0], 1e-12)
    a, d = np.unravel_index(int(related.argmax()), related.shape)
    if related[a, d] < _TARGET:
        return None
    factor = float(sizes[1][a] / sizes[0][d])
    words = (
        f"actions[{a}] is {factor:.3g} times as large as position {d}, which follows it, but the policy learns the "
        "actions relative to observed positions: both need one unit"
    )
    return scored(
        "units", abs(float(np.log(factor))), float(np.log(_ONE_UNIT)), words, _ACTION_UNITS
    )


_TARGET = 0.7
"""An action is a target position if the correlation of both is at least this."""
_ONE_UNIT = 8.0
_ACTION_UNITS = "convert the actions to the unit of the observed positions, in the file and in the robot's driver"


def _model_of(recorded: Pairs, trained: Pairs) -> Response | None:
    """Return the response model of the demonstrations.

    The result is None if there are too few steps, if no position follows the actions, or if the recording has another
    number of positions.
    """
    if not recorded or not trained or recorded[0][1].shape[1] != trained[0][1].shape[1]:
        return None
    model = Response(trained)
    return model if model.enough and model.follows.any() else None


def of_order(recorded: Pairs, trained: Pairs) -> Cause | None:
    """Search for exchanged or negated positions: would they then respond to actions as in the demonstrations?

    Args:
        recorded: actions and positions of the recorded episodes.
        trained: actions and positions of the demonstrations.

    Returns:
        the cause, or None if the positions respond best as they are.
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
    if best >= min(EXPLAINED, 0.4 * as_it_is):
        return None
    named = ", ".join(
        f"{'-' if sign < 0 else ''}{at}" for at, sign in zip(order, signs, strict=True)
    )
    words = (
        f"the positions respond to the actions as in the demonstrations if they are taken in the order {named} "
        f"({best:.0%} of the motion is unexplained, instead of {as_it_is:.0%} as they are)"
    )
    if order == sorted(order):
        advice = (
            "compare the signs of joints and actions in the robot's observe() and in its driver"
        )
        return Cause("sign", MOST, words, advice)
    advice = "return the joints in the order of the demonstrations in the robot's observe()"
    return Cause("order", MOST, words, advice)


_Way = tuple[list[int], list[int]]
"""An order of the positions, and the sign of each."""


def _exchanged(way: _Way) -> Iterator[_Way]:
    """Yield all orders and signs that differ from ``way`` by an exchange of two positions or the sign of one."""
    order, signs = way
    for i, j in combinations(range(len(order)), 2):
        new = [*order]
        new[i], new[j] = order[j], order[i]
        yield new, signs
    yield from _negated(way)


def _negated(way: _Way) -> Iterator[_Way]:
    """Yield all orders and signs that differ from ``way`` by the sign of one position."""
    order, signs = way
    for i in range(len(order)):
        yield order, [-sign if i == at else sign for at, sign in enumerate(signs)]


_CLEAR = 8.0
"""An action's effect over all demonstrations is certain if it is at least this number of standard errors."""
_SEEN = 6.0
"""An action's effect in a recording is certain if it is at least this number of standard errors."""


def of_effects(recorded: Pairs, trained: Pairs, same_rate: bool = True) -> Cause | None:
    """Test whether actions move positions otherwise than in the demonstrations.

    Args:
        recorded: actions and positions of the recorded episodes.
        trained: actions and positions of the demonstrations.
        same_rate: true if the control rates of both are known, so that they need not be inferred from the motions.

    Returns:
        the most likely of these causes: other signs, cut actions, another control rate, other units of the positions,
        other gains; or None if nothing can be compared.
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
        f"with the same actions[{worst}] position {best[worst]} moves {ratio[worst]:.2f} times as far as in the "
        "demonstrations"
    )
    sent = Commands(model, recorded)
    # In contact a position stops while an action grows, which looks like an opposite effect.
    if reverse[worst] >= 1 and sent.sides()[worst] <= 0:
        return scored(
            "sign", float(reverse[worst]), 1.0, words + ", in the opposite direction", _SIGN
        )
    turned = _of_reversed(sent)
    if turned.is_named:
        return turned
    cut = _of_limits(sent, float(model.left[model.follows].mean()))
    if cut.is_named:
        return cut
    changes = logs[known] * np.sign(logs[known].sum())
    if not same_rate and len(changes) >= _MANY and changes.min() > 0.3 * _RATE:
        words = (
            f"with the same actions all positions move {np.exp(np.median(logs[known])):.2f} times as far in a step as "
            "in the demonstrations, which suggests another control rate"
        )
        return scored("rate", float(np.median(changes)), _RATE, words, _SCALE)
    seen = _observed_scale(recorded, trained, best[known], logs[known])
    if size[worst] >= _FACTOR and seen is not None:
        words += f", and first positions vary {seen:.2f} times as much: positions are in other units, or normalized"
        return scored("units", float(size[worst]), _FACTOR, words, _UNITS)
    words += f" ({sent.scaled:.0%} of the motion is unexplained with scaled actions)"
    usual = max(float(model.left[model.follows].mean()), FLOOR)
    explains = sent.scaled < min(EXPLAINED, sent.as_it_is / 2) and sent.as_it_is > 2 * usual
    explains = explains and not sent.is_stuck(worst)
    value = float(size[worst]) if explains else 0.0
    return max(cut, scored("gain", value, _FACTOR, words, _SCALE), key=lambda cause: cause.score)


def _of_reversed(sent: Commands) -> Cause:
    """Judge by the direction of motions whether an action has the opposite sign, even if it is almost constant."""
    agrees = sent.sides()
    worst = int(agrees.argmin())
    words = (
        f"the position that actions[{worst}] moves most makes {(1 - agrees[worst]) / 2:.0%} of its motion in the "
        "direction opposite to that expected from the demonstrations"
    )
    return scored("sign", max(-float(agrees[worst]), 0.0), _AGAINST, words, _SIGN)


class Commands:
    """Recorded motions, explained by scaled or by cut actions instead of the recorded actions.

    Unexplained fractions are mean squared errors, relative to usual motions, of the positions that follow the actions.

    Args:
        model: response model of the demonstrations.
        recorded: actions and positions of the recorded episodes.
    """

    def __init__(self, model: Response, recorded: Pairs) -> None:
        actions = np.concatenate([u for u, _ in recorded])
        self._low, self._high = actions.min(axis=0), actions.max(axis=0)
        self.span: Array = self._high - self._low
        """Range of each recorded action (A,)."""
        self._u, self._weights, self._rest, self._motion = model.parts(recorded)
        self._every = actions
        number = self._u.shape[2]
        moved = np.einsum("nka,kad->and", self._u, self._weights).reshape(number, -1)
        scales = np.linalg.lstsq(moved.T, self._rest.ravel(), rcond=1e-6)[0]
        self.as_it_is = self._left(self._u)
        """Unexplained fraction of the motions with the recorded actions."""
        self.scaled = self._left(self._u * scales)
        """Unexplained fraction of the motions with each action multiplied by the factor that fits best."""

    def _left(self, u: Array) -> float:
        error = self._rest - np.einsum("nka,kad->nd", u, self._weights)
        return float(np.minimum(error**2, LARGEST_SQUARE).mean()) if error.size else 0.0

    def sides(self) -> Array:
        """Return for each action whether motions have the expected direction (A,).

        The value is computed for the position that the action moves most: 1 if all its motion is in the expected
        direction, -1 if all is in the opposite direction, and 0 if it moves in fewer than 10 steps.
        """
        expected = self._motion - self._rest + np.einsum("nka,kad->nd", self._u, self._weights)
        found = np.zeros(len(self._low))
        for a, d in enumerate(
            np.abs(self._weights.sum(axis=0)).argmax(axis=1) if expected.size else ()
        ):
            motion = self._motion[:, d]
            motion = motion * (np.abs(motion) > STILL)
            if np.count_nonzero(motion) >= _FEWEST_MOVED:
                found[a] = np.sign(expected[:, d]) @ motion / np.abs(motion).sum()
        return found

    @cached_property
    def limits(self) -> tuple[float, Array, Array]:
        """Limits of the actions with which the motions are explained best.

        The value consists of the unexplained fraction with these limits, the lower and the upper limits (A,). A limit
        that cuts nothing is the smallest or largest recorded action. The limits are improved one after another, in two
        sweeps over a coarse grid and one over a fine grid.
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
                    span = self.span[a]
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
                        left = float(np.minimum(error**2, LARGEST_SQUARE).mean())
                        if left < _BETTER * best:
                            best, side[a] = left, value
        return best, low, high

    def beyond(self, low: Array, high: Array) -> Array:
        """Return for each action the share of steps (A,) in which it is below ``low`` or above ``high``."""
        found: Array = ((self._every < low) | (self._every > high)).mean(axis=0)
        return found

    def is_stuck(self, action: int) -> bool:
        """Return true if the position that an action moves most is at rest, as in contact, whatever the action is."""
        if not self._motion.size:
            return False
        _, low, high = self.limits
        position = int(np.abs(self._weights.sum(axis=0))[action].argmax())
        still = float((np.abs(self._motion[:, position]) < STILL).mean())
        return float(high[action] - low[action]) < _STUCK * self.span[action] and still > 0.5

    def without_each(self, low: Array, high: Array) -> Array:
        """Return for each action the unexplained fraction (A,) if all other actions are cut at the limits."""
        found = np.zeros(len(low))
        for a in range(len(low)):
            cut = np.clip(self._u, low, high)
            cut[:, :, a] = self._u[:, :, a]
            found[a] = self._left(cut)
        return found


_FEWEST_MOVED = 10
"""The direction of motions is judged only if there are at least this number of steps with motion."""
_AGAINST = 0.5
"""An action is reversed if the share of motion in the wrong direction exceeds that in the right one by this."""
_GRID, _SWEEPS = 24, 3
_BETTER = 0.98
"""A new limit is kept if it lowers the unexplained fraction at least by this factor."""
_CUT = 0.25
"""Cut actions are reported only if they leave less than this fraction of the motion unexplained."""
_STUCK = 0.04
"""Limits that leave less than this fraction of an action's range mean that the motion does not depend on the action."""
_TIE = 0.03
"""Cut actions are preferred to scaled actions as an explanation if they leave at most this fraction unexplained."""


def _of_limits(sent: Commands, usual: float) -> Cause:
    """Judge whether a controller, driver or limit cuts the actions before the robot moves.

    Args:
        sent: actions and motions of the recording.
        usual: unexplained fraction of the motions in the demonstrations.
    """
    left, low, high = sent.limits
    beyond = sent.beyond(low, high)
    worst = int(sent.without_each(low, high).argmax())
    words = (
        f"the robot moves as if actions[{worst}] were cut to {low[worst]:.3g} to {high[worst]:.3g}, which "
        f"{beyond[worst]:.0%} of the recorded ones exceed: {left:.0%} of the motion is unexplained with such limits, "
        f"{sent.scaled:.0%} with scaled actions, and {sent.as_it_is:.0%} with the recorded actions"
    )
    explains = (
        not sent.is_stuck(worst) and left < _CUT and left <= max(2 * sent.scaled, usual, _TIE)
    )
    gain = float(np.log2(max(sent.as_it_is, FLOOR) / max(left, usual, FLOOR))) if explains else 0.0
    return scored("limits", max(gain, 0.0), 1.5, words, _LIMITS)


_LIMITS = "compare the recorded actions with the limits and scales of controller, driver and imitate run (--limits)"


def _compared(
    recorded: Pairs, trained: Pairs
) -> tuple[NDArray[np.intp], NDArray[np.bool_], Array, Array]:
    """Compare each action's effect in recording and demonstrations, on the position where it is most certain.

    Returns:
        arrays (A,): the position for each action; whether the effect in the demonstrations is certain; the effect in
        the recording in standard errors; and the recorded effect divided by the effect in the demonstrations, 0 if the
        latter is not certain.
    """
    there, here = Effects(trained), Effects(recorded)
    best = np.abs(there.certain).argmax(axis=1)
    place = np.arange(len(best)), best
    sure = np.abs(there.certain[place]) >= _CLEAR
    ratio = here.size[place] / np.where(sure, there.size[place], np.inf)
    return best, sure, np.abs(here.certain[place]), ratio


def right_sides(recorded: Pairs, trained: Pairs) -> bool:
    """Return whether all actions certainly move positions in the same direction as in the demonstrations.

    Args:
        recorded: actions and positions of the recorded episodes.
        trained: actions and positions of the demonstrations.
    """
    if _model_of(recorded, trained) is None:
        return False
    _, sure, certain, ratio = _compared(recorded, trained)
    return bool(sure.any() and ((ratio > 0) & (certain >= _SEEN))[sure].all())


def _observed_scale(
    recorded: Pairs, trained: Pairs, columns: NDArray[np.intp], logs: Array
) -> float | None:
    """Decide whether motions are larger because positions have other units, or because actions have more effect.

    No action has changed the first positions of the episodes. If their standard deviations differ from those of the
    demonstrations by the same factors as the motions, the positions have other units; if they do not differ, the
    actions have another scale. The likelihoods of both are compared.

    Args:
        recorded: actions and positions of the recorded episodes.
        trained: actions and positions of the demonstrations.
        columns: positions that actions certainly move.
        logs: logarithm of the factor between recorded and demonstrated motion, for each of these positions.

    Returns:
        the factor between the standard deviations of the position whose motion differs most; None if the actions have
        another scale, or if there are fewer than four episodes.
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
"""Other units of the positions are reported if their log-likelihood is larger by more than this."""


_REVERSED = 0.3
"""An action has the opposite sign if its opposite effect is at least this fraction of that in the demonstrations."""
_FACTOR = float(np.log(1.85))
"""A cause is reported if an action's effects in recording and demonstrations differ by at least this log factor."""
_RATE = float(np.log(1.4))
"""Another control rate is reported if the median log factor between all actions' effects is at least this.

The log factor of each action has to have the same sign and at least 0.3 times this value.
"""
_MANY = 4
"""Another control rate is inferred only from at least this number of actions with certain effects."""
_SCALE = "compare the control rate, the scale of actions, the controller and its gains with those of the demonstrations"


def of_parts(trained: Pairs) -> Iterator[Cause]:
    """Test whether actions have opposite signs or other effect sizes in some demonstrations than in the others.

    Args:
        trained: actions and positions of the demonstrations.
    """
    correlated = _correlated_signs(trained)
    if correlated is not None:
        yield correlated
    every = [Effects([pair]) for pair in trained if len(pair[0]) > FEWEST // 2]
    if len(every) < _SEVERAL:
        return
    least = max(_SEVERAL, _JUDGED * len(every))
    size, certain = (
        np.stack([getattr(one, name) for one in every]) for name in ("size", "certain")
    )
    strength = (certain**2).mean(axis=0)
    best = strength.argmax(axis=1)
    signs, sizes = [], []
    for a, d in enumerate(best):
        own = size[np.abs(certain[:, a, d]) > _SURE, a, d]
        own = own[np.abs(own) > 0.3 * np.median(np.abs(own))] if len(own) else own
        others = int(min((own > 0).sum(), (own < 0).sum()))
        if len(own) >= least and strength[:, d].argmax() == a:
            signs.append((others / len(own) if others > 1 else 0.0, others, len(own), a, d))
        sizes.append((a, d, size[np.abs(certain[:, a, d]) > _SURE, a, d]))
    if signs and not (correlated and correlated.is_named):
        yield _of_signs(*max(signs))
    parts = [(split_of(np.abs(own), _OTHER_SIZE), a, d, len(own)) for a, d, own in sizes]
    # one may be an outlier, and few demonstrations say little about the others
    parts = [part for part in parts if 1 < part[0][2] < part[3] - 1 and part[3] >= least]
    if parts:
        (score, factor, large), a, d, number = max(parts)
        words = (
            f"with the same actions[{a}] position {d} moves {factor:.3g} times as far in {large} of {number} "
            "demonstrations as in the others"
        )
        yield scored("gain", score, 1.0, words, _PART)


def _of_signs(share: float, others: int, number: int, a: int, d: int) -> Cause:
    """Judge the share of the demonstrations in which an action moves a position in the opposite direction."""
    words = (
        f"actions[{a}] moves position {d} in the opposite direction in {others} of {number} demonstrations: their "
        "signs differ"
    )
    return scored("sign", share, 0.08, words, _PART)


def _correlated_signs(trained: Pairs) -> Cause | None:
    """Compare the signs of correlations, for which short demonstrations suffice.

    Only pairs of an action and a position are compared that are clearly closer related than either with any other.

    Returns:
        the cause, or None if no pair is closely related.
    """
    found = correlations(trained)
    strength = np.abs(found).mean(axis=0) if len(found) >= _SEVERAL else np.zeros((1, 1))
    rows = []
    for a, d in np.argwhere(strength >= _CLOSE):
        if np.sort(np.append(strength[a], strength[:, d]))[-3] > _CLOSER * strength[a, d]:
            continue
        others = int(min((found[:, a, d] > 0).sum(), (found[:, a, d] < 0).sum()))
        rows.append((others / len(found) if others > 1 else 0.0, others, len(found), a, d))
    return _of_signs(*max(rows)) if rows else None


_CLOSER = 0.95
"""All other correlations of the action and of the position must be smaller than this fraction of theirs."""
_CLOSE = 0.9
"""An action moves a position certainly if their mean absolute correlation is at least this."""
_SURE = 4.0
"""An action's effect in one demonstration is certain if it is more than this number of standard errors."""
_SEVERAL = 4
"""The effects of actions are compared only between at least this number of episodes."""
_JUDGED = 0.4
"""Demonstrations are compared only if an action's effect is certain in at least this fraction of them."""
_OTHER_SIZE = 2.5
"""Other effects of an action in some demonstrations are reported if they differ by at least this factor."""
_UNITS = "convert the units in the robot's observe(), and leave normalization to the checkpoint"
_SIGN = "compare the signs of joints and actions in the robot's observe() and in its driver"
_PART = (
    "convert the actions of all demonstrations to the same signs and units; to see how they differ: imitate dataset "
    "playback FILE"
)


_LATER = 0.5
"""A delay is reported if it reduces the unexplained fraction at least by a factor of 2 to the power of this value."""
_DELAYED = 0.7
"""A delay is reported only if it leaves less than this fraction of the motion unexplained."""


def of_delay(recorded: Pairs, trained: Pairs) -> Cause | None:
    """Test whether the robot responds to its actions later, or earlier, than in the demonstrations.

    Args:
        recorded: actions and positions of the recorded episodes.
        trained: actions and positions of the demonstrations.

    Returns:
        the cause, or None if the recording is too short or no position of the demonstrations follows the actions.
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
        for delay in range(-AHEAD, reach + 1)
        if abs(delay) <= reach
    }
    best = min(at, key=lambda delay: at[delay])
    words = (
        f"the robot follows its actions {abs(best)} steps {'earlier' if best < 0 else 'later'} in the recording "
        f"than in the demonstrations: with this delay {at[best]:.0%} of its motion is unexplained, and "
        f"{at[0]:.0%} without"
    )
    gain = np.log2(at[0] / max(at[best], usual, FLOOR)) if best else 0.0
    cause = scored("delay", float(gain) if at[best] < _DELAYED else 0.0, _LATER, words, _QUEUE)
    return max(cause, _of_clearest(recorded, trained), key=lambda one: one.score)


def _of_clearest(recorded: Pairs, trained: Pairs) -> Cause:
    """Compare the delays at which the effects of actions are most certain, also far from the demonstrations.

    Args:
        recorded: actions and positions of the recorded episodes.
        trained: actions and positions of the demonstrations.
    """
    reach = min(reach_of(recorded), reach_of(trained))
    there = Effects(trained)
    best = np.abs(there.certain).argmax(axis=1)
    place = np.arange(len(best)), best
    sure = np.abs(there.certain[place]) >= _CLEAR

    def certain(pairs: Pairs, delay: int) -> float:
        cut = [(u[reach - delay : len(u) - delay], q[reach:]) for u, q in pairs if len(u) > reach]
        return float((Effects(cut).certain[place][sure] ** 2).sum()) + 1e-9

    here, usual = ([certain(pairs, k) for k in range(reach + 1)] for pairs in (recorded, trained))
    late = int(np.argmax(here)) - int(np.argmax(usual))
    gain = float(np.log2(max(here) / here[0])) if max(here) > _SEEN**2 * sure.sum() else 0.0
    words = (
        f"the effects of the actions are clearest {late} steps later in the recording than in the demonstrations, "
        f"{np.sqrt(max(here) / here[0]):.2g} times as certain as without a delay"
    )
    return scored("delay", gain if late >= _LATE_STEPS else 0.0, _CLEARER, words, _QUEUE)


_LATE_STEPS = 2
"""A delay that shows in the certainty of effects alone must be at least this number of steps."""
_CLEARER = 1.5
"""It is reported if the sum of squared certainties grows at least by a factor of 2 to the power of this value."""
_QUEUE = "look for a queue or a filter between policy and robot; measure with imitate run --json"
