"""The layout of a file, and one pass over all values: small arrays demo by demo, large arrays in pieces."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from imitate.data.edit.rewrite import is_per_step
from imitate.data.file.extents import Extents
from imitate.data.file.faults import is_channel_first
from imitate.data.file.hdf5_format import DemoFile
from imitate.data.file.step_times import CLOCK
from imitate.data.quality.doctor.finding import Finding, Place
from imitate.errors import DatasetError

HAND = re.compile(r"^obs/(\w+_)?(eef|ee|tcp)_pos$")
"""Names of observations with positions of the robot's hand."""


class FileArray(NamedTuple):
    """Shape of a whole array and type of its values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def step(self) -> tuple[int, ...]:
        """Shape of one step."""
        return self.shape[1:]

    @property
    def is_numeric(self) -> bool:
        """True if the values are numbers."""
        return self.dtype.kind in "fiub"

    @property
    def is_image(self) -> bool:
        """True if the steps look like images (H, W, C)."""
        step = self.step
        return len(step) == 3 and step[2] in (1, 3, 4) and not self.is_channel_first

    @property
    def is_channel_first(self) -> bool:
        """True if the steps look like images (C, H, W)."""
        return is_channel_first(self.step)


@dataclass(frozen=True)
class DemoLayout:
    """Layout of one demo.

    Attributes:
        name: name of the demo.
        arrays: shape and type of each array, by path below the demo.
        said_length: value of the attribute ``num_samples``, or None.
    """

    name: str
    arrays: Mapping[str, FileArray]
    said_length: Any

    @property
    def length(self) -> int:
        """Number of steps, which is the length of the array ``actions``; 0 without actions."""
        actions = self.arrays.get("actions")
        return actions.shape[0] if actions else 0

    def per_step(self) -> dict[str, FileArray]:
        """Return the arrays with a row per step, including arrays of times anywhere in the demo."""
        return {
            key: form
            for key, form in self.arrays.items()
            if form.shape
            if is_per_step(key) or CLOCK.search(key) and form.shape[0] == self.length
        }


@dataclass(frozen=True)
class FileLayout:
    """Layout of a whole file.

    Attributes:
        file: the open file.
        extents: locations of the file's arrays, for reading.
        demos: layouts of the demos that could be opened.
        broken: reason why a demo could not be opened, by demo.
        steps: shape and type that each array has in most demos.
    """

    file: DemoFile
    extents: Extents
    demos: list[DemoLayout]
    broken: Mapping[str, str]
    steps: Mapping[str, FileArray]


def layout_of(extents: Extents) -> FileLayout:
    """Open every demo and array of a file, and return the file's layout."""
    file = extents.file
    demos, broken = [], {}
    for name in file.demos():
        demo = _demo(extents, name)
        if isinstance(demo, DemoLayout):
            demos.append(demo)
        else:
            broken[name] = demo
    return FileLayout(file, extents, demos, broken, _usual(demos))


def _demo(extents: Extents, name: str) -> DemoLayout | str:
    """Return a demo's layout, or the reason why it cannot be opened."""
    file = extents.file
    try:
        arrays = {
            key: FileArray(found.shape, found.dtype) for key, found in extents.of(name).items()
        }
        with file.reading(f"demo '{name}'"):
            said = file.group(name).attrs.get("num_samples")
        return DemoLayout(name, arrays, said.item() if isinstance(said, np.generic) else said)
    except DatasetError as error:
        return str(error).removeprefix(f"{file.path}: ")


def _usual(demos: list[DemoLayout]) -> dict[str, FileArray]:
    """Return the shape and type that each array has in most demos; the number of steps in the shape has no meaning."""
    forms: dict[str, Counter[tuple[tuple[int, ...], np.dtype[Any]]]] = {}
    for demo in demos:
        for key, form in demo.per_step().items():
            forms.setdefault(key, Counter())[form.step, form.dtype] += 1
    usual = {}
    for key, counts in sorted(forms.items()):
        step, dtype = counts.most_common(1)[0][0]
        usual[key] = FileArray((0, *step), dtype)
    return usual


PIECE_BYTES = 2_000_000
SMALL_BYTES = 32_000_000
_LARGE_STEP = 1024  # number of values; larger arrays are read separately

Array = NDArray[Any]


@dataclass(frozen=True)
class DemoSteps:
    """Steps of one demo.

    Attributes:
        demo: name of the demo.
        start: index of the first step.
        small: values (n, ...) of all arrays with small steps, by path.
        large: path and values of one array with large steps, such as images; or None.
        is_last: for pieces with ``small`` arrays, true if the demo ends with this piece.
    """

    demo: str
    start: int
    small: Mapping[str, Array]
    large: tuple[str, Array] | None = None
    is_last: bool = True


class Check(Protocol):
    """Interface of a check, which gets the pieces of all demos one by one and returns its findings at the end."""

    def see(self, piece: DemoSteps) -> None:
        """Process a piece."""

    def findings(self) -> Iterator[Finding]:
        """Return the findings."""


class Survey:
    """Reader of a file, piece by piece.

    Attributes:
        read_bytes: size of the values read so far.
        unreadable: reason why values cannot be read, by demo, key and steps.
    """

    def __init__(self, layout: FileLayout) -> None:
        self._layout = layout
        self.read_bytes = 0
        self.unreadable: dict[Place, str] = {}

    def pieces(self, demo: DemoLayout) -> Iterator[DemoSteps]:
        """Yield the values of a demo in pieces; empty arrays, and arrays of unusual shape or length, are left out."""
        usual = self._layout.steps
        keys = [
            key
            for key, form in demo.per_step().items()
            if form.step == usual[key].step and form.is_numeric and form.shape[0] == demo.length
            if 0 not in form.step
        ]
        large = [key for key in keys if math.prod(usual[key].step) > _LARGE_STEP]
        small = [key for key in keys if key not in large]
        rows = max(1, SMALL_BYTES // max(1, sum(map(self._step_bytes, small))))
        for start in range(0, demo.length, rows):
            stop = min(demo.length, start + rows)
            arrays = {key: self._read(demo.name, key, start, stop) for key in small}
            readable = {key: array for key, array in arrays.items() if array is not None}
            yield DemoSteps(demo.name, start, readable, is_last=stop == demo.length)
        for key in large:
            rows = max(1, PIECE_BYTES // self._step_bytes(key))
            for start in range(0, demo.length, rows):
                array = self._read(demo.name, key, start, min(demo.length, start + rows))
                if array is not None:
                    yield DemoSteps(demo.name, start, {}, (key, array))

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
