"""``imitate plot``: curves of several runs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Over(str, Enum):
    """The horizontal axis."""

    step = "step"
    epoch = "epoch"
    cpu = "cpu"


def plot(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that hold runs.", metavar="RUN...")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The .png (or .svg, .pdf) to write.")
    ] = Path("curves.png"),
    over: Annotated[
        Over, typer.Option("--over", help="Horizontal axis: updates, epochs or CPU seconds.")
    ] = Over.step,
) -> None:
    """Draw learning and success curves of several runs into one picture.

    Left the losses (dashed: validation), right the success rates with their 95 % intervals.
    """
    from imitate.train.plot import draw, read_curves

    typer.echo(str(draw(read_curves(runs), out, over.value)))
