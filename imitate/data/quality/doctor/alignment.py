"""Checks that observations, states and actions belong to the same step, and of the delay between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from imitate.data.edit.rewrite import Rows
from imitate.data.quality.doctor.finding import Finding, Level, Place, Remedy
from imitate.data.quality.doctor.following import DELAYS, Motions, fits, shifted
from imitate.data.quality.doctor.motion import is_switch
from imitate.data.quality.doctor.survey import Array, DemoSteps, FileLayout
from imitate.errors import DatasetError
from imitate.system.text import counted

_SHIFTS = (0, 1, -1, 2, -2)
_MAX_DEMOS = 50
_CLOSE = 1e-6
_SAID, _BAD = (
    0.1,
    0.5,
)  # fraction of steps with another next observation; a few are normal where demos were cut


def shifted_rows(length: int, ahead: int) -> Rows:
    """Return rows that align observations, which are ``ahead`` steps too late, with their actions."""
    first, second = np.arange(length - abs(ahead)), np.arange(abs(ahead), length)
    return Rows(seen=first, done=second) if ahead > 0 else Rows(seen=second, done=first)


def shift_remedy(layout: FileLayout, ahead: int) -> Remedy:
    """Return a remedy that shifts every demo and leaves out demos that are too short."""
    long = [demo for demo in layout.demos if demo.length > abs(ahead)]
    names = {demo.name for demo in long}
    return Remedy(
        rows={demo.name: shifted_rows(demo.length, ahead) for demo in long},
        drop_demos=[demo.name for demo in layout.demos if demo.name not in names],
    )


class States:
    """Search for observations that are columns of the simulator's state, and the shift at which they are equal.

    Args:
        layout: layout of the file.
    """

    def __init__(self, layout: FileLayout) -> None:
        self._layout = layout
        self._votes: Counter[int] = Counter()
        self._demos = 0

    def see(self, piece: DemoSteps) -> None:
        """Compare the columns of one demo."""
        states = piece.small.get("states")
        if states is None or len(states) < 8 or self._demos >= _MAX_DEMOS:
            return
        self._demos += 1
        states = states[:200].reshape(len(states[:200]), -1).astype(np.float64)
        keys = [key for key in piece.small if key.startswith("obs/")]
        if not keys:
            return
        seen = [piece.small[key][:200].reshape(len(states), -1) for key in sorted(keys)]
        for shift in _SHIFTS:
            self._votes[shift] += _equal_columns(np.concatenate(seen, axis=1), states, shift)

    def findings(self) -> Iterator[Finding]:
        """Return the shift, if it is not 0."""
        if not self._votes or self._votes[0]:
            return
        ahead, votes = self._votes.most_common(1)[0]
        if votes == 0:
            return
        words = "ahead of" if ahead > 0 else "behind"
        steps = "one step" if abs(ahead) == 1 else f"{abs(ahead)} steps"
        yield Finding(
            "misaligned",
            Level.error,
            f"observations are {steps} {words} 'states' and actions: obs[t] shows states[t{ahead:+d}]",
            [Place(key="obs")],
            shift_remedy(self._layout, ahead),
        )


def _equal_columns(seen: Array, states: Array, shift: int) -> int:
    """Return the columns of ``seen`` that vary and equal a column of ``states`` this number of steps later."""
    length = len(seen) - abs(shift)
    seen, states = seen[max(0, -shift) :][:length], states[max(0, shift) :][:length]
    moving = seen.std(axis=0) > 10 * _CLOSE
    close = np.isclose(seen[:, moving][[0, -1], :, None], states[[0, -1], None, :], _CLOSE, _CLOSE)
    candidates = np.argwhere(close.all(axis=0))
    columns = seen[:, moving]
    return sum(
        bool(np.isclose(columns[:, i], states[:, j], _CLOSE, _CLOSE).all()) for i, j in candidates
    )


class NextObs:
    """Comparison of next observations with the observations that follow."""

    def __init__(self) -> None:
        self._wrong: Counter[str] = Counter()
        self._steps: Counter[str] = Counter()
        self._places: dict[str, list[Place]] = {}

    def see(self, piece: DemoSteps) -> None:
        """Compare the small arrays of a piece."""
        for key, following in piece.small.items():
            seen = piece.small.get(f"obs/{key[9:]}") if key.startswith("next_obs/") else None
            if seen is None or len(seen) < 2 or seen.shape != following.shape:
                continue
            differ = np.abs(seen[1:].astype(np.float64) - following[:-1]) > _CLOSE
            wrong = int(differ.reshape(len(differ), -1).any(axis=1).sum())
            self._steps[key] += len(differ)
            if wrong:
                self._wrong[key] += wrong
                self._places.setdefault(key, []).append(Place(piece.demo, key))

    def findings(self) -> Iterator[Finding]:
        """Return the keys that differ in more than a few steps."""
        shares = {key: self._wrong[key] / self._steps[key] for key in self._wrong}
        keys = sorted(key for key, share in shares.items() if share > _SAID)
        if keys:
            worst = max(keys, key=lambda key: shares[key])
            yield Finding(
                "next_obs",
                Level.error if shares[worst] > _BAD else Level.warning,
                f"'{worst}' is not the following observation in {100 * shares[worst]:.0f} % of the steps"
                + (f"; nor are {len(keys) - 1} more" if len(keys) > 1 else ""),
                [place for key in keys for place in self._places[key]],
                Remedy(drop_keys=["next_obs"]),
                "keep them, if they are right and the observations are not: critics learn from next_obs",
            )


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

    def __init__(self, layout: FileLayout, motions: Motions) -> None:
        self._layout, self._motions = layout, motions

    def see(self, piece: DemoSteps) -> None:
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


def _rate(layout: FileLayout) -> float | None:
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
