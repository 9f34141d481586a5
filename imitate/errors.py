"""Errors that the user can mend.

Each message is one line that names the file, the demo or the key, what was found, what was wanted and what to do.
The command line prints it without a traceback and exits with 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST_NAMES = 60
"""So many names are told in an error message, not more."""


class UserError(Exception):
    """Something in the user's input is wrong; the message says what to do."""


class ConfigError(UserError):
    """A configuration that cannot be used."""


class DatasetError(UserError):
    """A demonstration file that cannot be used."""


class CheckpointError(UserError):
    """A checkpoint that cannot be used."""


class EnvError(UserError):
    """An environment that cannot be made, or does not fit the policy or the data."""


class NotFiniteError(UserError):
    """An observation or an action with NaN or infinity in it.

    Attributes:
        rows: for each row of a batch, whether it is one of them.
    """

    def __init__(self, message: str, rows: tuple[bool, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows


def nearest(name: str, valid: Iterable[str]) -> str:
    """Words for an error message: the nearest valid name, or where none is near all of them, or a few of many."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    if len(names) > MOST_NAMES:
        return f"valid names are {', '.join(names[:5])} ... ({len(names)} in all)"
    return f"valid names: {', '.join(names)}" if names else "there are none"
