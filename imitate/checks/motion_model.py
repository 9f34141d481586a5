"""Linear models of how positions respond to actions, fitted to episodes.

The motion of each position q in a step is modelled as q(t+1) - q(t) = b + w_0 u(t) + w_1 u(t-1) + w_2 u(t-2) + v q(t),
with actions u. The term v q(t) describes the pull towards a target position, and the three weights w describe the lag
of a controller, so the model fits actions that are velocities, displacements or position targets. It describes free
motion: steps in contact are outliers, which are left out of the fit and count little in comparisons. It also holds in
states that the demonstrations do not reach.
"""

from collections.abc import Sequence

import numpy as np

from imitate.checks.causes import Array

Pairs = Sequence[tuple[Array, Array]]
"""Actions (T, A) and positions (T, D) of each episode."""

_TAPS = 3
AHEAD = 2
"""Largest number of steps that motions before their actions are looked for, as a negative delay."""
EXPLAINED = 0.5
"""A position follows the actions if the model leaves less than this fraction of its motion unexplained."""
FLOOR = 0.01
FEWEST = 30
"""Smallest number of steps to which a model is fitted."""
STILL = 0.1
"""A position counts as blocked in a step if its motion is below this fraction of its usual motion."""
_FITS = 5
"""Number of regressions; each leaves out the steps in contact that the previous one found."""
_OUTLIER = 5.2
"""A step counts as contact if its error is larger than this multiple of the median error."""
_RIDGE = 1e-3
"""Strength of the regressions' ridge penalty."""


LARGEST_SQUARE = 4.0
"""Squared errors are cut to this value, in units of the squared usual motion."""


def reach_of(pairs: Pairs) -> int:
    """Return the largest delay, 0 to 10 steps, that can be measured: half of the episodes are long enough for it."""
    median = float(np.median([len(u) for u, _ in pairs])) if pairs else 0.0
    return int(np.clip((median - _TAPS - 1) // 3, 0, 10))


class Response:
    """Model of the response of positions to actions, fitted to some episodes.

    Args:
        pairs: actions and positions of the episodes.
        delay: number of steps between an action and its response; negative if the motion comes first.
        reach: largest delay that is compared: the fit uses only steps that exist for all delays up to this one.
    """

    def __init__(self, pairs: Pairs, delay: int = 0, reach: int = 0) -> None:
        x, y = _rows(pairs, delay, reach)
        self._lags = _TAPS * pairs[0][0].shape[1]
        self.enough = len(x) >= max(FEWEST, 2 * (self._lags + 2))
        self._middle, self._width = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
        self._size = y.std(axis=0)
        self._weights = np.zeros((self._lags + 2, y.shape[1]))
        for d in np.flatnonzero(self._size > 1e-9):
            self._weights[:, d] = _free(self._factors(x, d), y[:, d])
        self.left = self._left(x, y)
        """Unexplained fraction (D,) of each position's squared motion; NaN for a position that does not move."""
        self.follows = np.nan_to_num(self.left, nan=1.0) < EXPLAINED
        """(D,) true for each position that follows the actions."""

    def _factors(self, x: Array, d: int) -> Array:
        """Return the model's inputs for position ``d``: the standardized lagged actions, the position, and 1."""
        z = (x - self._middle) / self._width
        found: Array = np.column_stack([z[:, : self._lags], z[:, self._lags + d], np.ones(len(z))])
        return found

    def unexplained(self, pairs: Pairs, delay: int, reach: int) -> Array:
        """Return the fraction (D,) of the motion in other episodes that the model leaves unexplained.

        Steps in which a position is blocked, for example at a joint limit, are left out.

        Args:
            pairs: actions and positions of the other episodes.
            delay: number of steps by which these episodes respond later than the model.
            reach: largest delay that is compared.
        """
        return self._left(*_rows(pairs, delay, reach, min(reach, AHEAD)))

    def parts(self, pairs: Pairs) -> tuple[Array, Array, Array, Array]:
        """Divide the motions in other episodes into what the actions explain and the rest.

        Only positions that follow the actions and move in these episodes are returned, in units of their usual motion.

        Returns:
            the last K actions in each of N steps (N, K, A); the motion that one unit of each action causes (K, A, D);
            the motion (N, D) that the actions should explain, which excludes the pull towards a target and the offset;
            and the whole motion (N, D).
        """
        x, y = _rows(pairs, 0, 0)
        number = pairs[0][0].shape[1]
        follows = self.follows & (y.std(axis=0) > STILL * self._size)
        size = self._size[follows]
        weights = self._weights[: _TAPS * number, follows] / size
        weights /= self._width[: _TAPS * number, None]
        u = x[:, : _TAPS * number]
        rest = self._errors(x, y)[:, follows] / size + u @ weights
        weights = weights.reshape(_TAPS, number, -1)
        return u.reshape(len(x), _TAPS, number), weights, rest, y[:, follows] / size

    def _errors(self, x: Array, y: Array) -> Array:
        """Return the model's errors (N, D): measured minus predicted motions."""
        z, weights = (x - self._middle) / self._width, self._weights
        found: Array = y - z[:, : self._lags] @ weights[: self._lags] - weights[-1]
        found = found - z[:, self._lags :] * weights[-2]
        return found

    def _left(self, x: Array, y: Array) -> Array:
        """Return for each position the unexplained fraction (D,) of its squared motion; NaN without motion.

        The motion is taken to be at least as large as usual. Steps in which a position does not move are left out.
        """
        error, size = self._errors(x, y), self._size
        moved = (np.abs(y) > STILL * size) & (size > 1e-6 * size.max(initial=0.0))
        most = LARGEST_SQUARE * size**2
        squares = np.minimum(error**2, most).sum(axis=0, where=moved)
        total = np.minimum(y**2, most).sum(axis=0, where=moved)
        total = np.maximum(total, moved.sum(axis=0) * size**2)
        left: Array = np.where(total > 0, squares / np.where(total > 0, total, 1.0), np.nan)
        return left


def _free(x: Array, motion: Array) -> Array:
    """Fit the motion of one position by linear regressions that leave out steps in contact, whose errors are outliers.

    Args:
        x: (N, F) inputs, of which the last is 1.
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
    """Return the inputs and outputs of the regressions over all episodes.

    Args:
        pairs: actions and positions of the episodes.
        delay: number of steps between an action and the response.
        reach: largest delay: as many steps are left out at the beginning of each episode.
        ahead: number of steps to leave out at the end of each episode; None is ``reach``.

    Returns:
        the last three actions and the positions (N, 3 A + D) of each step, and the motions (N, D) to the next step.
    """
    ahead = reach if ahead is None else ahead
    factors, motions = [], []
    for u, q in pairs:
        steps = np.arange(reach + _TAPS - 1, len(u) - 1 - ahead)
        lagged = [u[steps - delay - k] for k in range(_TAPS)]
        factors.append(np.concatenate([*lagged, q[steps]], axis=1))
        motions.append(q[steps + 1] - q[steps])
    return np.concatenate(factors), np.concatenate(motions)


class Effects:
    """Effect of each action on the motion of each position: the sum of the weights of the last three actions.

    Each position has its own linear regression, with the model at the head of this module. If there are few steps, the
    three weights of an action are taken to be equal.

    Args:
        pairs: actions and positions of the episodes.
    """

    def __init__(self, pairs: Pairs) -> None:
        x, y = _rows(pairs, 0, 0)
        number = pairs[0][0].shape[1]
        lagged = x[:, : _TAPS * number]
        mean = lagged.reshape(len(x), _TAPS, number).mean(axis=1)
        changes = mean.std(axis=0) > 1e-3 * np.abs(mean).max(axis=0, initial=1e-9)
        self.size = np.zeros((number, y.shape[1]))
        """Effects (A, D): motion of each position that one unit of each action causes."""
        self.certain = np.zeros_like(self.size)
        """Effects (A, D) divided by their standard errors; 0 where an action or a position does not change, and for
        actions that cannot be distinguished from others."""
        factors, taps = (lagged, _TAPS) if len(x) > 2 * lagged.shape[1] + 10 else (mean, 1)
        if len(x) < number + 5:
            return
        changes &= _own_share(mean) > _OWN
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


_OWN = 0.02
"""The effect of an action is unknown if other actions leave less than this share of its variance unexplained."""


def _own_share(actions: Array) -> Array:
    """Return for each action (N, A) the share (A,) of its variance that the other actions do not explain."""
    z = actions - actions.mean(axis=0)
    z /= np.maximum(z.std(axis=0), 1e-12)
    found: Array = 1 / np.diag(np.linalg.inv(z.T @ z / len(z) + 1e-6 * np.eye(z.shape[1])))
    return found


def left_by_one(pairs: Pairs, delay: int) -> float:
    """Return the share of the motion that the actions of a single step and the positions leave unexplained.

    Args:
        pairs: actions and positions of the episodes.
        delay: number of steps between the actions and the motion; negative if the motion comes first.
    """
    x, y = _rows(pairs, 0, abs(delay))
    number = pairs[0][0].shape[1]
    own, _ = _rows(pairs, delay, abs(delay))
    z = np.column_stack([own[:, :number], x[:, _TAPS * number :], np.ones(len(x))])
    rest = y - z @ np.linalg.lstsq(z, y, rcond=1e-6)[0]
    return float((rest.var(axis=0) / np.maximum(y.var(axis=0), 1e-12)).mean())


def correlations(pairs: Pairs) -> Array:
    """Return the correlation (N, A, D) of each action with the motion of each position in the next step.

    Episodes of at most ten steps are left out. The correlation is 0 where an action or a position does not change.
    """
    every = []
    for u, q in pairs:
        if len(u) > _LONG_ENOUGH:
            x, y = u[:-1] - u[:-1].mean(axis=0), np.diff(q, axis=0)
            y = y - y.mean(axis=0)
            size = np.sqrt((x**2).sum(axis=0))[:, None] * np.sqrt((y**2).sum(axis=0))
            every.append(x.T @ y / np.maximum(size, 1e-12))
    return np.stack(every) if every else np.zeros((0, 1, 1))


_LONG_ENOUGH = 10
