"""Layout of a file: arrays of each demo with their shapes and types; no values are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from imitate.data.curate.rewrite import is_per_step
from imitate.data.file.extents import Extents
from imitate.data.file.faults import is_channel_first
from imitate.data.file.hdf5_format import DemoFile
from imitate.errors import DatasetError


class Form(NamedTuple):
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
        arrays: form by path below the demo.
        said_length: the attribute ``num_samples``, or None.
    """

    name: str
    arrays: Mapping[str, Form]
    said_length: Any

    @property
    def length(self) -> int:
        """Number of steps, which is the length of its actions; 0 without actions."""
        actions = self.arrays.get("actions")
        return actions.shape[0] if actions else 0

    def per_step(self) -> dict[str, Form]:
        """The arrays with one value per step."""
        return {key: form for key, form in self.arrays.items() if is_per_step(key) and form.shape}


@dataclass(frozen=True)
class Layout:
    """Layout of a whole file.

    Attributes:
        file: the open file.
        extents: locations of its arrays, for reading.
        demos: demos that could be opened.
        broken: reasons why other demos could not be opened.
        steps: usual form of each array, which most demos have.
    """

    file: DemoFile
    extents: Extents
    demos: list[DemoLayout]
    broken: Mapping[str, str]
    steps: Mapping[str, Form]


def layout_of(extents: Extents) -> Layout:
    """Open every demo and array of a file."""
    file = extents.file
    demos, broken = [], {}
    for name in file.demos():
        demo = _demo(extents, name)
        if isinstance(demo, DemoLayout):
            demos.append(demo)
        else:
            broken[name] = demo
    return Layout(file, extents, demos, broken, _usual(demos))


def _demo(extents: Extents, name: str) -> DemoLayout | str:
    """Return a demo's layout, or the reason why it cannot be opened."""
    file = extents.file
    try:
        arrays = {key: Form(found.shape, found.dtype) for key, found in extents.of(name).items()}
        with file.reading(f"demo '{name}'"):
            said = file.group(name).attrs.get("num_samples")
        return DemoLayout(name, arrays, said.item() if isinstance(said, np.generic) else said)
    except DatasetError as error:
        return str(error).removeprefix(f"{file.path}: ")


def _usual(demos: list[DemoLayout]) -> dict[str, Form]:
    """Return the form that most demos have, by array; its number of steps is meaningless."""
    forms: dict[str, Counter[tuple[tuple[int, ...], np.dtype[Any]]]] = {}
    for demo in demos:
        for key, form in demo.per_step().items():
            forms.setdefault(key, Counter())[form.step, form.dtype] += 1
    usual = {}
    for key, counts in sorted(forms.items()):
        step, dtype = counts.most_common(1)[0][0]
        usual[key] = Form((0, *step), dtype)
    return usual
