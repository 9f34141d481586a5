"""Checks for jumps of a representation of a continuous quantity: q and -q, angles from pi to -pi."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from imitate.data.doctor.finding import Finding, Level, Place, Remedy, counted, runs_of
from imitate.data.doctor.survey import Array, Piece

_UNIT = 1e-3
_TURN = 2 * math.pi
_NEAR = 0.5  # in rad: largest difference of a jump from a whole turn
_HALF = (
    1.05 * math.pi
    # angles that wrap at pi are within this range; angles that wrap at 2 pi are within twice this range
)
_MAX_RUNS = 100


def quaternion_flips(values: Array) -> Array:
    """Return the steps (n - 1,) at which a unit quaternion (n, 4) becomes its negative, which is the same rotation."""
    flips: Array = (values[1:] * values[:-1]).sum(axis=1) < 0
    return flips


def with_one_sign(values: Array) -> Array:
    """Return the same rotations (n, 4), each with the sign that is nearer to the previous one."""
    signs = np.cumprod(np.where(quaternion_flips(values), -1, 1))
    return np.concatenate([values[:1], values[1:] * signs[:, None].astype(values.dtype)])


class Representations:
    """Search for quaternions whose sign flips, and angles that wrap."""

    def __init__(self) -> None:
        self._quaternions: dict[str, bool] = {}
        self._flips: defaultdict[str, list[Place]] = defaultdict(list)
        self._wraps: defaultdict[str, list[Place]] = defaultdict(list)
        self._dims: defaultdict[str, set[int]] = defaultdict(set)
        self._largest: defaultdict[str, float] = defaultdict(float)
        self._signed: defaultdict[str, bool] = defaultdict(bool)
        self._before: dict[str, tuple[str, Array]] = {}

    def see(self, piece: Piece) -> None:
        """Check the observations and actions of a piece."""
        for key, values in piece.small.items():
            if not (key == "actions" or key.startswith("obs/")) or values.dtype.kind != "f":
                continue
            if values.ndim == 2 and len(values) and np.isfinite(values).all():
                self._look(piece, key, values.astype(np.float64))

    def _look(self, piece: Piece, key: str, values: Array) -> None:
        demo, last = self._before.get(key, ("", values[:0]))
        joined = np.concatenate([last, values]) if demo == piece.demo and piece.start else values
        self._before[key] = piece.demo, values[-1:]
        first = piece.start + len(values) - len(joined) + 1
        is_unit = values.shape[1] == 4 and bool((np.abs((values**2).sum(axis=1) - 1) < _UNIT).all())
        self._quaternions[key] = self._quaternions.get(key, True) and is_unit
        if is_unit:
            self._note(self._flips[key], piece, key, quaternion_flips(joined), first)
            return
        self._largest[key] = max(self._largest[key], float(np.abs(values).max()))
        self._signed[key] |= bool((values < -_NEAR).any())
        steps = np.abs(np.diff(joined, axis=0))
        if not len(steps):
            return
        low, high = joined.min(axis=0), joined.max(axis=0)
        signed = (low >= -_TURN / 2 - _NEAR) & (high <= _TURN / 2 + _NEAR)
        unsigned = (low >= -_NEAR) & (high <= _TURN + _NEAR)
        slow = (np.median(steps, axis=0) < _NEAR) & (signed | unsigned)
        turns = (np.abs(steps - _TURN) < _NEAR) & slow
        self._dims[key] |= set(np.flatnonzero(turns.any(axis=0)).tolist())
        self._note(self._wraps[key], piece, key, turns.any(axis=1), first)

    @staticmethod
    def _note(places: list[Place], piece: Piece, key: str, found: Array, first: int) -> None:
        steps = np.flatnonzero(found) + first
        if len(steps):
            places.append(Place(piece.demo, key, runs_of(steps)[:_MAX_RUNS]))

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each array."""
        for key, places in sorted(self._flips.items()):
            if places and self._quaternions[key]:
                yield _flipped(key, places)
        for key, places in sorted(self._wraps.items()):
            if places and self._largest[key] <= (_HALF if self._signed[key] else 2 * _HALF):
                yield _wrapped(key, places, sorted(self._dims[key]))


def _flipped(key: str, places: list[Place]) -> Finding:
    names = (key, f"next_{key}") if key.startswith("obs/") else (key,)
    return Finding(
        "quaternion_sign",
        Level.warning,
        f"'{key}' flips its sign from q to -q, the same rotation, in {counted(len({p.demo for p in places}))}: each "
        "flip is a jump for a network",
        places,
        Remedy(values=dict.fromkeys(names, with_one_sign)),
        _step("observed_rotation_6d" if key != "actions" else "rotation_6d", key, None),
    )


def _wrapped(key: str, places: list[Place], dims: list[int]) -> Finding:
    return Finding(
        "angle_wrap",
        Level.warning,
        f"'{key}' jumps by a whole turn (2 pi) in {counted(len({p.demo for p in places}))}, in dimension "
        f"{', '.join(map(str, dims))}: an angle goes on from pi to -pi",
        places,
        advice=_step("sin_cos", key, dims)
        if key != "actions"
        else "train on differences (train.preprocess delta_actions) or on another form of the rotation (rotation_6d)",
    )


def _step(name: str, key: str, dims: list[int] | None) -> str:
    if key == "actions":
        return 'train with {"step": "rotation_6d", "dims": [...], "form": "quaternion"} in train.preprocess'
    words = f'"observation": "{key[4:]}"' + (f', "dims": {dims}' if dims else "")
    return f'train with {{"step": "{name}", {words}}} in train.preprocess, which has no jump whatever the robot sends'
