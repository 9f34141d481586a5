"""``imitate dataset report``: describe a demonstration file in one HTML page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.dataset.curate import File, progress
from imitate.cli.options import FilterKey, Overwrite
from imitate.data.edit.target import Target
from imitate.data.quality.report.page import write_report
from imitate.data.quality.report.section import size
from imitate.system.text import counted


def mount(app: typer.Typer) -> None:
    """Add the command to ``imitate dataset``."""
    app.command("report")(report)


def report(
    file: File,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="HTML file to write; default: FILE_report.html beside the file."
        ),
    ] = None,
    filter_key: FilterKey = None,
    max_demos: Annotated[
        int,
        typer.Option("--max-demos", min=1, help="Largest number of demos whose values are read."),
    ] = 200,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page with numbers, plots, thumbnails and the doctor's findings.

    The page is self-contained: it can be mailed, printed, and opened without a network.
    """
    target = Target(
        out or file.with_name(f"{file.stem}_report.html"), source=file, overwrite=overwrite
    )
    with progress("report") as on_demo:
        subject = write_report(
            file, target, filter_key=filter_key, max_demos=max_demos, on_demo=on_demo
        )
    counts = counted(len(subject.demos), "demo")
    if not subject.is_whole:
        counts += f", values of {len(subject.sample)}"
    typer.echo(f"{target.path}: {counts}, {size(target.path.stat().st_size)}")
    if open_:
        webbrowser.open(target.path.resolve().as_uri())
