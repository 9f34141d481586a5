"""Standard output kept for the results of this process, while a library in it prints there too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any


@contextmanager
def own_stdout(foreign: str = "ray_") -> Iterator[None]:
    """Let only this program print to stdout: file descriptor 1 and a library's threads lead to stderr meanwhile.

    Args:
        foreign: beginning of the names of the library's threads.
    """
    before = sys.stdout
    before.flush()
    with ExitStack() as stack:
        kept = os.dup(1)
        stack.callback(os.close, kept)
        ours: IO[str] = before
        if _descriptor(before) == 1:
            ours = stack.enter_context(
                open(kept, "w", encoding=before.encoding, errors=before.errors, closefd=False)
            )
        os.dup2(2, 1)
        stack.callback(os.dup2, kept, 1)
        routed: Any = _Routed(ours, foreign)
        sys.stdout = routed
        try:
            yield
        finally:
            if sys.stdout is routed:
                sys.stdout = before
            ours.flush()


class _Routed:
    """Text stream that redirects a library's threads to stderr and passes all others through."""

    def __init__(self, ours: IO[str], foreign: str) -> None:
        self._ours, self._foreign = ours, foreign

    def write(self, text: str) -> int:
        count = self._stream().write(text)
        if "\n" in text:
            self.flush()
        return count

    def flush(self) -> None:
        self._stream().flush()

    def _stream(self) -> IO[str]:
        is_foreign = threading.current_thread().name.startswith(self._foreign)
        return sys.stderr if is_foreign else self._ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)


def _descriptor(stream: IO[str]) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
