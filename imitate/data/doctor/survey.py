"""One pass over all values of a file: small arrays demo by demo, large arrays in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from imitate.data.doctor.finding import Finding, Place
from imitate.data.doctor.layout import DemoLayout, Layout
from imitate.errors import DatasetError

_PIECE_BYTES = 2 * 2**20
_SMALL_BYTES = 32 * 2**20
_LARGE_STEP = 1024  # number of values; a larger array is read separately

Array = NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """Steps of one demo.

    Attributes:
        demo: name of the demo.
        start: number of the first step.
        small: (n, ...) all arrays with small steps, by path.
        large: path and values of one array with large steps, such as images; or None.
        is_last: for pieces with ``small`` arrays, true if the demo ends with this piece.
    """

    demo: str
    start: int
    small: Mapping[str, Array]
    large: tuple[str, Array] | None = None
    is_last: bool = True


class Check(Protocol):
    """Check that receives the pieces one by one and reports its findings at the end."""

    def see(self, piece: Piece) -> None:
        """Process a piece."""

    def findings(self) -> Iterator[Finding]:
        """Return the findings."""


class Survey:
    """Reader of a file, piece by piece.

    Attributes:
        read_bytes: size of the values read so far.
        unreadable: reasons by place.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.read_bytes = 0
        self.unreadable: dict[Place, str] = {}

    def pieces(self, demo: DemoLayout) -> Iterator[Piece]:
        """Yield all values of a demo that have the usual form and one row per step."""
        usual = self._layout.steps
        keys = [
            key
            for key, form in demo.per_step().items()
            if form.step == usual[key].step and form.is_numeric and form.shape[0] == demo.length
        ]
        large = [key for key in keys if math.prod(usual[key].step) > _LARGE_STEP]
        small = [key for key in keys if key not in large]
        rows = max(1, _SMALL_BYTES // max(1, sum(map(self._step_bytes, small))))
        for start in range(0, demo.length, rows):
            stop = min(demo.length, start + rows)
            arrays = {key: self._read(demo.name, key, start, stop) for key in small}
            readable = {key: array for key, array in arrays.items() if array is not None}
            yield Piece(demo.name, start, readable, is_last=stop == demo.length)
        for key in large:
            rows = max(1, _PIECE_BYTES // max(1, self._step_bytes(key)))
            for start in range(0, demo.length, rows):
                array = self._read(demo.name, key, start, min(demo.length, start + rows))
                if array is not None:
                    yield Piece(demo.name, start, {}, (key, array))

    def _step_bytes(self, key: str) -> int:
        form = self._layout.steps[key]
        return math.prod(form.step) * form.dtype.itemsize

    def _read(self, demo: str, key: str, start: int, stop: int) -> Array | None:
        try:
            values = self._layout.extents.read(demo, key, start, stop)
        except DatasetError as error:
            reason = str(error).removeprefix(f"{self._layout.file.path}: ")
            self.unreadable[Place(demo, key, ((start, stop),))] = reason
            return None
        self.read_bytes += values.nbytes
        return np.asarray(values)


Progress = Callable[[int, int], None]
