"""Collection into a folder of shards: its files, and the index that is written last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imitate.errors import DatasetError
from imitate.simulation.collected_files import Piece

# Imports of the index stand in the functions: each worker of a collection imports this file, and none needs them.


def shards_of(folder: Path, num: int, per_shard: int) -> list[Piece]:
    """Divide a collection into the files ``000.hdf5``, ``001.hdf5`` ... of a folder.

    Args:
        folder: of the files.
        num: episodes.
        per_shard: episodes of each file but the last.
    """
    starts = range(0, num, per_shard)
    width = max(3, len(str(len(starts) - 1)))
    return [
        Piece(folder / f"{number:0{width}d}.hdf5", range(first, min(first + per_shard, num)))
        for number, first in enumerate(starts)
    ]


def prepare_folder(folder: Path, pieces: Sequence[Piece], *, overwrite: bool, resume: bool) -> None:
    """Check that a folder is one for these shards; an index, which says that all are there, is taken away.

    Raises:
        DatasetError: it is a file, or holds something that is neither replaced nor continued.
    """
    from imitate.config.data_paths import INDEX_NAME

    if folder.exists() and not folder.is_dir():
        raise DatasetError(f"{folder}: is a file: name a folder with --out for --shard-demos")
    own = {piece.path.name for piece in pieces}
    there = sorted(path.name for path in folder.glob("*.hdf5"))
    foreign = [name for name in there if name not in own]
    if foreign:
        raise DatasetError(
            f"{folder}: holds {foreign[0]}, which is none of the {len(pieces)} shards: choose an empty folder, or the "
            "options of the collection that is there"
        )
    if there and not (overwrite or resume):
        raise DatasetError(
            f"{folder}: holds {there[0]}: --resume continues what is there, --overwrite starts again"
        )
    if overwrite or any(not piece.path.exists() for piece in pieces):
        (folder / INDEX_NAME).unlink(missing_ok=True)


def finish_folder(folder: Path, pieces: Sequence[Piece]) -> None:
    """Write the index of the shards that there are; one none of whose episodes could be recorded is missing."""
    from imitate.config.data_paths import INDEX_NAME
    from imitate.data.shards.describe import write_index

    if not (folder / INDEX_NAME).exists():
        write_index(folder, [piece.path for piece in pieces if piece.path.exists()])
