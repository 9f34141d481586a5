"""A pseudo-terminal in the place of standard input."""

import os
import pty
import select
import sys

import pytest


class Terminal:
    def __init__(self, monkeypatch):
        self.master, slave = pty.openpty()
        self.stdin = os.fdopen(slave, "r")
        monkeypatch.setattr(sys, "stdin", self.stdin)

    def press(self, keys):
        """Press keys that a device takes one by one, and wait until they have come."""
        os.write(self.master, keys.encode())
        select.select([self.stdin], [], [])

    def close(self):
        os.close(self.master)
        self.stdin.close()


@pytest.fixture
def terminal(monkeypatch):
    terminal = Terminal(monkeypatch)
    yield terminal
    terminal.close()
