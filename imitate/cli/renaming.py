"""The option ``--rename``, and a message on names that are saved in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imitate.errors import printable
from imitate.policy.renaming import Rename, rename_words

RenameObs = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="NEW=OLD",
        help="Observation NEW of the environment or robot is the policy's OLD, as in agent_pos=state; may be repeated.",
    ),
]


def tell_saved_names(path: Path, saved: Rename | None) -> None:
    """Print, to stderr, the names of observations that are saved in a checkpoint."""
    if saved:
        typer.echo(printable(f"{path}: takes {rename_words(saved)}, as saved in it"), err=True)
