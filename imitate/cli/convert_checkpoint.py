"""``imitate convert-checkpoint``: a checkpoint of ours as one of robomimic's, or the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imitate.errors import CheckpointError


def command(
    source: Annotated[Path, typer.Argument(help="Checkpoint, ours or robomimic's.")],
    target: Annotated[Path, typer.Argument(help="File to write.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="robomimic-0.5 (also for 0.4), robomimic-0.3, or imitate for a file of ours.",
        ),
    ] = "robomimic-0.5",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace TARGET.")] = False,
) -> None:
    """Write a checkpoint in another toolkit's layout.

    The policy in it acts as this one does, but for one thing: robomimic does not clip actions to their limits. What
    robomimic has nothing for is refused by name. Optimizers are not written for robomimic: resume there with
    experiment.ckpt_path.
    """
    from imitate.policy.checkpoint import load_checkpoint, save_checkpoint
    from imitate.policy.export import to_robomimic

    if target.exists() and not overwrite:
        raise CheckpointError(f"{target}: exists already; add --overwrite, or choose another name")
    ckpt = load_checkpoint(source)
    if to != "imitate":
        try:
            ckpt = to_robomimic(ckpt, to)
        except CheckpointError as error:
            raise CheckpointError(f"{source}: {error}") from error
    save_checkpoint(ckpt, target)
    typer.echo(f"{target}: {ckpt['algo_name']}, for {to}")
