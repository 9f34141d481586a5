"""``imitate sweep``: one run for each combination of values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.reports.layout import table


def sweep(
    config: Annotated[
        str,
        typer.Argument(help="JSON file, or a name such as robosuite/lift/bc.", metavar="CONFIG"),
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", "-g", help="Values to try: train.seed=[1,2,3].", metavar="KEY=LIST"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value for any key, in all runs.", metavar="KEY=VALUE"),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option("--dataset", "-d", help="HDF5 file, in place of train.data.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="In place of train.output_dir.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Folder of the sweep; the experiment's name.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs at a time; half of the cores.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the runs and what is done of them.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print results.json.")] = False,
) -> None:
    """Train once for each combination of values, in parallel processes.

    Values to try are lists in the configuration where the key takes a single value ("seed": [1, 2, 3]), --grid, or
    robomimic's meta.hp_keys and meta.hp_values. The same command again goes on: what is over is left alone, what was
    interrupted or failed is resumed. The folder OUTPUT_DIR/NAME gets the runs, results.json and curves.png. Exit codes:
    0 all done; 1 a run failed; 130 interrupted.
    """
    from tqdm import tqdm

    from imitate.train.sweep import Sweep, SweepRun, default_workers, table_rows

    work = Sweep(
        config, grid or (), overrides=set_ or (), dataset=dataset, output_dir=output_dir, name=name
    )
    if dry_run:
        states = [work.state(run) for run in work.runs]
        typer.echo("\n".join(table(*table_rows(work.axes, states))))
        return
    bar = tqdm(total=len(work.runs), unit="run", disable=None)

    def tell(run: SweepRun) -> None:
        if run.status == "running":
            return
        bar.update()
        bar.write(f"{run.name}: {run.status}")

    with bar:
        result = work.run(workers or default_workers(), tell)
    if json_:
        typer.echo((result.folder / "results.json").read_text(encoding="utf-8"))
    else:
        typer.echo("\n".join(table(*table_rows(work.axes, result.runs))))
        if result.picture is not None:
            typer.echo(str(result.picture))
        if result.interrupted:
            typer.echo("interrupted; the same command goes on")
    if result.exit_code:
        raise typer.Exit(result.exit_code)
