"""Checks that observations, states, next observations and actions belong to the same steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from imitate.data.curate.rewrite import Rows
from imitate.data.doctor.finding import Finding, Level, Place, Remedy
from imitate.data.doctor.layout import Layout
from imitate.data.doctor.survey import Array, Piece

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


def shift_remedy(layout: Layout, ahead: int) -> Remedy:
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

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._votes: Counter[int] = Counter()
        self._demos = 0

    def see(self, piece: Piece) -> None:
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

    def see(self, piece: Piece) -> None:
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
