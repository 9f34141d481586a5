"""The lag between actions and motion, by cross-correlation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from imitate.data.doctor.alignment import shift_remedy
from imitate.data.doctor.finding import Finding, Level, Place
from imitate.data.doctor.layout import Layout
from imitate.data.doctor.motion import is_position, is_switch
from imitate.data.doctor.survey import Array, Piece
from imitate.wording import counted

_LAGS = range(-4, 11)
_USUAL = range(3)  # a controller needs up to two steps to follow
_MIN_STEPS = 200
_CLEAR = 0.6  # correlation at the peak
_PROMINENT = 0.5  # of the variance that is not explained at the usual lags; at the peak it is less
_MAX_COLUMNS = 64
_ENOUGH = 20_000  # steps; a correlation is sure long before
_PIECE = 1_000


class Lag:
    """Correlates each action with the motion of the positions, ``_LAGS`` steps later.

    An action that is a displacement goes with the motion itself, one that is a target with the motion by its change.

    Args:
        layout: of the file.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._count = 0
        self._sums: list[Array] | None = None
        self._switch: Array | None = None

    def see(self, piece: Piece) -> None:
        """Add the products of a piece."""
        actions = piece.small.get("actions")
        keys = sorted(key for key in piece.small if is_position(key))
        before, after = _LAGS[-1] + 1, -_LAGS[0] + 1
        if actions is None or not keys or len(actions) <= before + after or self._count > _ENOUGH:
            return
        length = min(len(actions), _PIECE)
        actions = actions[:length].reshape(length, -1).astype(np.float64)
        positions = np.concatenate(
            [piece.small[key][:length].reshape(length, -1) for key in keys], axis=1
        )
        motion = np.diff(positions[:, :_MAX_COLUMNS].astype(np.float64), axis=0)
        both = np.concatenate([actions, np.diff(actions, axis=0, prepend=actions[:1])], axis=1)
        if not np.isfinite(motion).all() or not np.isfinite(both).all():
            return
        window = motion[before : length - after]
        lagged = [both[before - lag : length - after - lag] for lag in _LAGS]
        self._add(window, lagged)
        switch = is_switch(actions)
        self._switch = switch if self._switch is None else self._switch & switch

    def _add(self, window: Array, lagged: list[Array]) -> None:
        stack = np.stack(lagged)  # (L, n, 2A)
        sums = [
            window.sum(axis=0),
            (window**2).sum(axis=0),
            stack.sum(axis=1),
            (stack**2).sum(axis=1),
            np.einsum("lna,nv->lav", stack, window, optimize=True),
        ]
        self._count += len(window)
        self._sums = (
            sums if self._sums is None else [a + b for a, b in zip(self._sums, sums, strict=True)]
        )

    def correlations(self) -> Array:
        """(L, A) largest absolute correlation of each action with a motion, at each lag; the better of both kinds."""
        if self._sums is None:
            return np.zeros((len(_LAGS), 0))
        n = self._count
        motion, motion_squares, action, action_squares, products = self._sums
        spread = np.sqrt(np.maximum(motion_squares / n - (motion / n) ** 2, 0))
        action_spread = np.sqrt(np.maximum(action_squares / n - (action / n) ** 2, 0))
        covariance = products / n - (action / n)[:, :, None] * (motion / n)
        scale = action_spread[:, :, None] * spread
        correlation = np.abs(
            np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 1e-12)
        )
        peak = correlation.max(axis=0)  # (2A, V)
        best = peak.argmax(axis=1)
        curves = np.take_along_axis(correlation, best[None, :, None], axis=2)[:, :, 0]  # (L, 2A)
        direct, change = np.split(curves, 2, axis=1)
        better: Array = np.where(direct.max(axis=0) >= change.max(axis=0), direct, change)
        return better

    def findings(self) -> Iterator[Finding]:
        """Return a lag that no controller explains, if most actions that move something agree."""
        if self._count < _MIN_STEPS or self._switch is None:
            return
        curves = self.correlations()[:, ~self._switch]
        usual = [_LAGS.index(lag) for lag in _USUAL]
        clear = curves.max(axis=0) >= _CLEAR
        if not clear.any():
            return
        curves = curves[:, clear]
        lags = np.array(_LAGS)[curves.argmax(axis=0)]
        unexplained = 1 - curves.max(axis=0) ** 2
        prominent = unexplained < _PROMINENT * (1 - curves[usual].max(axis=0) ** 2) - 1e-6
        if 2 * int(prominent.sum()) <= len(lags):
            return
        lag = int(np.median(lags[prominent]))
        if lag in _USUAL:
            return
        ahead = -lag if lag < 0 else _USUAL[-1] - lag
        words = "before" if lag < 0 else "after"
        yield Finding(
            "lag",
            Level.warning,
            f"motion comes {counted(abs(lag), 'step')} {words} the actions that cause it "
            f"(correlation {curves.max():.2f}): "
            f"observations are at least {counted(abs(ahead), 'step')} {'ahead' if ahead > 0 else 'late'}",
            [Place(key="actions")],
            shift_remedy(self._layout, ahead),
        )
