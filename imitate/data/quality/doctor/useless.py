"""Check for observations from which a policy cannot learn: constants, and copies of the actions."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from imitate.data.file.hdf5_format import PIECE_BYTES, DemoFile
from imitate.data.quality.doctor.actions import Ranges
from imitate.data.quality.doctor.finding import Finding, Level, Place, Remedy
from imitate.data.quality.doctor.survey import Array, DemoSteps

_EQUAL = 0.98  # fraction of the steps at which a copy equals the actions
_FEWEST = 10  # steps
_ROUNDING = 1e-5
_SHIFTS = {0: "the action of the same step", 1: "the action of the step before"}
_NAMED_FOR_ACTIONS = re.compile(r"action|command|target|ctrl", re.IGNORECASE)


class ActionCopies:
    """Search for observations that equal the actions of the same step, or of the previous step."""

    def __init__(self) -> None:
        self._steps: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._equal: defaultdict[tuple[str, int], int] = defaultdict(int)

    def see(self, piece: DemoSteps) -> None:
        """Count the steps of a piece at which actions change and an observation equals them."""
        actions = piece.small.get("actions")
        if actions is None or actions.dtype.kind != "f":
            return
        for key, values in piece.small.items():
            if not key.startswith("obs/") or values.shape != actions.shape:
                continue
            for shift in _SHIFTS:
                self._count(key, shift, values[shift:], actions[: len(actions) - shift])

    def _count(self, key: str, shift: int, values: Array, actions: Array) -> None:
        changed = np.any(actions[1:] != actions[:-1], axis=-1)
        values, actions = values[1:][changed], actions[1:][changed]
        self._steps[key, shift] += len(actions)
        equal = np.isclose(values, actions, rtol=_ROUNDING, atol=_ROUNDING).all(axis=-1)
        self._equal[key, shift] += int(equal.sum())

    def copies(self) -> dict[str, int]:
        """Return the shift in steps of each copy, by array."""
        return {
            key: shift
            for (key, shift), steps in sorted(self._steps.items(), reverse=True)
            if steps >= _FEWEST and self._equal[key, shift] >= _EQUAL * steps
        }

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each copy."""
        for key, shift in sorted(self.copies().items()):
            what = f"'{key}' is {_SHIFTS[shift]}"
            if _is_harmless(key, shift):
                words = f"{what}, as where actions are the next state"
                yield Finding("action_copy", Level.info, words, [Place(key=key)])
                continue
            yield Finding(
                "action_copy",
                Level.warning,
                f"{what}: a policy can copy it instead of looking",
                [Place(key=key)],
                Remedy(drop_keys=[key]),
            )


def _is_harmless(key: str, shift: int) -> bool:
    return shift > 0 and not _NAMED_FOR_ACTIONS.search(key)


def useless_observations(
    file: DemoFile, demos: Sequence[str], keys: Sequence[str]
) -> dict[str, str]:
    """Return the reason why an observation is useless, by key, with the same checks as the doctor.

    Args:
        file: the open file.
        demos: demos to read.
        keys: observations that are vectors.
    """
    ranges, copies = Ranges(), ActionCopies()
    for demo in demos:
        for piece in _pieces(file, demo, ["actions", *(f"obs/{key}" for key in keys)]):
            ranges.see(piece)
            copies.see(piece)
    found = {key: f"{value} in all steps" for key, value in ranges.constants().items()}
    found |= {
        key: f"it is {_SHIFTS[shift]}"
        for key, shift in copies.copies().items()
        if not _is_harmless(key, shift)
    }
    return {key: found[f"obs/{key}"] for key in keys if f"obs/{key}" in found}


def _pieces(file: DemoFile, demo: str, names: Sequence[str]) -> Iterator[DemoSteps]:
    """Yield consecutive steps of several arrays of a demo."""
    row = sum(
        math.prod(file.shape(demo, name)[1:]) * file.dtype(demo, name).itemsize for name in names
    )
    rows = max(1, PIECE_BYTES // max(1, row))
    for start in range(0, file.length(demo), rows):
        small = {name: file.read(demo, name, start, start + rows) for name in names}
        yield DemoSteps(demo, start, small)
