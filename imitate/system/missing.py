"""Error messages for paths that do not exist, with the most similar existing name."""

import os
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from imitate.system.recognition import diagnosis

_NEAR = 0.7
"""Smallest similarity, from 0 to 1, at which a name is suggested."""
_NEAR_STEM = 0.6
"""Smallest similarity of a suggested name without the file name extensions."""
_MOST_ENTRIES = 5000


def no_such(path: str | Path, what: str = "file", remedy: str = "") -> str:
    """Return the error message for a path that does not exist or is not a regular file.

    Args:
        path: the path as the user wrote it.
        what: the kind of file or folder that was wanted.
        remedy: advice if there is no similar name.
    """
    if os.path.exists(Path(path).expanduser()):
        return diagnosis(path) or f"{path}: is not a regular file, so it is not a {what}"
    near = nearest_path(path)
    if near is None:
        known = diagnosis(path)
        if known is not None:
            return known
    hint = remedy if near is None else f"did you mean '{near}'?"
    return f"{path}: there is no such {what}" + (f"; {hint}" if hint else "")


def nearest_path(path: str | Path) -> str | None:
    """Return the existing path that is most similar to a missing one, or None if there is no similar path."""
    place = Path(path).expanduser()
    with suppress(OSError, ValueError):
        parts = [place, *place.parents]
        missing = ([one for one in parts if not one.exists()] or parts)[-1]
        rest = place.relative_to(missing)
        beside = [one.name for one in islice(missing.parent.iterdir(), _MOST_ENTRIES)]
        for name in get_close_matches(missing.name, beside, n=3, cutoff=_NEAR):
            found = missing.with_name(name) / rest
            is_like = get_close_matches(missing.stem, [Path(name).stem], cutoff=_NEAR_STEM)
            if is_like and found.exists():
                return str(found)
    return None
