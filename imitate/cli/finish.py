"""``imitate dataset finish``: finish the file of an interrupted recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imitate.data.file.writer import finish_partial


def finish(
    partial: Annotated[
        Path,
        typer.Argument(help="The .partial file of a recording, or the name of its final file."),
    ],
) -> None:
    """Make a demonstration file from an interrupted recording.

    Complete episodes are kept; the interrupted one is lost. FILE.partial becomes FILE.
    """
    count = finish_partial(partial)
    file = partial.with_suffix("") if partial.suffix == ".partial" else partial
    typer.echo(f"{file}: {count} {'episode' if count == 1 else 'episodes'}")
