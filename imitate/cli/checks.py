"""``imitate check-env`` checks an environment; ``imitate check-algo`` checks a configuration's training in it."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Annotated

import typer

from imitate.cli.options import FAILED, AsJson, Dataset, SetKeys
from imitate.errors import printable

if TYPE_CHECKING:
    from imitate.checks.env import CheckFinding


MARKS = {
    "ok": "ok     ",
    "warning": "WARNING",
    "error": "ERROR  ",
    "untried": "-      ",
    "absent": "-      ",
}


def of_environment(
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
            "--steps",
            min=1,
            help="Number of random steps within which an episode should end; a warning is printed "
            "if it does not.",
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
        raise typer.Exit(FAILED)


WIDTH = len("observations")


def of_configuration(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="JSON file, or the name of a bundled configuration, such as "
            "sac/sac_pendulum or robosuite/lift/bc.",
        ),
    ],
    dataset: Dataset = None,
    set_: SetKeys = None,
    json_: AsJson = False,
) -> None:
    r"""Try a configuration in seconds: environment, policy and trainer together, in one process and a small run.

    \b
    environment   opens, and passes the checks of imitate check-env
    observations  the environment has the observations that the configuration names
    networks      can be built for them
    steps         (online RL) some episodes are collected, at random and by the policy
    actions       shape, finite; the same state and random numbers give the same action
    loss          updates run, every logged number is finite
    gradients     each trainable weight gets a finite gradient
    weights       weights with a gradient change
    targets       target networks change only by their own updates
    checkpoint    is saved, loads as a policy, gives the same actions
    training      an epoch of the run itself, interrupted by a signal
    resume        the interrupted run is resumed
    evaluation    two episodes of the saved policy

    No environment is opened for offline learning with experiment.rollout.enabled = false.
    A check that depends on a failed one is skipped (-). Networks stay as configured; batches, episodes, buffers and
    epochs are made small, and nothing is left behind.

    Exit codes: 0 all checks pass; 1 a check fails; 2 invalid configuration.
    """
    from imitate.checks.algo import check_algo
    from imitate.evaluate.environments import trust_named
    from imitate.train.setup import load_resolved

    def say(finding: CheckFinding) -> None:
        if not json_:
            typer.echo(f"{MARKS[finding.verdict]}  {finding.name:<{WIDTH}}  {finding.words}")

    loaded = load_resolved(config, set_ or (), dataset, None)
    trust_named(loaded)  # as in imitate train: a configuration that the user names is trusted
    findings = check_algo(loaded, say)
    if json_:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    if any(finding.verdict == "error" for finding in findings):
        raise typer.Exit(FAILED)
