"""Show the progress of a command: a bar if stderr is a terminal, otherwise a line every half minute."""

import sys
import threading
import time
from typing import Any, TextIO

import typer
from typing_extensions import Self

from imitate.train.console import HEARTBEAT_S, duration


class Progress:
    """Context manager that shows a bar, or lines such as ``eval: 12/50 episodes, 9 succeed, about 1 min 40 s left``.

    Args:
        total: amount of work in ``unit``, or None if unknown.
        unit: singular name of the units of work, such as ``episode``.
        what: name of the work, which begins each line, such as ``eval``.
        quiet: true to show nothing.
        stream: stream to print to; stderr by default.
        every_s: seconds between lines, if ``stream`` is not a terminal.
    """

    def __init__(
        self,
        total: float | None,
        unit: str,
        what: str,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        every_s: float = HEARTBEAT_S,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._total, self._unit, self._what, self._every_s = total, unit, what, every_s
        self._done, self._words, self._began = 0.0, "", time.monotonic()
        self._bar: Any = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._quiet = quiet

    def __enter__(self) -> Self:
        if self._quiet:
            return self
        if self._stream.isatty():
            from imitate.system.text import ProgressBar

            self._bar = ProgressBar(
                total=self._total, unit=self._unit, desc=self._what, file=self._stream
            )
        else:
            self._thread = threading.Thread(target=self._beat, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop showing the bar or printing lines."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def advance(self, count: float = 1, words: str = "") -> None:
        """Add ``count`` to the work done; ``words`` describe the state, such as ``9 succeed``."""
        self.reach(self._done + count, words=words)

    def reach(self, done: float, total: float | None = None, words: str = "") -> None:
        """Set the work done so far, and ``total`` if it has become known."""
        self._done, self._words = done, words
        self._total = self._total if total is None else total
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.set_postfix_str(words, refresh=False)
            self._bar.update(done - self._bar.n)

    def write(self, line: str) -> None:
        """Print a line that remains on standard output above the bar."""
        if self._bar is not None:
            self._bar.write(line)
        else:
            typer.echo(line)

    def line(self) -> str:
        """Return the progress as a line of text."""
        of = "" if self._total is None else f"/{self._total:g}"
        parts = [f"{self._what}: {self._done:g}{of} {self._unit}s", self._words]
        passed = time.monotonic() - self._began
        if self._total is not None and self._done > 0:
            left = passed * (self._total - self._done) / self._done
            parts.append(f"about {duration(left)} left")
        else:
            parts.append(f"for {duration(passed)}")
        return ", ".join(part for part in parts if part)

    def _beat(self) -> None:
        while not self._over.wait(self._every_s):
            self._stream.write(self.line() + "\n")
            self._stream.flush()
