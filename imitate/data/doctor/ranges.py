"""Checks of the smallest and largest values of each array: NaN, constants, actions outside their limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from imitate.data.doctor.finding import Finding, Level, Place, Remedy, counted, runs_of
from imitate.data.doctor.survey import Array, Piece
from imitate.data.file.faults import ACTION_LIMIT

# fraction of a key's largest value; a smaller range is shifted, never scaled, by the normalization
_ROUNDING = 1e-6
_CLIPPABLE = 0.05  # largest fraction of the steps outside the limits that may be clipped
_MAX_RUNS = 100
_WIDE = 512


def _extremes(columns: Array) -> tuple[Array, Array]:
    """Return the smallest and largest value per column. Many rows are processed as one, which is ten times faster."""
    rows, width = columns.shape
    group = max(1, _WIDE // max(1, width))
    whole = rows // group * group
    if whole == 0 or group == 1:
        return columns.min(axis=0), columns.max(axis=0)
    wide = columns[:whole].reshape(-1, group * width)
    low, high = (x.reshape(group, width) for x in (wide.min(axis=0), wide.max(axis=0)))
    rest = columns[whole:]
    return np.vstack([low, rest]).min(axis=0), np.vstack([high, rest]).max(axis=0)


class Ranges:
    """Smallest and largest value of each dimension over all demos, and steps that are not finite or out of bounds.

    Args:
        clips_itself: true if the environment clips actions at +-1, so that a repair may clip them too.
    """

    def __init__(self, clips_itself: bool = False) -> None:
        self._clips_itself = clips_itself
        self._low: dict[str, Array] = {}
        self._high: dict[str, Array] = {}
        self._steps: defaultdict[str, int] = defaultdict(int)
        self._not_finite: list[Place] = []
        self._beyond: list[Place] = []
        self._beyond_steps = 0

    def see(self, piece: Piece) -> None:
        """Update the ranges of the arrays with small steps."""
        for key, values in piece.small.items():
            if values.size == 0:
                continue
            columns = values.reshape(len(values), -1)
            if columns.dtype == bool:
                columns = columns.astype(np.uint8)
            low, high = _extremes(columns)
            if values.dtype.kind == "f" and not np.isfinite(low + high).all():
                columns = self._note_not_finite(piece, key, columns)
                if len(columns) == 0:
                    continue
                low, high = _extremes(columns)
            if key == "actions" and max(high.max(), -low.min()) > ACTION_LIMIT:
                beyond = np.flatnonzero((np.abs(columns) > ACTION_LIMIT).any(axis=1))
                self._beyond_steps += len(beyond)
                runs = runs_of(beyond + piece.start)[:_MAX_RUNS]
                self._beyond.append(Place(piece.demo, key, runs))
            known = key in self._low
            self._low[key] = np.minimum(self._low[key], low) if known else low
            self._high[key] = np.maximum(self._high[key], high) if known else high
            self._steps[key] += len(values)
        if piece.large is not None:
            self._see_large(piece, *piece.large)

    def _see_large(self, piece: Piece, key: str, values: Array) -> None:
        if values.dtype.kind == "f":
            columns = values.reshape(len(values), -1)
            if not np.isfinite(columns.min() + columns.max()):
                self._note_not_finite(piece, key, columns)

    def _note_not_finite(self, piece: Piece, key: str, columns: Array) -> Array:
        """Return the finite rows, and record the places of the others."""
        finite = np.isfinite(columns).all(axis=1)
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
                f"{counted(len(demos), 'has have')} NaN or inf in {named}",
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

    def _find_constant(self) -> Iterator[Finding]:
        for key in sorted(self._low):
            if key.startswith("next_obs/") or not (key == "actions" or key.startswith("obs/")):
                continue
            spread = self._high[key].astype(np.float64) - self._low[key]
            if self._steps[key] < 2 or spread.size == 0:
                continue
            largest = max(np.abs(self._low[key]).max(), np.abs(self._high[key]).max())
            still, nearly = spread == 0, (spread > 0) & (spread <= _ROUNDING * largest)
            if still.all() and not self._low[key].any() and key != "actions":
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
                    numbers = ", ".join(map(str, np.flatnonzero(found)[:10]))
                    what = f"'{key}' {words} in {found.sum()} of {found.size} dimensions: {numbers}"
                    yield Finding(code, Level.info, what, [Place(key=key)])
