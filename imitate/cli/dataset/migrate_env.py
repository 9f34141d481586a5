"""``imitate dataset migrate-env``: migrate a file of another robosuite version to the installed one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from imitate.cli.dataset.actions import replay_line
from imitate.cli.dataset.curate import File, InPlace, Out, progress, target_of
from imitate.cli.options import AsJson, Overwrite
from imitate.collect.migrate import RECORDED_ENV_ARGS, MigrationReport, migrate_file
from imitate.system.text import counted


def mount(app: typer.Typer) -> None:
    """Add the command to ``imitate dataset``."""
    app.command("migrate-env")(migrate_env)


def migrate_env(
    file: File,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    check: Annotated[
        int, typer.Option("--check", min=0, help="Number of demos to replay, spread over the file.")
    ] = 3,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print what would change; write nothing.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Rewrite a file's environment for the installed robosuite.

    Controllers, names and the scenes of the demos are translated from robosuite 1.0 - 1.4 to 1.5; states, actions and
    observations stay unchanged. Some demos are replayed by their states and actions before anything is written.
    """
    target = None if dry_run else target_of(file, out, in_place, overwrite)
    with progress("migrate-env") as on_demo:
        report = migrate_file(file, target, check=check, on_demo=on_demo)
    typer.echo(json.dumps(report.to_dict()) if json_ else "\n".join(_lines(report)))


def _lines(report: MigrationReport) -> list[str]:
    if not report.changes and not report.scenes:
        return [
            f"{report.path}: fits robosuite {report.robosuite}: there is nothing to change, "
            "and no file is written"
        ]
    lines = [f"  {change}" for change in report.changes]
    scenes = ", ".join(f"{what} {count}" for what, count in report.scenes.items())
    lines += [f"  model_file of the demos: {scenes}"] if scenes else []
    lines += [f"  {demo}: {replay_line(replay)}" for demo, replay in report.replays.items()]
    lines += [f"  not checked: {report.not_checked}"] if report.not_checked else []
    if report.written:
        return [
            *lines,
            f"{report.path}: {counted(report.demos, 'demo')} for robosuite {report.robosuite}; the old "
            f"description is kept as attribute '{RECORDED_ENV_ARGS}'",
        ]
    return [*lines, f"{report.path}: nothing is written (--dry-run)"]
