"""Change of a few bytes of a file: in place by a journaled write, or in a copy that is otherwise equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from imitate.data.curate.target import Target, check_is_hdf5
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.confined import ConfinedFile
from imitate.data.file.journal import changing
from imitate.system.plain_files import fresh

_MB = 10**6
_PIECE_BYTES = 16 * 2**20
Progress = Callable[[int, int], None]


def change(
    source: Path, target: Target, put: Callable[[ConfinedFile], None], on_mb: Progress
) -> None:
    """Change a copy that is otherwise equal byte for byte, or change the file itself atomically.

    Args:
        source: the file.
        target: the copy, or the file itself.
        put: makes the change.
        on_mb: called with the number of copied megabytes and the number of all megabytes.
    """
    if target.out is None:
        check_is_hdf5(target.path)
        with changing(target.path) as journaled, ConfinedFile(journaled, "r+") as file:
            put(file)
        return
    with DatasetFile(source) as read:
        hdf5_path = read.hdf5_path
    with target.writing() as part:
        _copy(hdf5_path, part, on_mb)
        with ConfinedFile(part, "r+") as new:
            put(new)


def _copy(source: Path, part: Path, on_mb: Progress) -> None:
    total = source.stat().st_size // _MB
    with source.open("rb") as old, fresh(part) as new:
        while piece := old.read(_PIECE_BYTES):
            new.write(piece)
            on_mb(new.tell() // _MB, total)
