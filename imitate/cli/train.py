"""``imitate train``: train a policy."""

from pathlib import Path
from typing import Annotated, Any

import typer

from imitate.cli.options import (
    CONFIG,
    FAILED,
    ON_HELP,
    AsJson,
    Dataset,
    Epochs,
    OutputDir,
    Quiet,
    SetKeys,
    TrainDevice,
)
from imitate.errors import ConfigError

TUNED = "_tuned"
"""Suffix of the name of a run that starts from a checkpoint and the checkpoint's configuration."""


def command(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="With --resume: the run folder to resume."),
    ] = None,
    config: Annotated[
        str | None,
        CONFIG,
    ] = None,
    dataset: Dataset = None,
    output_dir: OutputDir = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="Environment for rollouts and online RL, instead of the one named in the demonstrations: a "
            "gymnasium name (module:Name-v0), a robosuite task, a robot (robot:NAME), or a JSON file of env_args.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run (experiment.name).")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            "--init",
            metavar="CKPT",
            help="Start from the weights and the normalization of this checkpoint, of imitate, robomimic or LeRobot "
            "(experiment.ckpt_path). Without --config the checkpoint's own configuration is used, and the run's "
            "name gets the suffix _tuned.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the run RUN, or without RUN the newest run with the name in the configuration.",
        ),
    ] = False,
    set_: SetKeys = None,
    device: TrainDevice = None,
    epochs: Epochs = None,
    until_epoch: Annotated[
        int | None,
        typer.Option(
            "--until-epoch",
            min=1,
            help="Stop after this epoch, so that --resume continues the run later.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="PLACE",
            help=f"{ON_HELP} Applies to train.online.num_workers, and sets cluster.on.",
        ),
    ] = None,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Train a policy on demonstrations, or by online RL in an environment (train.online).

    The run is in OUTPUT_DIR/NAME/TIME: config.json, metrics.jsonl, results.json, learning_curve.png, checkpoints,
    videos, TensorBoard files. Exit codes: 0 done; 1 training or an evaluation failed; 2 invalid
    input; 130 or 143 interrupted, with a checkpoint to resume from.
    """
    if run is not None and not resume:
        raise ConfigError(
            f"{run}: to resume a run, write --resume {run}; demonstrations take --dataset, configurations --config"
        )
    overrides = list(set_ or ())
    if init is not None:
        from imitate.system.run_folder import find_checkpoint

        init = find_checkpoint(init)
        overrides.append(f"experiment.ckpt_path={init.resolve()}")
    for key, value in (
        ("experiment.name", name),
        ("train.device", device),
        ("train.num_epochs", epochs),
        ("cluster.on", on),
    ):
        if value is not None:
            overrides.append(f"{key}={value}")

    own = None if init is None or config is not None else _own_config(init, overrides)
    from imitate.errors import TrainingError
    from imitate.system.run_folder import to_json
    from imitate.train.trainer import train

    try:
        result = train(
            config or own,
            dataset=dataset,
            output_dir=output_dir,
            env=env,
            resume=(run or True) if resume else None,
            overrides=overrides,
            until_epoch=until_epoch,
            quiet=quiet,
        )
    except TrainingError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from None
    if json_ and result.results:
        typer.echo(to_json(result.results, indent=2))
    elif result.summary:
        typer.echo("\n".join(result.summary))
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _own_config(path: Path, typed: list[str]) -> dict[str, Any]:
    """Return a checkpoint's configuration for a new run, with ``_tuned`` after the name and no output folder.

    Raises:
        EnvError: the configuration names a module or a cluster that the user does not trust.
    """
    from imitate.config import load_config
    from imitate.evaluate.environments import check_named
    from imitate.policy.checkpoint import load_checkpoint

    text = str(load_checkpoint(path)["config"])
    check_named(load_config(text, typed), typed)
    tree = load_config(text).to_dict()
    del tree["train"]["output_dir"]
    if not tree["experiment"]["name"].endswith(TUNED):
        tree["experiment"]["name"] += TUNED
    return tree
