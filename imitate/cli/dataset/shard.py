"""``imitate dataset shard`` and ``imitate dataset index``: write folders of shards and their index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.options import Overwrite, Quiet
from imitate.cli.progress import Progress
from imitate.config.data_paths import INDEX_NAME, url_of
from imitate.data.shards.index import ShardIndex
from imitate.system.text import counted


def mount(app: typer.Typer) -> None:
    """Add the commands of this file to ``imitate dataset``."""
    app.command("shard")(shard)
    app.command("index")(index)


def shard(
    files: Annotated[list[Path], typer.Argument(help="HDF5 files or LeRobot folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the shards, or its URL.")],
    per_shard: Annotated[
        int, typer.Option("--per-shard", min=1, help="Number of demos per shard.")
    ] = 1000,
    quiet: Quiet = False,
) -> None:
    """Split files into shards with an index: a folder that can be used as one dataset.

    The same command resumes an interrupted one. Nothing is overwritten.
    """
    from imitate.data.edit.shard import shard_files

    with Progress(None, "demo", "shard", quiet=quiet) as bar:
        made = shard_files(
            files, out, per_shard, on_demo=lambda done, total: bar.reach(done, total=total)
        )
    typer.echo(f"{url_of(out) or out}: {_words(made)}")


def index(
    folder: Annotated[Path, typer.Argument(help="Folder of HDF5 files.")],
    overwrite: Overwrite = False,
) -> None:
    """Write the index of a folder's HDF5 files, so that the folder can be used as one dataset."""
    from imitate.data.shards.index import write_index
    from imitate.errors import UserError

    path = folder / INDEX_NAME
    if path.exists() and not overwrite:
        raise UserError(f"{path}: exists already: to replace it, add --overwrite")
    typer.echo(f"{folder}: {_words(write_index(folder))}")


def _words(index: ShardIndex) -> str:
    lengths = list(index.lengths())
    return (
        f"{counted(len(index.shards), 'shard')}, {counted(len(lengths), 'demo')}, {counted(sum(lengths), 'step')}, "
        f"{sum(shard.bytes for shard in index.shards) / 1e6:.1f} MB"
    )
