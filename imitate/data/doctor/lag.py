"""Check for a delay between actions and motion that no time constant of an arm explains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from imitate.data.doctor.alignment import shift_remedy
from imitate.data.doctor.finding import Finding, Level, Place
from imitate.data.doctor.following import DELAYS, Motions, fits, shifted
from imitate.data.doctor.layout import Layout
from imitate.data.doctor.motion import is_switch
from imitate.data.doctor.survey import Array, Piece
from imitate.errors import DatasetError
from imitate.system.wording import counted

_USUAL = range(3)  # a controller starts to follow after up to two steps
_MIN_STEPS = 200
_CLEAR = 0.64  # fraction of the variance that is unexplained at the best delay
_PROMINENT = (
    # fraction of the variance that is unexplained at the usual delays; it is less at the best delay
    0.5
)
_ROUNDING = 1e-6


class Lag:
    """Comparison of each action with the motion of its own dimension, at several delays.

    Args:
        layout: layout of the file.
        motions: recorded motions; it receives the pieces too.
    """

    def __init__(self, layout: Layout, motions: Motions) -> None:
        self._layout, self._motions = layout, motions

    def see(self, piece: Piece) -> None:
        """Do nothing, because the motions receive the piece."""

    def findings(self) -> Iterator[Finding]:
        """Return a delay that no controller explains, if most actions that move something agree."""
        pairs = self._motions.pairs
        if self._motions.steps < _MIN_STEPS:
            return
        rate = _rate(self._layout)
        delay, explained = _delay(pairs, rate)
        if delay in _USUAL:
            return
        ahead = -delay if delay < 0 else _USUAL[-1] - delay
        words = "before" if delay < 0 else "after"
        at_end = delay in (DELAYS[0], DELAYS[-1])
        shift = None if at_end else _checked(pairs, ahead, rate)
        yield Finding(
            "lag",
            Level.warning,
            f"motion comes {'at least ' if at_end else ''}{counted(abs(delay), 'step')} {words} the actions that cause "
            f"it (they explain {100 * explained:.0f} % of it then): "
            f"observations are at least {counted(abs(ahead), 'step')} {'ahead' if ahead > 0 else 'late'}",
            [Place(key="actions")],
            None if shift is None else shift_remedy(self._layout, shift),
            "look for the cause in the recorder, such as a camera's or a driver's buffer, and record again; no shift "
            "is offered, since none makes motion and actions agree",
        )


def _rate(layout: Layout) -> float | None:
    try:
        return layout.file.control_freq
    except DatasetError:
        return None


def _checked(pairs: list[tuple[Array, Array]], ahead: int, rate_hz: float | None) -> int | None:
    """Return the shift if the doctor finds no further delay after it, else None."""
    moved = shifted(pairs, ahead)
    return ahead if moved and _delay(moved, rate_hz)[0] in _USUAL else None


def _delay(pairs: list[tuple[Array, Array]], rate_hz: float | None) -> tuple[int, float]:
    """Return the delay, 0 if the usual ones explain the motion equally well, and the fraction that it explains."""
    switch = np.all([is_switch(u) for u, _ in pairs], axis=0)
    curves = [
        fit.unexplained for fit, off in zip(fits(pairs, rate_hz), switch, strict=True) if not off
    ]
    usual = [DELAYS.index(delay) for delay in _USUAL]
    clear = [curve for curve in curves if curve.min() <= _CLEAR]
    late = [curve for curve in clear if curve.min() < _PROMINENT * curve[usual].min() - _ROUNDING]
    if not late or 2 * len(late) <= len(clear):
        return 0, 0.0
    delays = [DELAYS[int(curve.argmin())] for curve in late]
    return int(np.median(delays)), 1 - float(np.min(late))
