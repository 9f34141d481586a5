"""Checks that observations, states and actions belong to the same step, and of the delay between them.

An arm follows its actions, position targets or displacements, with a first-order lag and a delay. Every controller has
a time constant; only a delay that no time constant explains is a fault of the recording. For measured positions q and
actions u of one dimension, with delay d and decay = exp(-1 / time constant in steps):

* targets: s(t+1) = decay s(t) + (1 - decay) u(t), from s(0) = q(d); q(t+d) = gain s(t) + offset;
* displacements: the motion q(t+d) - q(t+d-1) = gain s(t) + offset, with the same s.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from imitate.data.edit.rewrite import Rows
from imitate.data.quality.doctor.finding import Finding, Level, Place, Remedy
from imitate.data.quality.doctor.motion import is_position, is_switch
from imitate.data.quality.doctor.survey import Array, DemoSteps, FileLayout
from imitate.errors import DatasetError
from imitate.system.text import counted

DELAYS = range(-4, 11)
_BEFORE, _AFTER = DELAYS[-1] + 1, -DELAYS[0] + 1
_MAX_COLUMNS = 64
_ENOUGH = 2_000  # number of steps from which delays are detected reliably; no more are stored
_PIECE = 1_000
# largest squared distance of a target from its position, as a fraction of the position's variance
_OWN = 0.25
_SLOWEST_S = 0.4
_SLOWEST_STEPS = 20.0  # used instead of _SLOWEST_S if the file does not record the control rate
_TINY = 1e-12


@dataclass(frozen=True)
class Fit:
    """Result of the fit for one action: how well each delay explains the motion.

    Attributes:
        unexplained: unexplained fraction of the variance for each delay in ``DELAYS``, at the best time constant.
        is_target: true if the action is a target for the position that it moves.
    """

    unexplained: Array
    is_target: bool


class Motions:
    """Collects actions and positions of the first demos, as many as the fits need."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Array, Array]] = []
        self.columns: list[tuple[str, int]] = []
        """Key and index of each column of the recorded positions."""
        self.steps = 0

    def see(self, piece: DemoSteps) -> None:
        """Store a piece."""
        actions = piece.small.get("actions")
        keys = sorted(key for key in piece.small if is_position(key))
        if actions is None or not keys or len(actions) <= _BEFORE + _AFTER or self.steps > _ENOUGH:
            return
        length = min(len(actions), _PIECE)
        u = actions[:length].reshape(length, -1).astype(np.float64)
        q = np.concatenate([piece.small[key][:length].reshape(length, -1) for key in keys], axis=1)
        q = q[:, :_MAX_COLUMNS].astype(np.float64)
        if np.isfinite(u).all() and np.isfinite(q).all():
            sizes = [(key, piece.small[key][0].size) for key in keys]
            columns = [(key, i) for key, size in sizes for i in range(size)]
            self.columns = self.columns or columns[:_MAX_COLUMNS]
            self.pairs.append((u, q))
            self.steps += length

    def findings(self) -> Iterator[Finding]:
        """Return no findings; other checks use the motions."""
        return iter(())


def shifted(pairs: list[tuple[Array, Array]], ahead: int) -> list[tuple[Array, Array]]:
    """Align actions with positions that were recorded ``ahead`` steps too late; leave out pairs that become short."""
    size = abs(ahead)
    if ahead > 0:
        moved = [(u[size:], q[: len(q) - size]) for u, q in pairs]
    else:
        moved = [(u[: len(u) - size], q[size:]) for u, q in pairs]
    return [(u, q) for u, q in moved if len(u) > _BEFORE + _AFTER]


def own_positions(pairs: list[tuple[Array, Array]]) -> dict[int, int]:
    """Return the column of the position for each action that is a position target.

    For such an action, |q(t+k) - u(t)| is small for some delay k.
    """
    if not pairs:
        return {}
    nearest = target_errors(pairs)
    columns = nearest.argmin(axis=1)
    return {a: int(v) for a, v in enumerate(columns) if nearest[a, v] < _OWN}


def target_errors(pairs: list[tuple[Array, Array]]) -> Array:
    """Return :func:`target_distances` divided by the variance of each position; infinite if it does not vary."""
    spread = np.concatenate([q for _, q in pairs]).var(axis=0)
    distances = target_distances(pairs)
    return np.divide(distances, spread, out=np.full_like(distances, np.inf), where=spread > _TINY)


def target_distances(pairs: list[tuple[Array, Array]]) -> Array:
    """Return mean squared distances (A, V) of each action to each position, at the best delay of a few steps."""
    errors = []
    for delay in range(DELAYS[-1] + 1):
        squares = [
            ((q[delay:, None, :] - u[: len(u) - delay, :, None]) ** 2).mean(axis=0)
            for u, q in pairs
        ]
        errors.append(np.mean(squares, axis=0))
    nearest: Array = np.min(errors, axis=0)
    return nearest


def fits(pairs: list[tuple[Array, Array]], rate_hz: float | None) -> list[Fit]:
    """Fit both models of the module to each action and the position that matches it best; return the better fits.

    For a position target, only the model of targets is fitted, to its own position.
    """
    own = own_positions(pairs)
    slowest = _SLOWEST_STEPS if rate_hz is None else max(2.0, _SLOWEST_S * rate_hz)
    decays = np.concatenate([[0.0], np.exp(-1 / np.geomspace(0.25, slowest, 16))])
    levels, motions = _partners(pairs)
    found = []
    for a in range(pairs[0][0].shape[1]):
        target = own.get(a, int(levels[a]))
        unexplained = _fit(pairs, decays, a, target, moves=False)
        if a not in own:
            direct = _fit(pairs, decays, a, int(motions[a]), moves=True)
            unexplained = min(unexplained, direct, key=lambda curve: float(curve.min()))
        found.append(Fit(unexplained, a in own))
    return found


def _partners(pairs: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the columns (A,) of the positions that match each action best: by their values, and by their motion."""
    best: list[Array] = []
    for moves in (False, True):
        at_delay = []
        for delay in DELAYS:
            u, q = zip(*(_window(u, q, delay, moves) for u, q in pairs), strict=True)
            at_delay.append(_correlation(np.concatenate(u), np.concatenate(q)))
        best.append(np.max(at_delay, axis=0).argmax(axis=1))
    return best[0], best[1]


def _window(u: Array, q: Array, delay: int, moves: bool) -> tuple[Array, Array]:
    rows = np.arange(_BEFORE, len(u) - _AFTER)
    return u[rows - delay - 1], (q[rows] - q[rows - 1] if moves else q[rows])


def _correlation(u: Array, q: Array) -> Array:
    u, q = u - u.mean(axis=0), q - q.mean(axis=0)
    scale = np.sqrt((u**2).sum(axis=0)[:, None] * (q**2).sum(axis=0))
    found: Array = np.abs(np.divide(u.T @ q, scale, out=np.zeros_like(scale), where=scale > _TINY))
    return found


def _fit(pairs: list[tuple[Array, Array]], decays: Array, a: int, v: int, *, moves: bool) -> Array:
    """Return the unexplained fraction (L,) of the variance of position ``v``, given action ``a``, at each delay."""
    rows: list[list[tuple[Array, Array, Array]]] = [[] for _ in DELAYS]
    for u, q in pairs:
        filtered = _filtered(u[:, a], decays)
        for i, delay in enumerate(DELAYS):
            rows[i].append(_rows(filtered, q[:, v], decays, delay, moves))
    plain = np.concatenate([_window(u, q, 0, moves)[1][:, v] for u, q in pairs])
    total = max(float(((plain - plain.mean()) ** 2).sum()), _TINY)
    left = [
        _left(*(np.concatenate(part, axis=1) for part in zip(*of_delay, strict=True))).min()
        for of_delay in rows
    ]
    return np.array(left) / total


def _filtered(u: Array, decays: Array) -> Array:
    """Low-pass filter ``u`` (n,) with D decay factors, starting from 0; return (D, n + 1) values with this start."""
    out = np.zeros((len(decays), len(u) + 1))
    for t, value in enumerate(u):
        out[:, t + 1] = decays * out[:, t] + (1 - decays) * value
    return out


def _rows(
    filtered: Array, q: Array, decays: Array, delay: int, moves: bool
) -> tuple[Array, Array, Array]:
    """Return the regressors of gain and offset and the values to explain, (D, n) each, at the same steps."""
    steps = np.arange(_BEFORE, len(q) - _AFTER)
    first = max(0, -delay)
    t = steps - delay
    if moves:
        x = filtered[:, t]
        return x, np.ones_like(x), np.broadcast_to(q[steps] - q[steps - 1], x.shape)
    decayed = decays[:, None] ** (t - first)
    x = filtered[:, t] - decayed * filtered[:, first][:, None]
    return x, 1 - decayed, q[steps] - decayed * q[first + delay]


def _left(x: Array, w: Array, y: Array) -> Array:
    """Return the sums of squared residuals (D,) of the least-squares fits of y (D, N) by gain * x + offset * w."""
    xx, xw = np.maximum(_dot(x, x), _TINY), _dot(x, w)
    offset = (_dot(w, y) - xw / xx * _dot(x, y)) / np.maximum(_dot(w, w) - xw**2 / xx, _TINY)
    gain = (_dot(x, y) - xw * offset) / xx
    rest = y - gain[:, None] * x - offset[:, None] * w
    return _dot(rest, rest)


def _dot(a: Array, b: Array) -> Array:
    """Return the scalar products (D,) of corresponding rows."""
    found: Array = np.einsum("dn,dn->d", a, b)
    return found


_SHIFTS = (0, 1, -1, 2, -2)
_MAX_DEMOS = 50
_CLOSE = 1e-6
_SAID = 0.1  # fraction of steps whose next_obs differs from the next step's obs; a smaller one is normal in cut demos
_BAD = 0.5  # above this fraction, the finding is an error


def shifted_rows(length: int, ahead: int) -> Rows:
    """Return the rows to keep, which align observations recorded ``ahead`` steps too late with their actions."""
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
        """Compare the observations of one demo with its states."""
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
        """Return a finding with the shift if it is not 0."""
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
    """Count the columns of ``seen`` that vary and equal a column of ``states`` that is ``shift`` steps later."""
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
    """Compares ``next_obs`` with the observations of the next steps."""

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
        """Return a finding for the keys that differ in more than a few steps."""
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
                "keep next_obs if they are right and the observations are wrong: critics learn from next_obs",
            )


_USUAL = range(3)  # a controller starts to follow after up to two steps
_MIN_STEPS = 200
_CLEAR = 0.64  # largest unexplained fraction of the variance at a clear fit's best delay
_PROMINENT = (
    # largest unexplained fraction at the best delay, as a fraction of the smallest one at usual delays
    0.5
)
_ROUNDING = 1e-6


class Lag:
    """Comparison of each action with the motion that it causes, at several delays.

    Args:
        layout: layout of the file.
        motions: the recorded motions of the robot.
    """

    def __init__(self, layout: FileLayout, motions: Motions) -> None:
        self._layout, self._motions = layout, motions

    def see(self, piece: DemoSteps) -> None:
        """Do nothing, because :class:`Motions` stores what this check needs."""

    def findings(self) -> Iterator[Finding]:
        """Return a finding for a delay that no controller explains, if most actions that move something agree on it."""
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
            f"it (at this delay, they explain {100 * explained:.0f} % of the motion): "
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
    """Return the shift if no delay would be found after it, else None."""
    moved = shifted(pairs, ahead)
    return ahead if moved and _delay(moved, rate_hz)[0] in _USUAL else None


def _delay(pairs: list[tuple[Array, Array]], rate_hz: float | None) -> tuple[int, float]:
    """Return the delay (0 if usual delays explain the motion equally well), and the explained fraction of variance."""
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
