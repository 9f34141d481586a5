"""``imitate check-algo``: check that a configuration's environment, policy and trainer work together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from imitate.cli.check_env import FOUND, MARKS
from imitate.cli.options import AsJson, Dataset, SetKeys

if TYPE_CHECKING:
    from imitate.checks.env import CheckFinding

WIDTH = len("observations")


def command(
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
    observations  the environment gives those of the configuration
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
    trust_named(loaded)  # as in imitate train: the user names the configuration
    findings = check_algo(loaded, say)
    if json_:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    if any(finding.verdict == "error" for finding in findings):
        raise typer.Exit(FOUND)
