"""Selection of demos by number, name, success, length or return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from imitate.data.file.hdf5_format import DemoFile
from imitate.errors import DatasetError, nearest


@dataclass(frozen=True)
class Selection:
    """Conditions for demos, all of which a selected demo fulfils; None: no condition.

    Attributes:
        filter_key: select only demos of this mask.
        demos: select only these demos.
        success: true: demos that solve their task, by the attribute ``success`` or else a reward above 0; false:
            others.
        min_length: smallest number of steps.
        max_length: largest number of steps.
        min_return: smallest sum of rewards.
        max_return: largest sum of rewards.
        first: largest number of demos that are selected.
        without: demos that are not selected.
        seed: draw ``first`` demos at random with this seed; None: take the first ones.
    """

    filter_key: str | None = None
    demos: Sequence[str] | None = None
    success: bool | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_return: float | None = None
    max_return: float | None = None
    first: int | None = None
    seed: int | None = None
    without: Sequence[str] = ()


def select(file: DemoFile, selection: Selection) -> list[str]:
    """Return the names of the demos that fulfil all conditions, in natural order.

    Raises:
        DatasetError: a demo does not exist, or a condition needs a value that is not recorded.
    """
    names = file.demos(selection.filter_key)
    if selection.demos is not None:
        check_demos(file, selection.demos)
        wanted = set(selection.demos)
        names = [name for name in names if name in wanted]
    check_demos(file, selection.without)
    names = [name for name in names if name not in set(selection.without)]
    names = [name for name in names if _fits(file, name, selection)]
    if selection.first is None or selection.first >= len(names):
        return names
    if selection.seed is None:
        return names[: selection.first]
    drawn = np.random.default_rng(selection.seed).permutation(len(names))[: selection.first]
    return [names[i] for i in sorted(drawn.tolist())]


def check_demos(file: DemoFile, demos: Sequence[str]) -> None:
    """Refuse names that are not demos of the file.

    Raises:
        DatasetError: a demo does not exist; the message names the nearest one.
    """
    known = file.demos()
    for name in demos:
        if name not in known:
            raise DatasetError(f"{file.path}: there is no demo '{name}'; {nearest(name, known)}")


def _fits(file: DemoFile, demo: str, selection: Selection) -> bool:
    if selection.success is not None and solved(file, demo) != selection.success:
        return False
    if (selection.min_length, selection.max_length) != (None, None):
        length = file.length(demo)
        if not _between(length, selection.min_length, selection.max_length):
            return False
    if (selection.min_return, selection.max_return) == (None, None):
        return True
    gained = float(file.read(demo, "rewards").sum(dtype=np.float64))
    return _between(gained, selection.min_return, selection.max_return)


def _between(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def solved(file: DemoFile, demo: str) -> bool:
    """Return true if a demo solves its task.

    Raises:
        DatasetError: there is neither the attribute ``success`` nor rewards.
    """
    said = file.success(demo)
    if said is not None:
        return said
    if file.has(demo, "rewards"):
        return bool((file.read(demo, "rewards") > 0).any())
    raise DatasetError(
        f"{file.path}: demo '{demo}' has neither the attribute 'success' nor 'rewards': select by another condition"
    )
