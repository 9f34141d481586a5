"""``imitate dataset set-env`` and ``migrate-env``: change the environment that a file of demonstrations names."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from imitate.cli.dataset.actions import replay_line
from imitate.cli.dataset.curate import File, InPlace, Out, progress, target_of
from imitate.cli.options import AsJson, Overwrite, json_object
from imitate.collect.replay import RECORDED_ENV_ARGS, MigrationReport, migrate_file
from imitate.system.text import counted


def set_env(
    file: File,
    env: Annotated[
        str,
        typer.Option(
            "--env",
            help="A gymnasium name (module:Name-v0), a robosuite task, a JSON file of env_args, or a demonstration "
            "file, whose environment is used.",
        ),
    ],
    type_: Annotated[
        int | None,
        typer.Option(
            "--type",
            help="Type of the environment: 1 robosuite, 2 gymnasium, 4 a real robot; default: chosen by its name.",
        ),
    ] = None,
    kwargs: Annotated[
        str | None,
        typer.Option(
            "--kwargs",
            metavar="JSON",
            help="Arguments for making the environment, as a JSON object.",
        ),
    ] = None,
    out: Out = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Change FILE itself instead of writing --out; its demos are neither changed nor "
            "copied.",
        ),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write the environment of the demonstrations into the file, such as a simulation of a real robot.

    Training rollouts, eval, dagger and playback then open this environment. The previous entry is printed.

    For example: imitate dataset set-env own.hdf5 --env myarm.envs:Reach-v0 --in-place
    """
    from imitate.data import DatasetFile
    from imitate.data.edit.edits import set_env_args
    from imitate.evaluate.environments import named_env

    target = target_of(file, out, in_place, overwrite, keeps_old=False)
    with DatasetFile(file) as read:
        own = read.env_meta
    named = named_env(env, own)
    if type_ is not None:
        named["type"] = type_
    if kwargs is not None:
        named["env_kwargs"] = json_object("--kwargs", kwargs)
    with progress("set-env", "MB") as on_mb:
        before = set_env_args(file, target, named, on_mb)
    typer.echo(f"{target.path}: env_args {json.dumps(named)}")
    typer.echo(f"before: {json.dumps(before)}")


def migrate_env(
    file: File,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    check: Annotated[
        int,
        typer.Option(
            "--check", min=0, help="Number of demos to replay as a test, spread over the file."
        ),
    ] = 3,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the demos and print the changes, but write nothing."),
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


def mount(app: typer.Typer) -> None:
    """Add the commands of this file to ``imitate dataset``."""
    app.command("set-env")(set_env)
    app.command("migrate-env")(migrate_env)
