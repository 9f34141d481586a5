"""Checks of actions and ranges: limits, NaN, constants, and jumps of a representation."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from imitate.data.file.faults import are_beyond
from imitate.data.file.features import dimension_words
from imitate.data.quality.doctor.alignment import Motions, own_positions, target_errors
from imitate.data.quality.doctor.finding import Finding, Level, Place, Remedy, counted, runs_of
from imitate.data.quality.doctor.survey import Array, DemoSteps

Names = Mapping[str, Sequence[str]]
_SAID = 0.2  # clipping is reported from this fraction of steps at a limit
_BAD = 0.5  # clipping is a warning from this fraction of steps at a limit
_FEW_VALUES = 3  # a dimension with at most this many values is a switch, such as a gripper


class Clipping:
    """Counter of the steps at which each dimension is at its smallest or largest value.

    Args:
        motions: motions of the robot, used to recognise position targets, which may stay at a limit while the robot is
            still.
        names: names of the components of vectors, by array.
    """

    def __init__(self, motions: Motions, names: Names) -> None:
        self._motions = motions
        self._names = names.get("actions")
        none: Any = 0
        self._steps = self._turns = self._at_low = self._at_high = none
        self._low: Any = np.inf
        self._high: Any = -np.inf
        self._values: list[set[float]] = []

    def see(self, piece: DemoSteps) -> None:
        """Count the steps of a piece."""
        actions = piece.small.get("actions")
        if actions is None or len(actions) == 0:
            return
        actions = actions.reshape(len(actions), -1)
        columns = np.ascontiguousarray(actions.T)  # reductions along long rows are fast
        low, high = columns.min(axis=1), columns.max(axis=1)
        at_low = np.count_nonzero(columns == low[:, None], axis=1)
        at_high = np.count_nonzero(columns == high[:, None], axis=1)
        self._note_values(actions)
        turns = np.array(
            [_turns(column, a, b) for column, a, b in zip(columns, low, high, strict=True)]
        )
        self._turns = self._turns + turns
        self._steps += len(actions)
        self._at_low = np.where(low < self._low, 0, self._at_low) + at_low * (low <= self._low)
        self._at_high = np.where(high > self._high, 0, self._at_high) + at_high * (
            high >= self._high
        )
        self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)

    def _note_values(self, actions: Array) -> None:
        if not self._values:
            self._values = [set() for _ in range(actions.shape[1])]
        for column, values in zip(actions.T, self._values, strict=True):
            if len(values) <= _FEW_VALUES:
                values.update(np.unique(column)[: _FEW_VALUES + 1].tolist())

    def findings(self) -> Iterator[Finding]:
        """Return the dimensions that are often at a limit."""
        targets = own_positions(self._motions.pairs)
        for column, values in enumerate(self._values):
            share = int(self._at_low[column] + self._at_high[column]) / self._steps
            if len(values) <= _FEW_VALUES or share < _SAID or column in targets:
                continue
            ramps = self._turns[column] == 0
            name = dimension_words([column], self._names)
            low, high = float(self._low[column]), float(self._high[column])
            yield Finding(
                "clipping",
                Level.warning if share >= _BAD and not ramps else Level.info,
                f"dimension {name} of 'actions' is at its limit ({low:.4g} or {high:.4g}) in {100 * share:.0f} % of "
                "the steps",
                [Place(key="actions")],
                advice="nothing to do if the dimension is a gripper, which is always at a limit"
                if ramps
                else "record with a lower gain, or a wider range",
            )


def _turns(column: Array, low: float, high: float) -> int:
    """Count the changes of direction strictly between a dimension's limits; a motion from limit to limit has none."""
    inner = (column > low) & (column < high)
    moved = np.flatnonzero(np.diff(column))
    direction = np.sign(np.diff(column.astype(np.float64))[moved])
    turned = (direction[1:] != direction[:-1]) & inner[moved[1:]]
    return int(np.count_nonzero(turned))


# fraction of a key's largest value; normalization shifts a smaller range but does not scale it
_ROUNDING = 1e-6
_CLIPPABLE = 0.05  # largest fraction of the steps outside the limits that may be clipped
_MAX_RUNS = 100
_WIDE = 512


def _extremes(columns: Array) -> tuple[Array, Array]:
    """Return the smallest and largest value per column. Many rows are joined into one, which is ten times faster."""
    rows, width = columns.shape
    group = max(1, _WIDE // max(1, width))
    whole = rows // group * group
    if whole == 0:
        return columns.min(axis=0), columns.max(axis=0)
    wide = columns[:whole].reshape(-1, group * width)
    low, high = (x.reshape(group, width) for x in (wide.min(axis=0), wide.max(axis=0)))
    rest = columns[whole:]
    return np.vstack([low, rest]).min(axis=0), np.vstack([high, rest]).max(axis=0)


def _are_finite(values: Array) -> Array:
    """Return which values are finite in float32, in which networks compute."""
    with np.errstate(over="ignore"):
        finite: Array = np.isfinite(values.astype(np.float32, copy=False))
    return finite


class Ranges:
    """Check of the range of each dimension over all demos, and of steps that are not finite or out of bounds.

    Args:
        clips_itself: true if the environment clips actions at +-1, so that a repair may clip them too.
        names: names of the components of vectors, by array.
    """

    def __init__(self, clips_itself: bool = False, names: Names = MappingProxyType({})) -> None:
        self._clips_itself, self._names = clips_itself, names
        self._low: dict[str, Array] = {}
        self._high: dict[str, Array] = {}
        self._steps: defaultdict[str, int] = defaultdict(int)
        self._not_finite: list[Place] = []
        self._too_large = False
        self._beyond: list[Place] = []
        self._beyond_steps = 0

    def see(self, piece: DemoSteps) -> None:
        """Update the ranges of the arrays with small steps."""
        for key, values in piece.small.items():
            if values.size == 0:
                continue
            columns = values.reshape(len(values), -1)
            if columns.dtype == bool:
                columns = columns.astype(np.uint8)
            low, high = _extremes(columns)
            if values.dtype.kind == "f" and not (_are_finite(low) & _are_finite(high)).all():
                columns = self._note_not_finite(piece, key, columns)
                if len(columns) == 0:
                    continue
                low, high = _extremes(columns)
            if key == "actions" and (are_beyond(low) | are_beyond(high)).any():
                beyond = np.flatnonzero(are_beyond(columns).any(axis=1))
                self._beyond_steps += len(beyond)
                runs = runs_of(beyond + piece.start)[:_MAX_RUNS]
                self._beyond.append(Place(piece.demo, key, runs))
            known = key in self._low
            self._low[key] = np.minimum(self._low[key], low) if known else low
            self._high[key] = np.maximum(self._high[key], high) if known else high
            self._steps[key] += len(values)
        if piece.large is not None:
            self._see_large(piece, *piece.large)

    def _see_large(self, piece: DemoSteps, key: str, values: Array) -> None:
        if values.dtype.kind == "f":
            columns = values.reshape(len(values), -1)
            if not _are_finite(np.array([columns.min(), columns.max()])).all():
                self._note_not_finite(piece, key, columns)

    def _note_not_finite(self, piece: DemoSteps, key: str, columns: Array) -> Array:
        """Return the finite rows, and record demo and step of the others."""
        finite = _are_finite(columns).all(axis=1)
        self._too_large |= bool(np.isfinite(columns[~finite]).all(axis=1).any())
        bad = np.flatnonzero(~finite)
        if len(bad):
            runs = runs_of(bad + piece.start)[:_MAX_RUNS]
            self._not_finite.append(Place(piece.demo, key, runs))
        kept: Array = columns[finite]
        return kept

    def findings(self) -> Iterator[Finding]:
        """Return the findings on all arrays."""
        yield from self._find_not_finite()
        yield from self._find_beyond()
        yield from self._find_constant()

    def _find_not_finite(self) -> Iterator[Finding]:
        keys = sorted({place.key or "" for place in self._not_finite})
        demos = list(dict.fromkeys(place.demo or "" for place in self._not_finite))
        if demos:
            named = ", ".join(f"'{key}'" for key in keys[:3]) + (" ..." if len(keys) > 3 else "")
            yield Finding(
                "nan",
                Level.error,
                f"{counted(len(demos), 'has have')} NaN or inf {'(in float32) ' if self._too_large else ''}in {named}",
                self._not_finite,
                Remedy(drop_demos=demos),
            )

    def _find_beyond(self) -> Iterator[Finding]:
        if not self._beyond:
            return
        low, high = float(self._low["actions"].min()), float(self._high["actions"].max())
        share = self._beyond_steps / self._steps["actions"]
        demos = len({place.demo for place in self._beyond})
        rare = share <= _CLIPPABLE and self._clips_itself
        yield Finding(
            "action_range",
            Level.warning if rare else Level.info,
            f"actions of {counted(demos)} leave [-1, 1] in {100 * share:.1f} % of the steps: {low:.4g} to {high:.4g}",
            self._beyond,
            Remedy(values={"actions": lambda values: np.clip(values, -1, 1)}) if rare else None,
            f"{'' if rare else 'imitate config init scales them; '}in a configuration of your own: "
            "--set train.action_config.actions.normalization=min_max",
        )

    def constants(self) -> dict[str, str]:
        """Return, for each array whose values never change, "0" if all of them are 0, else "the same"."""
        return {
            key: "the same" if low.any() else "0"
            for key, low in self._low.items()
            if self._steps[key] > 1 and (low == self._high[key]).all()
        }

    def _find_constant(self) -> Iterator[Finding]:
        constants = self.constants()
        for key in sorted(self._low):
            if key.startswith("next_obs/") or not (key == "actions" or key.startswith("obs/")):
                continue
            spread = self._high[key].astype(np.float64) - self._low[key]
            if self._steps[key] < 2:
                continue
            largest = max(np.abs(self._low[key]).max(), np.abs(self._high[key]).max())
            still, nearly = spread == 0, (spread > 0) & (spread <= _ROUNDING * largest)
            if constants.get(key) == "0" and key != "actions":
                yield Finding(
                    "constant",
                    Level.warning,
                    f"'{key}' is 0 everywhere: a sensor that was not connected?",
                    [Place(key=key)],
                    Remedy(drop_keys=[key, f"next_obs/{key[4:]}"])
                    if f"next_obs/{key[4:]}" in self._low
                    else Remedy(drop_keys=[key]),
                )
                continue
            for code, words, found in (
                ("constant", "never changes", still),
                ("near_constant", f"changes by less than a millionth of {largest:.3g}", nearly),
            ):
                if found.any():
                    numbers = dimension_words(np.flatnonzero(found), self._names.get(key))
                    what = f"'{key}' {words} in {found.sum()} of {found.size} dimensions: {numbers}"
                    yield Finding(code, Level.info, what, [Place(key=key)])


_UNIT = 1e-3
_DEGREE = math.pi / 180
_TURN = 2 * math.pi
_NEAR = 0.5  # largest difference of a jump from a whole turn, in rad
_HALF = (
    1.05 * math.pi
    # angles that wrap at pi are within this range; angles that wrap at 2 pi are within twice this range
)


def quaternion_flips(values: Array) -> Array:
    """Return the steps (n - 1,) at which a unit quaternion (n, 4) becomes its negative, which is the same rotation."""
    flips: Array = (values[1:] * values[:-1]).sum(axis=1) < 0
    return flips


def with_one_sign(values: Array) -> Array:
    """Return the same rotations (n, 4), each quaternion with the sign that is nearer to the previous quaternion."""
    signs = np.cumprod(np.where(quaternion_flips(values), -1, 1))
    return np.concatenate([values[:1], values[1:] * signs[:, None].astype(values.dtype)])


def with_signs(values: Array, first: int) -> Array:
    """Return vectors (n, D) without sign flips in the quaternion that begins at column ``first``."""
    changed = values.copy()
    changed[:, first : first + 4] = with_one_sign(values[:, first : first + 4])
    return changed


class Representations:
    """Search for quaternions whose sign flips, alone or in a longer vector, and angles that wrap.

    Args:
        names: names of the components of vectors, by array.
        chosen: observations that `imitate config init` chooses for files of this simulator; None for all.
    """

    def __init__(self, names: Names, chosen: Sequence[str] | None = None) -> None:
        self._names, self._chosen = names, chosen
        self._widths: dict[str, int] = {}
        self._quaternions: dict[str, list[int]] = {}
        self._flips: defaultdict[tuple[str, int], list[Place]] = defaultdict(list)
        self._wraps: defaultdict[tuple[str, float], list[Place]] = defaultdict(list)
        self._dims: defaultdict[tuple[str, float], set[int]] = defaultdict(set)
        self._low: dict[str, Array] = {}
        self._high: dict[str, Array] = {}
        self._before: dict[str, tuple[str, Array]] = {}

    def see(self, piece: DemoSteps) -> None:
        """Check the observations and actions of a piece."""
        for key, values in piece.small.items():
            if not (key == "actions" or key.startswith("obs/")) or values.dtype.kind != "f":
                continue
            if values.ndim == 2 and len(values) and np.isfinite(values).all():
                self._look(piece, key, values.astype(np.float64))

    def _look(self, piece: DemoSteps, key: str, values: Array) -> None:
        demo, last = self._before.get(key, ("", values[:0]))
        joined = np.concatenate([last, values]) if demo == piece.demo and piece.start else values
        self._before[key] = piece.demo, values[-1:]
        first = piece.start + len(values) - len(joined) + 1
        self._widths[key] = values.shape[1]
        places = self._quaternions.get(key, list(range(values.shape[1] - 3)))
        for rows in (values[:1], values):
            places = [at for at in places if _are_unit(rows[:, at : at + 4])]
        self._quaternions[key] = places
        for at in places:
            flips = quaternion_flips(joined[:, at : at + 4])
            self._note(self._flips[key, at], piece, key, flips, first)
        self._low[key] = np.minimum(self._low.get(key, np.inf), values.min(axis=0))
        self._high[key] = np.maximum(self._high.get(key, -np.inf), values.max(axis=0))
        steps = np.abs(np.diff(joined, axis=0))
        if not len(steps):
            return
        slow = np.median(steps, axis=0)
        for unit in (1.0, _DEGREE):
            turns = (np.abs(steps * unit - _TURN) < _NEAR) & (slow * unit < _NEAR)
            turns &= self._within_a_turn(key, unit)
            self._dims[key, unit] |= set(np.flatnonzero(turns.any(axis=0)).tolist())
            self._note(self._wraps[key, unit], piece, key, turns.any(axis=1), first)

    def _within_a_turn(self, key: str, unit: float) -> Array:
        """Return a mask (D,) of the columns whose values so far could be angles from -pi to pi, or from 0 to 2 pi.

        In radians all columns must fulfil this, because other quantities have values and jumps of this size too.
        """
        low, high = self._low[key] * unit, self._high[key] * unit
        if unit == 1:
            low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
        within: Array = np.maximum(-low, high) <= np.where(low < -_NEAR, _HALF, 2 * _HALF)
        return within

    @staticmethod
    def _note(places: list[Place], piece: DemoSteps, key: str, found: Array, first: int) -> None:
        steps = np.flatnonzero(found) + first
        if len(steps):
            places.append(Place(piece.demo, key, runs_of(steps)[:_MAX_RUNS]))

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each quaternion, and for each array with angles."""
        for (key, at), places in sorted(self._flips.items()):
            if places and at in self._quaternions[key] and self._turns(key, at):
                yield self._flipped(key, at, places)
        for (key, unit), places in sorted(self._wraps.items()):
            dims = sorted(
                self._dims[key, unit] & set(np.flatnonzero(self._within_a_turn(key, unit)).tolist())
            )
            if dims:
                yield _wrapped(key, places, dims, self._names.get(key), unit)

    def _turns(self, key: str, at: int) -> bool:
        """Return true if the quaternion is a whole vector, or if more than one of its components changes."""
        span = (self._high[key] - self._low[key])[at : at + 4]
        return self._widths[key] == 4 or int((span > _UNIT).sum()) > 1

    def _flipped(self, key: str, at: int, places: list[Place]) -> Finding:
        alone = self._widths[key] == 4
        found = _flipped(key, None if alone else at, places)
        if (
            self._chosen is None
            or not key.startswith("obs/")
            or (alone and key[4:] in self._chosen)
        ):
            return found
        what = (
            found.what
            if key[4:] in self._chosen
            else f"{found.what}; `imitate config init` leaves the observation out"
        )
        return replace(found, level=Level.info, what=what)


def _are_unit(values: Array) -> bool:
    return bool((np.abs((values**2).sum(axis=1) - 1) < _UNIT).all())


def _flipped(key: str, at: int | None, places: list[Place]) -> Finding:
    names = (key, f"next_{key}") if key.startswith("obs/") else (key,)
    return Finding(
        "quaternion_sign",
        Level.warning,
        f"'{key}'{'' if at is None else f'[{at}:{at + 4}]'} flips its sign from q to -q, the same rotation, in "
        f"{counted(len({p.demo for p in places}))}: each flip is a jump for a network",
        places,
        Remedy(
            values=dict.fromkeys(
                names, with_one_sign if at is None else partial(with_signs, first=at)
            )
        ),
        _step(
            "observed_rotation_6d" if key != "actions" else "rotation_6d",
            key,
            None if at is None else [*range(at, at + 4)],
        ),
    )


def _wrapped(
    key: str, places: list[Place], dims: list[int], names: Sequence[str] | None, unit: float
) -> Finding:
    turn, half, data = (
        ("2 pi", "pi", "") if unit == 1 else ("360", "180", "store the angle in radians, and ")
    )
    return Finding(
        "angle_wrap",
        Level.warning,
        f"'{key}' jumps by a whole turn ({turn}) in {counted(len({p.demo for p in places}))}, in dimension "
        f"{dimension_words(dims, names, len(dims))}: after {half} the angle continues at -{half}, "
        f"or after {turn} at 0",
        places,
        advice=data + _step("sin_cos", key, dims)
        if key != "actions"
        else "train on differences (train.preprocess delta_actions) or on another form of the rotation (rotation_6d)",
    )


def _step(name: str, key: str, dims: list[int] | None) -> str:
    if key == "actions":
        return 'train with {"step": "rotation_6d", "dims": [...], "form": "quaternion"} in train.preprocess'
    words = f'"observation": "{key[4:]}"' + (f', "dims": {dims}' if dims else "")
    return f'train with {{"step": "{name}", {words}}} in train.preprocess, which removes the jumps'


_MIN_STEPS = 100
_CLEAR = 4.0
"""Factor by which another joint's position must be nearer to a target than the position of the same index."""
_OPPOSITE = 0.05
"""Largest squared distance of a negated position from a target, as a fraction of the position's variance."""


class ObservedOrder:
    """Comparison of position targets with the positions that reach them.

    Args:
        motions: the recorded motions of the robot.
        names: names of the components of vectors, by array.
    """

    def __init__(self, motions: Motions, names: Names) -> None:
        self._motions, self._names = motions, names

    def see(self, piece: DemoSteps) -> None:
        """Do nothing, because :class:`Motions` stores what this check needs."""

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each vector whose components have another order than the actions, or opposite signs."""
        pairs, columns = self._motions.pairs, self._motions.columns
        if self._motions.steps < _MIN_STEPS:
            return
        own, errors = own_positions(pairs), target_errors(pairs)
        against = target_errors([(u, -q) for u, q in pairs])
        for key in dict.fromkeys(key for key, _ in columns):
            mine = {a: v for a, v in own.items() if columns[v][0] == key}
            moved = [
                (a, v)
                for (a, v), place in zip(mine.items(), sorted(mine.values()), strict=True)
                if v != place and errors[a, place] > _CLEAR * errors[a, v]
            ]
            if moved and len(set(mine.values())) == len(mine):
                yield self._finding(key, moved, "reach the targets of", "in another order")
            free = [
                v for v, (name, _) in enumerate(columns) if name == key and v not in own.values()
            ]
            turned = [
                (a, v)
                for a in range(len(errors))
                for v in free
                if mine and a not in own and against[a, v] < _OPPOSITE and errors[a, v] > 1
            ]
            if turned:
                yield self._finding(key, turned, "are the negatives of the targets in", "negated")

    def _finding(self, key: str, pairs: list[tuple[int, int]], verb: str, fault: str) -> Finding:
        columns = self._motions.columns
        seen = dimension_words([columns[v][1] for _, v in pairs], self._names.get(key, ()))
        sent = dimension_words([a for a, _ in pairs], self._names.get("actions", ()))
        return Finding(
            "joint_order",
            Level.warning,
            f"{key}[{seen}] {verb} actions[{sent}]: the driver reads joints {fault}",
            [Place(key=key)],
            None,
            "correct the driver, because a robot would move to wrong poses, and record again",
        )
