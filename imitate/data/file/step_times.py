"""Checks of the recorded times of an episode's steps: order, intervals, and agreement with the dataset's rate."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.system.text import counted

CLOCK = re.compile(r"(^|/)(times?|time_?stamps?|clock)(_(s|sec|ms|us|ns))?$")
"""Pattern of the names of time arrays."""
_SPREAD = 0.5  # largest deviation of an interval, as a fraction of the usual one
_RATE = 0.1  # largest deviation of a rate, as a fraction of it
_UNITS_S = (1.0, 1e-3, 1e-6, 1e-9)


@dataclass(frozen=True)
class Ticks:
    """Intervals between the steps of an episode.

    Attributes:
        interval: the usual interval, in the unit of the times.
        back: steps that are not later than the step before.
        uneven: steps after an interval that differs from the usual one by more than half of it.
    """

    interval: float
    back: NDArray[np.int64]
    uneven: NDArray[np.int64]


def ticks_of(times: NDArray[Any]) -> Ticks:
    """Compare times (T, ...), T at least 2; if a step has several numbers, the first one is used."""
    first = times.reshape(len(times), -1)[:, 0]
    # differences of signed integers are exact; those of unsigned integers would wrap around
    ticks = np.diff(first.astype(np.int64 if first.dtype.kind in "iub" else np.float64))
    usual = float(
        np.sort(ticks)[(len(ticks) - 1) // 2]
    )  # the smaller of the two middle values, because the larger may contain a lost step
    even = np.abs(ticks - usual) <= _SPREAD * abs(usual)
    return Ticks(usual, np.flatnonzero(~(ticks > 0)) + 1, np.flatnonzero(~even) + 1)


def is_coarse(times: NDArray[Any], rate_hz: float) -> bool:
    """Return true if the type of the times cannot distinguish successive steps, as float32 for seconds since 1970."""
    if times.dtype.kind != "f" or not np.isfinite(times).all():
        return False
    return bool(np.spacing(np.abs(times).max()) * rate_hz > _SPREAD)


def contradicted_hz(interval: float, rate_hz: float) -> float | None:
    """Return the rate in Hz of an interval if it contradicts ``rate_hz`` in each unit from s to ns, else None."""
    if not interval > 0 or any(abs(interval * unit * rate_hz - 1) <= _RATE for unit in _UNITS_S):
        return None
    return 1 / interval


class TimeArray:
    """Check of one array of times over all episodes.

    Args:
        rate_hz: rate of the dataset in Hz; None if unknown.
    """

    def __init__(self, rate_hz: float | None) -> None:
        self._rate_hz = rate_hz
        self._episodes = 0
        self._first = ""
        self._other = ""
        self._passes_one = False

    def see(self, times: NDArray[Any], episode: str) -> NDArray[np.int64]:
        """Process the times (T, ...) of an episode or of a piece of it; return the steps with irregular times."""
        if len(times) < 3 or times.dtype.kind not in "fiu" or is_coarse(times, self._rate_hz or 0):
            return np.zeros(0, np.int64)
        ticks = ticks_of(times)
        first = times.reshape(len(times), -1)[:, 0]
        self._passes_one |= bool(first.max() > 1)
        hz = None if self._rate_hz is None else contradicted_hz(ticks.interval, self._rate_hz)
        if hz is not None and not self._other:
            self._other = f"steps of {episode} are {ticks.interval:.4g} apart ({hz:.4g} Hz)"
        faults = np.union1d(ticks.back, ticks.uneven)
        if len(faults):
            at, self._episodes = int(faults[0]), self._episodes + 1
            self._first = (
                self._first or f"{first[at - 1]:.10g} is followed by {first[at]:.10g} in {episode}"
            )
        return faults

    def doubt(self) -> str | None:
        """Describe irregular times, or times that contradict the rate; None if all is well.

        Times that never exceed 1 are taken for a phase, which has no rate.
        """
        if self._episodes:
            return (
                f"time does not run evenly in {counted(self._episodes, 'episode')} ({self._first}): steps "
                "were lost or came twice"
            )
        if self._other and self._passes_one:
            return f"{self._other}, but the rate is {self._rate_hz:g} Hz: one of the two is wrong"
        return None
