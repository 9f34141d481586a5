"""Input of a report: a file, and the demos whose values are read."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.extents import Extents
from imitate.data.file.features import names_in
from imitate.data.file.hdf5_format import DemoFile, outcomes
from imitate.data.quality.doctor.diagnosis import examine
from imitate.data.quality.doctor.finding import DoctorReport
from imitate.data.quality.doctor.survey import DemoLayout, FileArray, FileLayout, layout_of
from imitate.errors import DatasetError

Array = NDArray[Any]
MAX_BYTES = 2 * 10**9
_PIECE_BYTES = 16 * 2**20
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ReportInput:
    """File and demos of a report.

    Attributes:
        file: the open file.
        filter_key: mask of the demos to report; None for all demos.
        demos: the reported demos; demos without steps are left out.
        sample: evenly spread demos whose values are read.
        layout: layout of the whole file.
        health: the doctor's report, for which only values of the sample were examined.
    """

    file: DemoFile
    filter_key: str | None
    demos: Sequence[DemoLayout]
    sample: Sequence[DemoLayout]
    layout: FileLayout
    health: DoctorReport

    @property
    def is_whole(self) -> bool:
        """True if the values of all demos are read."""
        return len(self.sample) == len(self.demos)

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """Names of the components of vectors, by array; {} if the file has none."""
        return names_in(self.file)

    @cached_property
    def masks(self) -> dict[str, list[str]]:
        """Filter keys and their demos; {} if they cannot be read."""
        try:
            return self.file.filter_keys()
        except DatasetError:
            return {}

    @cached_property
    def env_meta(self) -> dict[str, Any]:
        """Environment of the demos; {} if it cannot be read."""
        try:
            return self.file.env_meta
        except DatasetError:
            return {}

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment."""
        found = self.env_meta.get("env_kwargs")
        return found if isinstance(found, dict) else {}

    @cached_property
    def control_freq(self) -> float | None:
        """Control rate in Hz, or None if the file does not record it."""
        said = self.file.file_attrs.get("control_freq")
        try:
            rate = float(self.env_kwargs.get("control_freq", 0) if said is None else said)
        except (TypeError, ValueError):
            return None
        return rate if math.isfinite(rate) and rate > 0 else None

    @cached_property
    def outcomes(self) -> dict[str, bool | None]:
        """For each demo of the sample true if it solved its task, None if the file does not record the outcome."""
        names = [demo.name for demo in self.sample]
        try:
            return outcomes(self.file, names)
        except DatasetError:
            return dict.fromkeys(names)

    @cached_property
    def returns(self) -> dict[str, float]:
        """Sum of the rewards of each demo of the sample that has rewards."""
        found = {}
        for demo in self.sample:
            rewards = self.values(demo, "rewards", demo.length)
            if rewards is not None:
                found[demo.name] = float(rewards.sum(dtype=np.float64))
        return found

    def values(self, demo: DemoLayout, key: str, most: int) -> Array | None:
        """Return at most ``most`` evenly spread steps (n, D) of an array, without values that are not finite.

        Returns None if the demo has no such numeric array, its shape differs, or it cannot be read.
        """
        form, usual = demo.arrays.get(key), self.layout.steps.get(key)
        if form is None or usual is None or form.step != usual.step or not form.is_numeric:
            return None
        if form.shape[0] == 0:
            return None
        stride = max(1, math.ceil(form.shape[0] / most))
        try:
            found = np.concatenate(list(self._thinned(demo.name, key, form, stride)))
        except DatasetError:
            return None
        rows = found.reshape(len(found), -1)
        kept: Array = rows[np.isfinite(rows).all(axis=1)]
        return kept if len(kept) else None

    def _thinned(self, demo: str, key: str, form: FileArray, stride: int) -> Iterator[Array]:
        rows = max(1, _PIECE_BYTES // max(1, _step_bytes(form)) // stride) * stride
        for start in range(0, form.shape[0], rows):
            yield self.layout.extents.read(demo, key, start, min(form.shape[0], start + rows))[
                ::stride
            ]

    def pooled(self, key: str, most: int) -> Array | None:
        """Return evenly spread steps (n, D) of all demos of the sample, or None if there are no steps."""
        per_demo = max(1, most // max(1, len(self.sample)))
        found = [self.values(demo, key, per_demo) for demo in self.sample]
        arrays = [values for values in found if values is not None]
        return np.concatenate(arrays) if arrays else None


def subject_of(
    extents: Extents,
    *,
    filter_key: str | None,
    max_demos: int,
    on_demo: Progress = lambda done, total: None,
) -> ReportInput:
    """Choose the demos, and run the doctor on them.

    Args:
        extents: array locations of the open file.
        filter_key: mask of the demos to report; None for all demos.
        max_demos: largest number of demos whose values are read; at most :data:`MAX_BYTES` are read.
        on_demo: called after each demo with the number of processed demos and the number of all demos.

    Raises:
        DatasetError: there is no such filter key.
    """
    file, layout = extents.file, layout_of(extents)
    wanted = None if filter_key is None else set(file.demos(filter_key))
    demos = [d for d in layout.demos if d.length and (wanted is None or d.name in wanted)]
    sample = spread(demos, min(max_demos, affordable(demos)))
    health = examine(layout, on_demo, sample)
    return ReportInput(file, filter_key, demos, sample, layout, health)


def affordable(demos: Sequence[DemoLayout]) -> int:
    """Return the number of demos that can be read within :data:`MAX_BYTES`, at least 1."""
    sizes = [sum(d.length * _step_bytes(form) for form in d.per_step().values()) for d in demos]
    return max(1, int(MAX_BYTES / max(1.0, float(np.mean(sizes))))) if sizes else 0


def _step_bytes(form: FileArray) -> int:
    return math.prod(form.step) * form.dtype.itemsize


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most ``most`` evenly spread items, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, max(1, most))]
