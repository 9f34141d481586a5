"""Check for actions that are often at their limits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from imitate.data.doctor.finding import Finding, Level, Place
from imitate.data.doctor.following import Motions, own_positions
from imitate.data.doctor.survey import Array, Piece

_SAID, _BAD = 0.2, 0.5  # fraction of the steps at a limit
_FEW_VALUES = 3  # a dimension with at most this many values is a switch, such as a gripper's


class Clipping:
    """Counter of the steps at which each dimension is at its smallest or largest value.

    Args:
        motions: also receives the pieces; position targets are at an end of their range when the robot does not move.
    """

    def __init__(self, motions: Motions) -> None:
        self._motions = motions
        self._turns: Array = np.zeros(0, dtype=np.int64)
        self._steps = 0
        self._low: Array | None = None
        self._high: Array | None = None
        self._at_low: Array = np.zeros(0, dtype=np.int64)
        self._at_high: Array = np.zeros(0, dtype=np.int64)
        self._values: list[set[float]] = []

    def see(self, piece: Piece) -> None:
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
        self._turns = turns if self._low is None else self._turns + turns
        self._steps += len(actions)
        if self._low is None or self._high is None:
            self._low, self._high, self._at_low, self._at_high = low, high, at_low, at_high
            return
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
        if self._low is None or self._high is None:
            return
        targets = own_positions(self._motions.pairs)
        for column, values in enumerate(self._values):
            share = int(self._at_low[column] + self._at_high[column]) / self._steps
            if len(values) <= _FEW_VALUES or share < _SAID or column in targets:
                continue
            ramps = self._turns[column] == 0
            low, high = float(self._low[column]), float(self._high[column])
            yield Finding(
                "clipping",
                Level.warning if share >= _BAD and not ramps else Level.info,
                f"dimension {column} of 'actions' is at its limit ({low:.4g} or {high:.4g}) in {100 * share:.0f} % of "
                "the steps",
                [Place(key="actions")],
                advice="nothing to do, if it is a gripper, which goes from one end to the other"
                if ramps
                else "record with a lower gain, or a wider range",
            )


def _turns(column: Array, low: float, high: float) -> int:
    """Count how often a dimension reverses between its limits; one that moves from end to end never does."""
    inner = (column > low) & (column < high)
    moved = np.flatnonzero(np.diff(column))
    direction = np.sign(np.diff(column.astype(np.float64))[moved])
    turned = (direction[1:] != direction[:-1]) & inner[moved[1:]]
    return int(np.count_nonzero(turned))
