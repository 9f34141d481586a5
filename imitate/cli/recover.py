"""``imitate dataset recover``: recover a file after an interrupted change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imitate.data.file.journal import is_being_written, journal_of, roll_back, unfinished_words
from imitate.errors import DatasetError


def recover(
    file: Annotated[Path, typer.Argument(help="The file whose change was interrupted.")],
) -> None:
    """Undo an interrupted change of a file.

    If a change in place (split, set-env, delete ... --in-place) is killed, it leaves FILE.journal. This command
    restores FILE to its state before the change. A journal that belongs to another file, for example after a copy over
    FILE, is moved aside.
    """
    file = file.expanduser()
    if not file.is_file():
        raise DatasetError(f"{file}: {unfinished_words(file) or 'there is no such file'}")
    if is_being_written(file):
        raise DatasetError(f"{file}: another process is changing it: wait for it or stop it")
    if not journal_of(file).exists():
        typer.echo(f"{file}: there is nothing to recover")
        return
    try:
        was = roll_back(file)
    except OSError as error:
        raise DatasetError(f"{file}: cannot be recovered ({error.strerror})") from error
    typer.echo(
        f"{file}: {'is as it was before the change' if was else 'there was nothing to recover'}"
    )
