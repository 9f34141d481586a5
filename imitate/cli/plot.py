"""``imitate plot``: plot curves and final results of several runs, over seeds."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.reports.layout import table
from imitate.functional.over_seeds import Statistic


class Over(str, Enum):
    """The horizontal axis."""

    step = "step"
    epoch = "epoch"
    cpu = "cpu"


class Panel(str, Enum):
    """A panel of the picture."""

    loss = "loss"
    success = "success"
    return_ = "return"


def plot(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that hold runs.", metavar="RUN...")
    ],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="Image to write, .png, .pdf or .svg; may be repeated. Default: curves.png.",
        ),
    ] = None,
    over: Annotated[
        Over, typer.Option("--over", help="Horizontal axis: updates, epochs or CPU seconds.")
    ] = Over.step,
    statistic: Annotated[
        Statistic,
        typer.Option(
            "--statistic",
            help="Statistic over the seeds; iqm is the interquartile mean, for 4 or more seeds.",
        ),
    ] = "mean",
    show: Annotated[
        list[Panel] | None,
        typer.Option(
            "--show",
            help="Panel to draw; may be repeated. Default: loss and success, for online RL "
            "return and success.",
        ),
    ] = None,
    table_: Annotated[
        list[Path] | None,
        typer.Option(
            "--table", help="File for the table, .csv, .md, .tex or .json; may be repeated."
        ),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Draw a line per run instead of one per setting.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Plot the curves of runs in one picture, and print a table of their final results.

    Runs that differ only in train.seed are one setting: a line and a band, the mean and its 95 % interval over seeds
    (Student's t; for iqm and median a percentile bootstrap). A setting of one run has the Wilson interval of its
    episodes. Dashed losses are validation losses.
    """
    from imitate.system.run_folder import to_json
    from imitate.train.over_seeds import Setting, require_seeds, settings_of
    from imitate.train.plot import draw_settings, read_curves
    from imitate.train.results_table import as_json, caption, cells, save_table

    curves = read_curves(runs)
    alone = [Setting(curve.label, {}, (curve,), 1) for curve in curves]
    settings = alone if each else settings_of(curves)
    require_seeds(settings, statistic)
    pictures = draw_settings(
        settings,
        out or [Path("curves.png")],
        over.value,
        statistic,
        [panel.value for panel in show or ()],
    )
    written = [*pictures, *(save_table(settings, statistic, path) for path in table_ or ())]
    if json_:
        typer.echo(to_json(as_json(settings, statistic), indent=2))
        return
    typer.echo("\n".join(table(*cells(settings, statistic))))
    if len(settings) < len(curves):
        typer.echo(caption(statistic))
    typer.echo("\n".join(map(str, written)))
