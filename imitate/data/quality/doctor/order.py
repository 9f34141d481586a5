"""Check that position targets have the order and the signs of the observed positions."""

from __future__ import annotations

from collections.abc import Iterator

from imitate.data.file.features import dimension_words
from imitate.data.quality.doctor.actions import Names
from imitate.data.quality.doctor.alignment import Motions, own_positions, target_errors
from imitate.data.quality.doctor.finding import Finding, Level, Place
from imitate.data.quality.doctor.survey import DemoSteps

_MIN_STEPS = 100
_CLEAR = 4.0
"""Factor by which the position of another number has to be nearer to a target than its own."""
_OPPOSITE = 0.05
"""Fraction of a position's variance by which its negative may differ from a target."""


class ObservedOrder:
    """Comparison of position targets with the positions that reach them.

    Args:
        motions: recorded motions; it receives the pieces too.
        names: names of vectors' numbers by array.
    """

    def __init__(self, motions: Motions, names: Names) -> None:
        self._motions, self._names = motions, names

    def see(self, piece: DemoSteps) -> None:
        """Do nothing, because the motions receive the piece."""

    def findings(self) -> Iterator[Finding]:
        """Return the vectors whose numbers have another order than the actions, or opposite signs."""
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
            "correct the driver, since a robot is moved by a wrong pose, and record again",
        )
