"""``imitate sweep`` and ``imitate plot``: one run for each combination of values, and curves of several runs."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from imitate.cli.options import AsJson, Dataset, Epochs, On, OutputDir, Quiet, SetKeys, TrainDevice
from imitate.cli.reports.layout import table
from imitate.system.processes import LOCAL
from imitate.system.statistics import Statistic

if TYPE_CHECKING:
    from imitate.train.sweep.sweep import SweepResult


StopEarly = Literal["asha"]
Metric = Literal["success_rate", "return", "valid_loss", "train_loss"]
StatisticOption = Annotated[
    Statistic,
    typer.Option(
        "--statistic",
        help="Statistic over the seeds to show; iqm is the interquartile mean, which needs 4 or more seeds.",
    ),
]


def sweep(
    configs: Annotated[
        list[str] | None,
        typer.Argument(
            help="JSON files, or names of bundled configurations, such as robosuite/lift/bc.",
            metavar="CONFIG...",
        ),
    ] = None,
    config_option: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="A further CONFIG, written as in imitate train; may be repeated.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            "-g",
            help="Values to try, such as train.seed=[1,2,3], or 'A,B=[[1,2],[3,4]]' for keys that vary together.",
            metavar="KEY=LIST",
        ),
    ] = None,
    set_: SetKeys = None,
    dataset: Dataset = None,
    output_dir: OutputDir = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="Name of the sweep's folder in OUTPUT_DIR; default: experiment.name."
        ),
    ] = None,
    device: TrainDevice = None,
    epochs: Epochs = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            help="Number of runs at a time; default: half of the cores, or on a cluster as "
            "many as fit.",
        ),
    ] = None,
    on: On = LOCAL,
    cpus: Annotated[
        int | None,
        typer.Option(
            "--cpus",
            min=1,
            help="Number of CPU cores per run, which also limits the threads of the run.",
        ),
    ] = None,
    gpus: Annotated[
        int,
        typer.Option(
            "--gpus", min=0, help="Number of GPUs reserved for each run; 0: runs share GPUs."
        ),
    ] = 0,
    hang_minutes: Annotated[
        float,
        typer.Option(
            "--hang-minutes",
            min=0.0,
            help="Minutes without output after which a run counts as hung and is ended and resumed; 0 disables this.",
        ),
    ] = 60.0,
    stop_early: Annotated[
        StopEarly | None,
        typer.Option(
            "--stop-early",
            help="Stop weak runs early; asha: asynchronous successive halving, in which only the best runs train to "
            "the end.",
        ),
    ] = None,
    metric: Annotated[
        Metric,
        typer.Option("--metric", help="With --stop-early: measure by which runs are compared."),
    ] = "success_rate",
    reduction: Annotated[
        int,
        typer.Option(
            "--reduction",
            min=2,
            help="With --stop-early: of every N runs only the best one is trained further, for N times as many "
            "epochs.",
        ),
    ] = 3,
    first_epochs: Annotated[
        int,
        typer.Option(
            "--first-epochs",
            min=1,
            help="With --stop-early: number of epochs that every run trains before the first comparison.",
        ),
    ] = 1,
    statistic: StatisticOption = "mean",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their state, but train nothing.")
    ] = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Train once for each combination of values, in parallel processes.

    The values to try are given by --grid, or by a list in the configuration where a key takes a single value ("seed":
    [1, 2, 3]). Several configurations, such as one for each algorithm, are compared in one sweep. The same command
    resumes it: finished runs are kept, interrupted and failed ones are resumed.

    Runs that differ only in train.seed are one setting with its mean and 95 % interval over seeds. With --stop-early
    asha all runs are trained for --first-epochs, the best third of them for three times as many, and so on.

    The folder OUTPUT_DIR/NAME gets the runs, results.json (every run), settings.json, .csv, .md and .tex (over seeds),
    curves.png and curves.pdf. Exit codes: 0 all done; 1 a run failed; 130 interrupted.
    """
    from imitate.errors import TrainingError
    from imitate.system.text import ProgressBar
    from imitate.train.sweep.state import Halving
    from imitate.train.sweep.sweep import Resources, Sweep, SweepRun, default_workers, table_rows

    own = {"train.device": device, "train.num_epochs": epochs}
    work = Sweep(
        [*(configs or ()), *(config_option or ())],
        grid or (),
        overrides=[*(set_ or ()), *(f"{key}={v}" for key, v in own.items() if v is not None)],
        dataset=dataset,
        output_dir=output_dir,
        name=name,
    )
    work.require_seeds(statistic)
    if dry_run:
        states = [work.state(run) for run in work.runs]
        typer.echo("\n".join(table(*table_rows(states))))
        return
    bar = ProgressBar(total=len(work.runs), unit="run", disable=True if quiet else None)

    def tell(run: SweepRun) -> None:
        if run.status == "running":
            return
        bar.update()
        if not quiet:
            bar.write(f"{run.name}: {run.status}", file=sys.stderr if json_ else sys.stdout)

    with bar:
        resources = Resources(
            on=on,
            workers=workers or (default_workers(cpus) if on == LOCAL else None),
            cpus=cpus,
            gpus=gpus,
            hang_s=60.0 * hang_minutes or None,
        )
        halving = Halving(metric, reduction, first_epochs) if stop_early else None
        try:
            result = work.run(None, tell, statistic, resources=resources, halving=halving)
        except TrainingError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None
    if json_:
        typer.echo((result.folder / "results.json").read_text(encoding="utf-8"))
    else:
        typer.echo("\n".join(table(*table_rows(result.runs))))
        _print_settings(result, statistic)
        if result.interrupted:
            typer.echo("interrupted; the same command resumes")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _print_settings(result: SweepResult, statistic: Statistic) -> None:
    """Print the table over seeds if a setting has several seeds, and the paths of the saved tables and plots."""
    from imitate.train.sweep.results_table import caption, cells

    if any(setting.wanted > 1 for setting in result.settings):
        header, rows = cells(result.settings, statistic)
        typer.echo("\n".join(["", *table(header, rows), caption(result.settings, statistic)]))
    if result.picture is not None:
        typer.echo(f"{result.picture}, curves.pdf, settings.csv, settings.md, settings.tex")


class Over(str, Enum):
    """Quantity on the horizontal axis of the curves."""

    step = "step"
    epoch = "epoch"
    cpu = "cpu"


class PanelName(str, Enum):
    """Quantity that a panel of the picture shows."""

    loss = "loss"
    success = "success"
    return_ = "return"


def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders that contain run folders.", metavar="RUN..."),
    ],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="Image file to write, .png, .pdf or .svg; may be repeated. Default: curves.png.",
        ),
    ] = None,
    over: Annotated[
        Over, typer.Option("--over", help="Horizontal axis: updates, epochs or CPU seconds.")
    ] = Over.step,
    statistic: StatisticOption = "mean",
    show: Annotated[
        list[PanelName] | None,
        typer.Option(
            "--show",
            help="Panel to draw; may be repeated. Default: loss and success, or for online RL return and success. "
            "Losses of different scales are not among the default panels; if the loss is named here, each scale "
            "gets a panel.",
        ),
    ] = None,
    table_: Annotated[
        list[Path] | None,
        typer.Option(
            "--table",
            help="File to which the table of results is written, .csv, .md, .tex or .json; may be "
            "repeated.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            help="Text to show instead of the name of a line, as in lift_bc=BC; may be repeated.",
            metavar="NAME=TEXT",
        ),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Draw a line per run instead of one per setting.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Plot the curves of runs in one picture, and print a table of their final results.

    Runs that differ only in train.seed are one setting. Its line is the mean over seeds, its band the 95 % interval
    (Student's t; for iqm and median a percentile bootstrap). For a setting of one run the band is the Wilson interval
    of its episodes. A line is named after its sweep or experiment, or else after the values in which it differs from
    the others.
    """
    from imitate.system.run_folder import to_json
    from imitate.train.sweep.curves import read_curves, renamed
    from imitate.train.sweep.over_seeds import each_run, require_seeds, settings_of
    from imitate.train.sweep.plot import draw_settings
    from imitate.train.sweep.results_table import as_json, caption, cells, save_table

    curves = read_curves(runs)
    settings = renamed(each_run(curves) if each else settings_of(curves), label or ())
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
        typer.echo(caption(settings, statistic))
    typer.echo("\n".join(map(str, written)))
