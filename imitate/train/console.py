"""Console output of a run: lines, one progress bar with the remaining time, and the log file in the run folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from imitate.errors import printable
from imitate.system.plain_files import appended

if TYPE_CHECKING:
    from imitate.train.setup import Setup

HEARTBEAT_S = 30.0
"""Longest time in seconds without a line if there is no bar."""


class Console:
    """Prints one line per epoch. A terminal also shows a bar for the whole run; elsewhere a line appears regularly.

    Attributes:
        words: text beside the bar's progress.
    """

    def __init__(
        self, stream: TextIO | None = None, *, quiet: bool = False, log: Path | None = None
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self.log = log
        self.words = ""
        self._bar: Any = None
        self._shown = 0.0
        self._spoken = time.monotonic()

    @property
    def interactive(self) -> bool:
        """True if the output is a terminal that can show a bar."""
        return not self.quiet and self.stream.isatty()

    def say(self, text: str, *, always: bool = False) -> None:
        """Write one line; with `always` also if the console is quiet."""
        if self.log is not None:
            with appended(self.log) as handle:
                handle.write(text + "\n")
        if self.quiet and not always:
            return
        if self._bar is not None:
            self._bar.clear()
        self._spoken = time.monotonic()
        self.stream.write(printable(text) + "\n")
        self.stream.flush()
        if self._bar is not None:
            self._bar.refresh()

    def pulse(self, words: Callable[[], str]) -> None:
        """Write a line about work in progress, if there is no bar and the last line is half a minute old."""
        if self.quiet or self.interactive:
            return
        if time.monotonic() - self._spoken >= HEARTBEAT_S:
            self.say(words())

    def start_bar(self, total: int, done: int) -> None:
        """End the previous bar, if there is one, and begin a bar of ``total`` steps."""
        self.close_bar()
        self._done = done
        if self.interactive:
            from imitate.system.text import ProgressBar

            self._bar = ProgressBar(
                total=total, initial=done, file=self.stream, unit="step", dynamic_ncols=True
            )

    def advance(self, done: int) -> None:
        """Move the bar to `done` steps; cheap enough for every step (it draws five times a second)."""
        if self._bar is None:
            return
        self._done = done
        now = time.perf_counter()
        if now - self._shown > 0.2:
            self._shown = now
            self._bar.set_postfix_str(self.words, refresh=False)
            self._bar.update(done - self._bar.n)

    def close_bar(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.update(self._done - self._bar.n)
            self._bar.close()
            self._bar = None


def duration(seconds: float) -> str:
    """Format seconds in words: 3.2 s, 4 min 05 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def rate(per_second: float) -> str:
    """Format a rate per second, with at least two digits: 0.21, 3.5, 1234."""
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.2g}"


FEWEST_STEPS = 3
LEAST_S = 2.0
WORTH_TELLING_S = 60.0
LONG_S = 1200.0
SLOW_STEP_S = 3.0
ADVICE = (
    "images are slow on a CPU with a large encoder: `imitate config init FILE` writes a "
    "configuration with a small one (ShallowConv, crops), as in robosuite/lift/bc_image; or "
    "train on a GPU"
)


class Forecast:
    """Forecast of the training's remaining time, printed once.

    Args:
        total: number of steps of the whole training.
        unit: name of a step, in the plural.
        images_on_cpu: true if the training learns from images without a GPU.
    """

    def __init__(self, total: int, unit: str, *, images_on_cpu: bool = False) -> None:
        self._total, self._unit, self._images_on_cpu = total, unit, images_on_cpu
        self._first: tuple[int, float] | None = None
        self._said = False

    def line(self, step: int) -> str | None:
        """Return the forecast's line once, as soon as it is known and useful; otherwise None.

        The first step is left out of the measurement, because libraries choose their kernels in it.

        Args:
            step: number of steps so far.
        """
        if self._said:
            return None
        now = time.perf_counter()
        if self._first is None:
            self._first = step, now
            return None
        done, passed = step - self._first[0], now - self._first[1]
        if done < FEWEST_STEPS or passed < LEAST_S:
            return None
        self._said = True
        left = (self._total - step) * passed / done
        if left < WORTH_TELLING_S:
            return None
        words = (
            f"about {duration(left)} for this training: {self._total - step} {self._unit} at "
            f"{rate(done / passed)} per s, without rollouts and validation"
        )
        is_slow = left > LONG_S or passed / done > SLOW_STEP_S
        return f"{words}; {ADVICE}" if self._images_on_cpu and is_slow else words


def images_on_cpu(setup: Setup) -> bool:
    """Return true if a training learns from images without a GPU."""
    kinds = setup.config.observation.modalities_of_all().values()
    return setup.device.type == "cpu" and any(kind in ("rgb", "depth") for kind in kinds)
