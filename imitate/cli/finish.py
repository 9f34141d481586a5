"""``imitate dataset finish``: a demonstration file from an interrupted recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imitate.data.file.writer import finish_partial


def finish(
    partial: Annotated[
        Path, typer.Argument(help="The .partial that a recording left, or the file it was to be.")
    ],
) -> None:
    """Make a demonstration file of an interrupted recording.

    Whole episodes are kept; the one that was running is lost. FILE.partial becomes FILE.
    """
    count = finish_partial(partial)
    file = partial.with_suffix("") if partial.suffix == ".partial" else partial
    typer.echo(f"{file}: {count} {'episode' if count == 1 else 'episodes'}")
