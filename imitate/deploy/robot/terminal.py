"""Read keys of a terminal one by one; works without further packages or a screen, also over ssh."""

import codecs
import os
import re
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
"""Events by the byte of the key: Enter, x, Backspace, z, full stop, Esc."""
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
"""Byte sequences of special keys such as arrows, which begin with the byte of Esc."""


class TerminalKeys:
    """Reads the keys of standard input without waiting for Enter and without echo, until :meth:`close`.

    Args:
        user: name of the device or option that needs the keys, for error messages.

    Raises:
        UserError: standard input is not a terminal.
    """

    def __init__(self, user: str = "the keyboard device") -> None:
        if not self.present():
            raise UserError(
                f"{user} needs a terminal, but standard input is not one: run the command in a terminal, "
                "without a pipe"
            )
        import termios
        import tty

        self._before: list[Any] | None = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)

    @staticmethod
    def present() -> bool:
        """Return True if standard input is a terminal, on a system that delivers keys one by one."""
        return find_spec("termios") is not None and sys.stdin is not None and sys.stdin.isatty()

    def close(self) -> None:
        """Restore the terminal."""
        before, self._before = self._before, None
        if before is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def read(self) -> str:
        """Return the keys pressed since the last call, without escape sequences such as arrow keys.

        Raises:
            UserError: the terminal was closed.
        """
        text = b""
        while select.select([sys.stdin], [], [], 0)[0]:
            text += self._bytes(1024)
        return _SEQUENCE.sub(b"", text).decode("utf-8", "ignore")

    def wait(self) -> str:
        """Wait for the next key; return Escape for special keys such as arrows.

        Raises:
            UserError: the terminal was closed.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        key = ""
        while not key:
            key = decoder.decode(self._bytes(1))
        if key == "\x1b":
            while select.select([sys.stdin], [], [], 0.01)[0]:
                self._bytes(1)
        return key

    def line(self, prompt: str) -> str:
        """Ask for a line of text; Backspace removes the last character, Enter ends."""
        text = ""
        show(prompt)
        while (key := self.wait()) not in ("\n", "\r"):
            if key in ("\x7f", "\b"):
                if text:
                    text = text[:-1]
                    show("\b \b")
            elif key.isprintable():
                text += key
                show(key)
        show("\n")
        return text.strip()

    @staticmethod
    def _bytes(size: int) -> bytes:
        piece = os.read(sys.stdin.fileno(), size)
        if not piece:
            raise UserError("the terminal was closed")
        return piece


def show(text: str) -> None:
    """Write text for the person at the terminal, on standard error."""
    sys.stderr.write(text)
    sys.stderr.flush()
