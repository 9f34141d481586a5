"""Errors that the user can mend.

Each message is one line that names the file, the demo or the key, what was found, what was wanted and what to do.
The command line prints it without a traceback and exits with 2.
"""

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
    """A small file that cannot be read: it is not text or not JSON, is too large, or is not a regular file."""


class WireError(ValueError):
    """A message that is malformed, too large, or of a kind that is not allowed."""


class ClosedError(WireError, ConnectionError):
    """A connection that carries messages has ended; the error contains the reason."""


class NotFiniteError(UserError):
    """An observation or an action contains NaN or infinity.

    Attributes:
        rows: for each row of a batch, true if the row has such a value; empty if there is no batch.
    """

    def __init__(self, message: str, rows: tuple[bool, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows


_OPTIONS: ContextVar[frozenset[str] | None] = ContextVar("options", default=None)
"""Options of the command that runs; None if no command runs, as in a call from Python or in a worker process."""


@contextmanager
def offering(options: Iterable[str]) -> Iterator[None]:
    """Record the options of the command that runs in the body, so that error messages advise no other options."""
    token = _OPTIONS.set(frozenset(options))
    try:
        yield
    finally:
        _OPTIONS.reset(token)


def offered(option: str) -> bool:
    """Return true if the running command has this option, or if no command runs."""
    options = _OPTIONS.get()
    return options is None or option in options


def printable(text: str) -> str:
    """Escape control characters and characters that cannot be encoded, so that a terminal shows them; keep newlines."""
    return _NOT_PRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return advice for an error message: the nearest valid name, or if none is similar, a list of valid names."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close and (close[0].isascii() or not name.isascii()) and close[0].isprintable():
        return f"did you mean '{close[0]}'?"
    if close:
        return f"did you mean {ascii(close[0])}, which has characters that look like others?"
    if len(names) > MOST_NAMES:
        return f"valid names are {', '.join(names[:5])} ... ({len(names)} in all)"
    return f"valid names: {', '.join(names)}" if names else "no name is valid here"


class Problems:
    """Collects mistakes of the user, so that a command reports all of them in one error."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def add(self, words: str) -> None:
        """Add a mistake, described by ``words``, to the report."""
        self._words.append(words)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Add a UserError that the body raises to the report instead of raising it."""
        try:
            yield
        except UserError as error:
            self.add(str(error))

    def check(self) -> None:
        """Raise a UserError with a line for each mistake, if there are any."""
        if self._words:
            raise UserError("\n".join(self._words))


class WorkerError(UserError):
    """A worker process could not be prepared for its work."""


class TrainingError(Exception):
    """Training had to stop; the message names the reason, what is intact and how to resume."""


class RobotStoppedError(TrainingError):
    """The robot on which a training learns was stopped; everything learned before the stop is saved."""


class RobotError(RuntimeError):
    """Control ended because it was not safe to continue, or because the robot failed. The robot was stopped."""


class EvaluationError(Exception):
    """An evaluation gave no result."""
