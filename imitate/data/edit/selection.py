"""Selection of demos by number, name, success, length or return."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from imitate.data.file.hdf5_format import DemoFile, outcomes
from imitate.errors import DatasetError, nearest


@dataclass(frozen=True)
class Selection:
    """Conditions that a selected demo must fulfil; an attribute that is None is no condition.

    Attributes:
        filter_key: mask of the demos that may be selected.
        demos: demos that may be selected: names, or ranges such as ``demo_3-demo_7``.
        success: true for demos that solve their task, see :func:`outcomes`; false for demos that do not.
        min_length: smallest number of steps.
        max_length: largest number of steps.
        min_return: smallest sum of rewards.
        max_return: largest sum of rewards.
        first: largest number of selected demos.
        without: demos that must not be selected: names or ranges.
        seed: seed for drawing ``first`` demos at random; None to take the first ones.
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
        wanted = named_demos(file, selection.demos)
        names = [name for name in names if name in wanted]
    without = named_demos(file, selection.without)
    names = [name for name in names if name not in without]
    if selection.success is not None:
        names = with_outcome(file, names, selection.success)
    names = [name for name in names if _fits(file, name, selection)]
    if selection.first is None:
        return names
    if selection.seed is None:
        return names[: selection.first]
    drawn = np.random.default_rng(selection.seed).permutation(len(names))[: selection.first]
    return [names[i] for i in sorted(drawn.tolist())]


def named_demos(file: DemoFile, words: Sequence[str]) -> set[str]:
    """Return the demos that are given by names, or by ranges such as ``demo_3-demo_7``, which include both ends.

    Raises:
        DatasetError: a demo does not exist; the message names the nearest one.
    """
    known = {name: place for place, name in enumerate(file.demos())}
    found = set[str]()
    for word in words:
        ends = [word] if word in known else word.split("-", 1)
        for name in ends:
            if name not in known:
                hint = f"; --first {word} takes the first {word}" if word.isdecimal() else ""
                raise DatasetError(
                    f"{file.path}: there is no demo '{name}'; {nearest(name, known)}{hint}"
                )
        first, last = known[ends[0]], known[ends[-1]]
        found.update(list(known)[first : last + 1])
    return found


def _fits(file: DemoFile, demo: str, selection: Selection) -> bool:
    if (selection.min_length, selection.max_length) != (None, None):
        length = file.length(demo)
        if not _between(length, selection.min_length, selection.max_length):
            return False
    if (selection.min_return, selection.max_return) == (None, None):
        return True
    gained = sum(float(r.sum(dtype=np.float64)) for _, r in file.pieces(demo, "rewards"))
    return _between(gained, selection.min_return, selection.max_return)


def _between(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def with_outcome(file: DemoFile, demos: Sequence[str], success: bool) -> list[str]:
    """Return the demos that solve their task, or the demos that do not.

    Raises:
        DatasetError: the file does not record whether a demo solves its task.
    """
    found = outcomes(file, demos)
    unknown = next((demo for demo, outcome in found.items() if outcome is None), None)
    if unknown is not None:
        raise DatasetError(
            f"{file.path}: demo '{unknown}' has neither the attribute 'success' nor rewards of 0 and 1 that show it: "
            "select by another condition"
        )
    return [demo for demo, outcome in found.items() if outcome is success]
