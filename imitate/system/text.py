"""Formatting of numbers, rates and intervals, and progress bars, for the output of commands.

The progress bars use a lock of this process alone. tqdm's default lock is shared with forked processes: if one of them
is killed while it draws, the lock is never released, and the others wait forever.
"""

import math
import os
import threading
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

INFO = "info:"
"""Prefix of reward sources in ``algo.rewards`` that read a number from the environment's ``info``."""
PART = "reward:"
"""Prefix of reward sources that read one component of a vector of rewards; the component's index follows it."""
SIGNALS = "signals/"
"""Prefix of the demo arrays with numbers from the environment's ``info``."""
SKILL, PREVIOUS_ACTION, DURATION = "skill", "previous_action", "duration"
"""Keys of observations that environment wrappers add."""
MASK = "mask"
"""Modality of an observation (C,) that marks the allowed choices of a discrete action; it is not an encoder input."""
ACTION_MASK = "action_mask"
"""Name of the action mask among the observations of environments."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 episode``, ``3 episodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def rate_text(rate: float, interval: Sequence[float | None] | None = None, digits: int = 0) -> str:
    """Return a rate in percent with its interval: ``96 % (87 - 99)``."""
    low, high = interval or (None, None)
    text = f"{100 * rate:.{digits}f} %"
    if low is None or high is None:
        return text
    return f"{text} ({100 * low:.{digits}f} - {100 * high:.{digits}f})"


def mean_text(
    mean: float | None,
    std: float | None = None,
    interval: Sequence[float | None] | None = None,
    label: str = "",
) -> str:
    """Return a mean with standard deviation and interval: ``172 ± 41 (160 - 184)``; "not finite" if it is not a number.

    The label is written before the interval.
    """
    if mean is None or not math.isfinite(mean):
        return "not finite"
    text = (
        significant(mean, 4) if std is None else f"{significant(mean, 4)} ± {significant(std, 2)}"
    )
    ends = interval_text(interval)
    return text if ends is None else f"{text} ({label}{ends})"


def interval_text(interval: Sequence[float | None] | None) -> str | None:
    """Return an interval, ``160 - 184`` or ``-12 to 3``; None if it is unknown."""
    low, high = interval or (None, None)
    if low is None or high is None:
        return None
    return f"{significant(low, 4)} {'to' if low < 0 else '-'} {significant(high, 4)}"


def significant(value: float, digits: int) -> str:
    """Format a number with ``digits`` significant digits, without an exponent below a million."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e6 else text


class ProgressBar(tqdm):  # type: ignore[misc]
    """Progress bar of tqdm; bars of several processes may overwrite each other on the screen."""


class DownloadBar(ProgressBar):
    """Progress bar in bytes, which is shown only on a terminal."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(desc=name, unit="B", unit_scale=True, **{"disable": None, **options})

    def received(self, count: int, total: int | None) -> None:
        """Advance the bar by new bytes; ``total`` is the final number of bytes, or None if unknown."""
        self.total = total
        self.update(count)


def _renew_lock() -> None:
    ProgressBar.set_lock(threading.RLock())


_renew_lock()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        after_in_child=_renew_lock
    )  # another thread may hold the lock during the fork
