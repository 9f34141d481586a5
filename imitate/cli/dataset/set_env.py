"""``imitate dataset set-env``: write the environment of a file's demonstrations."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from imitate.cli.dataset.curate import File, Out, progress, target_of
from imitate.cli.options import Overwrite
from imitate.errors import ConfigError


def set_env(
    file: File,
    env: Annotated[
        str,
        typer.Option(
            "--env",
            help="A gymnasium name (module:Name-v0), a robosuite task, a JSON file of env_args, or a demonstration "
            "file, for its environment.",
        ),
    ],
    type_: Annotated[
        int | None,
        typer.Option(
            "--type", help="1 robosuite, 2 gymnasium, 4 real robot; default: by the name."
        ),
    ] = None,
    kwargs: Annotated[
        str | None,
        typer.Option(
            "--kwargs", metavar="JSON", help="Arguments of the environment, a JSON object."
        ),
    ] = None,
    out: Out = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Write into FILE itself; its demos are neither changed nor copied."
        ),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write the environment of the demonstrations into the file, such as a simulation of a real robot.

    Training rollouts, eval, dagger and playback then open it. The previous entry is printed.

    For example: imitate dataset set-env own.hdf5 --env myarm.envs:Reach-v0 --in-place
    """
    from imitate.data import DatasetFile
    from imitate.data.edit.small_changes import set_env_args
    from imitate.evaluate.environments import named_env

    target = target_of(file, out, in_place, overwrite, keeps_old=False)
    with DatasetFile(file) as read:
        own = read.env_meta
    named = named_env(env, own)
    if type_ is not None:
        named["type"] = type_
    if kwargs is not None:
        named["env_kwargs"] = _object(kwargs)
    with progress("set-env", "MB") as on_mb:
        before = set_env_args(file, target, named, on_mb)
    typer.echo(f"{target.path}: env_args {json.dumps(named)}")
    typer.echo(f"before: {json.dumps(before)}")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--kwargs: {text} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"--kwargs: {text}: expected a JSON object, such as '{{\"max_steps\": 200}}'"
        )
    return value


def mount(app: typer.Typer) -> None:
    """Add the command to ``imitate dataset``."""
    app.command("set-env")(set_env)
