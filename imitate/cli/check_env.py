"""``imitate check-env``: check an environment for online RL and evaluation."""

from __future__ import annotations

import functools
import json
from typing import Annotated

import typer

from imitate.cli.options import AsJson
from imitate.errors import printable

FOUND = 1
MARKS = {
    "ok": "ok     ",
    "warning": "WARNING",
    "error": "ERROR  ",
    "untried": "-      ",
    "absent": "-      ",
}


def command(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="A gymnasium name (module:Name-v0 imports the module), a JSON file of env_args, or an HDF5 file of "
            "demonstrations.",
        ),
    ],
    steps: Annotated[
        int,
        typer.Option(
            "--steps", min=1, help="Number of random steps within which an episode should end."
        ),
    ] = 1000,
    json_: AsJson = False,
) -> None:
    """Check an environment: gymnasium's own checks, limits, observations, seeds, episode ends, success, states.

    Exit codes: 0 usable, perhaps with warnings; 1 something is broken.
    """
    from imitate.checks.env import check_env
    from imitate.envs import make_env
    from imitate.evaluate.environments import named_env

    meta = named_env(env)
    findings = check_env(functools.partial(make_env, meta, team=True), meta, steps=steps)
    if json_:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            line = f"{MARKS[finding.verdict]}  {finding.name:<{width}}  {finding.words}"
            typer.echo(printable(line))
    if any(finding.verdict == "error" for finding in findings):
        raise typer.Exit(FOUND)
