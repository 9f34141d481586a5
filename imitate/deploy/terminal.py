"""Keys of a terminal, one by one, and the events that they stand for. No package, no screen, also over ssh."""

from __future__ import annotations

import os
import select
import sys
from importlib.util import find_spec
from typing import Any

from imitate.errors import UserError

EVENTS = {
    "\n": "success",
    "\r": "success",
    "x": "failure",
    "\x7f": "discard",
    "\b": "discard",
    "z": "redo",
    ".": "end",
    "\x1b": "quit",
}
"""Events of keys: Enter, x, Backspace, z, full stop, Esc."""


class TerminalKeys:
    """The keys of standard input, without waiting for Enter and without showing them, until :meth:`close`.

    Raises:
        UserError: standard input is no terminal.
    """

    def __init__(self) -> None:
        if not self.present():
            raise UserError("the keyboard device needs a terminal: standard input is none")
        import termios
        import tty

        self._before: list[Any] | None = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)

    @staticmethod
    def present() -> bool:
        """Return True if standard input is a terminal, of a system that gives keys one by one."""
        return find_spec("termios") is not None and sys.stdin is not None and sys.stdin.isatty()

    def close(self) -> None:
        """Give the terminal back as it was."""
        before, self._before = self._before, None
        if before is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def read(self) -> str:
        """The keys that were pressed since the last call; the sequences of arrows and the like are left out.

        Raises:
            UserError: the terminal was closed.
        """
        text = b""
        while select.select([sys.stdin], [], [], 0)[0]:
            piece = os.read(sys.stdin.fileno(), 1024)
            if not piece:
                raise UserError("the terminal was closed")
            text += piece
        if len(text) > 1 and text.startswith(b"\x1b"):
            return ""
        return text.decode("utf-8", "ignore")
