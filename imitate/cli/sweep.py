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
        help="Statistic over the seeds; iqm is the interquartile mean, for 4 or more seeds.",
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
            "--config", "-c", help="The same as CONFIG, for consistency with imitate train."
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
        typer.Option("--name", help="Name of the sweep's folder; default: the experiment's name."),
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
        typer.Option("--cpus", min=1, help="Cores of each run; its threads are limited to them."),
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
            help="A run that writes nothing for this many minutes is ended and resumed; 0: "
            "no limit.",
        ),
    ] = 60.0,
    stop_early: Annotated[
        StopEarly | None,
        typer.Option(
            "--stop-early",
            help="asha: asynchronous successive halving; only the best runs train to the end.",
        ),
    ] = None,
    metric: Annotated[
        Metric,
        typer.Option("--metric", help="With --stop-early: the measure by which runs are compared."),
    ] = "success_rate",
    reduction: Annotated[
        int,
        typer.Option(
            "--reduction",
            min=2,
            help="With --stop-early: one of this many runs is trained further.",
        ),
    ] = 3,
    first_epochs: Annotated[
        int,
        typer.Option(
            "--first-epochs",
            min=1,
            help="With --stop-early: number of epochs that every run trains.",
        ),
    ] = 1,
    statistic: StatisticOption = "mean",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the runs and their state.")
    ] = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Train once for each combination of values, in parallel processes.

    Values to try are lists in the configuration where the key takes a single value ("seed": [1, 2, 3]), and --grid.
    Several configurations, such as one for each algorithm, are compared in one sweep. The same command resumes it:
    finished runs are kept, interrupted and failed ones are resumed.

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
    """Print the table over seeds if there are several, and the paths of the saved table and plot."""
    from imitate.train.sweep.results_table import caption, cells

    if any(setting.wanted > 1 for setting in result.settings):
        header, rows = cells(result.settings, statistic)
        typer.echo("\n".join(["", *table(header, rows), caption(result.settings, statistic)]))
    if result.picture is not None:
        typer.echo(f"{result.picture}, curves.pdf, settings.csv, settings.md, settings.tex")


class Over(str, Enum):
    """The horizontal axis."""

    step = "step"
    epoch = "epoch"
    cpu = "cpu"


class PanelName(str, Enum):
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
    statistic: StatisticOption = "mean",
    show: Annotated[
        list[PanelName] | None,
        typer.Option(
            "--show",
            help="Panel to draw; may be repeated. Default: loss and success, for online RL "
            "return and success. Losses of different scales are left out, or have a panel each.",
        ),
    ] = None,
    table_: Annotated[
        list[Path] | None,
        typer.Option(
            "--table", help="File for the table, .csv, .md, .tex or .json; may be repeated."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            help="Name to show for a line: lift_bc=BC; may be repeated.",
            metavar="NAME=TEXT",
        ),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Draw a line per run instead of one per setting.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Plot the curves of runs in one picture, and print a table of their final results.

    Runs that differ only in train.seed are one setting: a line and a band, the mean and its 95 % interval over seeds
    (Student's t; for iqm and median a percentile bootstrap). A setting of one run has the Wilson interval of its
    episodes. A line has the name of its sweep or experiment, else the values in which it differs.
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
