"""``imitate dataset download``: download public demonstration files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.options import AsJson, Overwrite
from imitate.cli.reports.layout import table
from imitate.data.download.catalogue import (
    Downloaded,
    PublicFile,
    chosen,
    download_public,
    load_catalogue,
)
from imitate.data.download.download import RETRIES
from imitate.errors import UserError
from imitate.system.text import DownloadBar


def download(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of files, such as robomimic/lift/ph/low_dim or 'robomimic/*/ph/*'."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the catalogue and stop.")] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to write to; files keep their names.")
    ] = Path("datasets"),
    url: Annotated[
        str | None,
        typer.Option("--url", help="Another server with the same paths, such as a mirror."),
    ] = None,
    overwrite: Overwrite = False,
    retries: Annotated[
        int,
        typer.Option("--retries", min=0, help="Number of consecutive attempts without progress."),
    ] = RETRIES,
    as_json: AsJson = False,
) -> None:
    """Download public demonstrations of robomimic and MimicGen.

    An interrupted download is kept as FILE.part; the same command resumes it. Sizes and checksums are compared with the
    catalogue if it contains them.
    """
    catalogue = load_catalogue(base_url=url)
    if list_:
        shown = chosen(catalogue, names) if names else catalogue
        typer.echo(_as_json(shown) if as_json else "\n".join(_listing(shown)))
        return
    if not names:
        raise UserError(
            "no files named: name some (imitate dataset download robomimic/lift/ph/low_dim), "
            "or see --list"
        )
    results = []
    for file in chosen(catalogue, names):
        if not as_json and file.licence is None:
            typer.echo(
                f"{file.name}: the publisher states no licence: ask before you pass it on", err=True
            )
        with DownloadBar(file.name, leave=False) as bar:
            result = download_public(file, out / file.place, overwrite, retries, bar.received)
        results.append(result)
        if not as_json:
            typer.echo("\n".join(_outcome(file, result)))
    if as_json:
        typer.echo(json.dumps([vars(result) for result in results], indent=2))


def _outcome(file: PublicFile, result: Downloaded) -> list[str]:
    came = "was there already" if result.fetched_bytes == 0 else "downloaded"
    if result.resumed_at and result.fetched_bytes:
        came = f"downloaded from byte {result.resumed_at} on"
    lines = [f"{result.path}: {came}, {_size(result.size_bytes)}, verified by {result.verified}"]
    if result.verified != "sha256":
        what = "size and HDF5 structure" if result.verified == "size" else "HDF5 structure"
        lines.append(
            f"  no checksum is known for this file: verified by {what} only; its SHA-256 is {result.sha256}"
        )
    lines.append(
        f"  licence {file.licence or 'not stated'}; evaluation horizon {file.horizon} steps"
    )
    return lines


def _listing(files: Sequence[PublicFile]) -> list[str]:
    rows = [
        (
            file.name,
            _size(file.size_bytes)
            if file.size_bytes is not None
            else (f"~ {_size(file.about_bytes)}" if file.about_bytes is not None else "?"),
            "yes" if file.sha256 else "no",
            file.licence or "not stated",
            file.note or "",
        )
        for file in files
    ]
    return list(table(("name", "size", "checksum", "licence", ""), rows))


def _as_json(files: Sequence[PublicFile]) -> str:
    return json.dumps(
        [{**vars(file), "place": str(file.place)} for file in files],
        indent=2,
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
