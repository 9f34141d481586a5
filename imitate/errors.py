"""Errors that the user can mend.

Each message is one line that names the file, the demo or the key, what was found, what was wanted and what to do.
The command line prints it without a traceback and exits with 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

_NOT_PRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff]"
)
MOST_NAMES = 60
"""Largest number of names in an error message."""


class UserError(Exception):
    """Something in the user's input is wrong; the message names the remedy."""


class ConfigError(UserError):
    """A configuration that cannot be used."""


class DatasetError(UserError):
    """A demonstration file that cannot be used."""


class CheckpointError(UserError):
    """A checkpoint that cannot be used."""


class BundleError(UserError):
    """A bundle that cannot be read or written."""


class MissingPackageError(UserError):
    """An optional package is not installed; the message has the command that installs it."""


class EnvError(UserError):
    """An environment that cannot be made, or does not fit the policy or the data."""


class RewardError(EnvError):
    """An environment whose reward is not one number."""


class FileError(UserError, ValueError):
    """A small file that cannot be read: it is no text, no JSON, too large, or no regular file."""


class WireError(ValueError):
    """A message that is malformed, too large, or of a kind that is not allowed."""


class ClosedError(WireError, ConnectionError):
    """A connection that carries messages has ended; the error contains the reason."""


class NotFiniteError(UserError):
    """An observation or an action with NaN or infinity in it.

    Attributes:
        rows: for each row of a batch, whether it is one of them.
    """

    def __init__(self, message: str, rows: tuple[bool, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows


_OPTIONS: ContextVar[frozenset[str] | None] = ContextVar("options", default=None)
"""Options of the command that runs; None: no command, as in a call from Python or in a worker process."""


@contextmanager
def offering(options: Iterable[str]) -> Iterator[None]:
    """Give messages the options of the command that runs, so that they advise no others."""
    token = _OPTIONS.set(frozenset(options))
    try:
        yield
    finally:
        _OPTIONS.reset(token)


def offered(option: str) -> bool:
    """Return true if the command that runs has an option, or if no command runs."""
    options = _OPTIONS.get()
    return options is None or option in options


def printable(text: str) -> str:
    """Text in which nothing moves a terminal's cursor, changes its colours or cannot be encoded; lines stay lines."""
    return _NOT_PRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Words for an error message: the nearest valid name, or where none is near all of them, or a few of many."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close and (close[0].isascii() or not name.isascii()) and close[0].isprintable():
        return f"did you mean '{close[0]}'?"
    if close:
        return f"did you mean {ascii(close[0])}, which has other letters than it seems to have?"
    if len(names) > MOST_NAMES:
        return f"valid names are {', '.join(names[:5])} ... ({len(names)} in all)"
    return f"valid names: {', '.join(names)}" if names else "no name is valid here"


class Problems:
    """Mistakes that are reported together, although each alone would end the command."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def add(self, words: str) -> None:
        """Note a mistake."""
        self._words.append(words)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the mistake that the body raises, and go on after it."""
        try:
            yield
        except UserError as error:
            self.add(str(error))

    def check(self) -> None:
        """Raise a UserError with a line for each mistake, if there are any."""
        if self._words:
            raise UserError("\n".join(self._words))


class WorkerError(UserError):
    """Worker processes that cannot begin to work."""


class TrainingError(Exception):
    """Training had to stop; the message names the reason, what is intact and how to resume."""


class RobotStoppedError(TrainingError):
    """The robot on which a training learns was stopped; what was learned before is whole."""


class RobotError(RuntimeError):
    """Control ended because going on was not safe, or the robot failed. The robot was stopped."""


class EvaluationError(Exception):
    """An evaluation gave no result."""
