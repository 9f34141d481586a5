"""``imitate dagger``: an expert or a person corrects rollouts of a policy, which learns from the corrections."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imitate.cli.options import (
    CONFIG,
    FAILED,
    INTERRUPTED,
    AsJson,
    On,
    Seed,
    SetKeys,
    StepTimeout,
    TakeOverArgs,
)
from imitate.cli.progress import Progress
from imitate.errors import ConfigError
from imitate.system.processes import LOCAL, STEP_TIMEOUT_S
from imitate.system.text import counted, mean_text, rate_text

if TYPE_CHECKING:
    from imitate.config import Config
    from imitate.train.interactive.dagger import Round, SuperviseRound


def command(
    config: Annotated[
        str,
        CONFIG,
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Output folder; the run in an existing folder is resumed.")
    ],
    dataset: Annotated[
        Path | None,
        typer.Option("--dataset", "-d", help="Initial demonstrations, with which round 0 trains."),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            "--init",
            metavar="CKPT",
            help="Initial policy, or its run folder. Each round then starts from the weights of the previous one.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="Environment of the rounds: a gymnasium name (module:Name-v0), a robosuite task, a robot (robot:NAME, "
            "robot:sim) or a JSON file of env_args. Default: the environment that the demonstrations name.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Number of rounds of rollouts and training.")
    ] = 5,
    episodes: Annotated[
        int, typer.Option("--episodes", min=1, help="Number of episodes per round.")
    ] = 10,
    first: Annotated[
        int | None,
        typer.Option("--first", min=1, help="Number of demonstrations to use; default: all."),
    ] = None,
    expert: Annotated[
        str,
        typer.Option(
            "--expert",
            metavar="WHO",
            help="Source of the correct actions: scripted (the task's expert), a checkpoint, or module:function, "
            "which gets an observation and returns an action.",
        ),
    ] = "scripted",
    beta: Annotated[
        float,
        typer.Option(
            "--beta",
            min=0.0,
            max=1.0,
            help="In round k = 1, 2, ... the expert's action is executed with "
            "probability beta^k at each labelled step, otherwise the policy's.",
        ),
    ] = 0.5,
    label_every: Annotated[
        int,
        typer.Option(
            "--label-every",
            metavar="STEPS",
            min=1,
            help="Query the expert only at every Nth step, and learn only from these steps, "
            "because neighbouring steps are similar. Not with --take-over.",
        ),
    ] = 1,
    ask_above: Annotated[
        float | None,
        typer.Option(
            "--ask-above",
            metavar="QUANTILE",
            min=0.0,
            max=1.0,
            help="Query the expert only where the policy's uncertainty exceeds this quantile of its uncertainty on "
            "the demonstrations, such as 0.9, and learn only from these steps; best with --label-every 4. Not "
            "with --take-over.",
        ),
    ] = None,
    take_over: Annotated[
        str | None,
        typer.Option(
            "--take-over",
            metavar="WHO",
            help="HG-DAgger: only steps in which a supervisor takes over are labelled. On a robot (--env robot:NAME) "
            "name a teleoperation device, as for imitate run; otherwise module:function, which gets an "
            "observation and the policy's action and returns an action, or None to let the policy act; or "
            "expert: the scripted expert acts while the policy errs.",
        ),
    ] = None,
    take_over_arg: TakeOverArgs = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            help="Number of processes that play episodes; results do not depend on it. "
            "Default: 1, or on a cluster as many as fit. Not with a person or a robot.",
        ),
    ] = None,
    on: On = LOCAL,
    step_timeout_s: StepTimeout = STEP_TIMEOUT_S,
    seed: Seed = 0,
    set_: SetKeys = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the progress of each round's training.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Learn in rounds in which the policy acts and an expert labels its steps (DAgger) or takes over (HG-DAgger).

    All data are in OUT/demos.hdf5, with `labelled`, `interventions`, `policy_actions`, `executed_actions` and `round`
    per step. Each round trains on all of them. Episodes last experiment.rollout.horizon steps. The same command resumes
    an interrupted run, also with more --rounds. Exit codes: as of imitate train.
    """
    from imitate.config import load_config
    from imitate.errors import TrainingError
    from imitate.train.interactive.dagger import DaggerPlan, dagger

    _check_take_over(take_over, label_every, ask_above, copies=on != LOCAL or (workers or 1) > 1)
    loaded = _with_keys(load_config(config, set_ or ()), dataset)
    meta = _environment(env, dataset, loaded)
    loaded = loaded.with_overrides(
        {"experiment.env_meta_update_dict": {}}
    )  # meta already contains the environment of --env
    meta = _with_device(meta, take_over, take_over_arg or [])
    plan = DaggerPlan(
        rounds=rounds,
        episodes=episodes,
        seed=seed,
        horizon=loaded.experiment.rollout.horizon or _horizon(dataset),
        demos=first,
        label_every=label_every,
        ask_above=ask_above,
    )
    with Progress(rounds * episodes, "episode", "dagger") as bar:

        def advance(number: int, done: int) -> None:
            bar.reach((number - 1) * episodes + done, words=f"round {number}")

        def tell(over: Round) -> None:
            if not json_:
                bar.write(_line(over))

        try:
            progress = dagger(
                loaded,
                plan,
                _supervisor(expert, beta, label_every, ask_above, take_over, meta),
                meta,
                out,
                dataset=dataset,
                init=init,
                labels_all=take_over is None,
                on_round=tell,
                on_episode=advance,
                quiet=not verbose,
                workers=workers or (1 if on == LOCAL else None),
                on=on,
                step_timeout_s=step_timeout_s,
            )
        except TrainingError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            typer.echo(f"interrupted; to resume {out}, repeat the command", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if json_:
        typer.echo(json.dumps([over.to_dict() for over in progress.rounds], indent=2))
    if progress.exit_code:
        typer.echo(f"training was interrupted; to resume {out}, repeat the command", err=True)
        raise typer.Exit(progress.exit_code)


def _check_take_over(
    take_over: str | None, label_every: int, ask_above: float | None, *, copies: bool
) -> None:
    """Raise ConfigError for options that contradict ``--take-over``."""
    if take_over is not None and label_every > 1:
        raise ConfigError(
            "--label-every: with --take-over every expert-controlled step is labelled: leave "
            "one of them out"
        )
    if take_over is not None and ask_above is not None:
        raise ConfigError(
            "--ask-above: with --take-over the supervisor decides which steps are labelled: leave one of them out"
        )
    if take_over not in (None, "expert") and copies:
        raise ConfigError(
            f"--take-over {take_over}: one person corrects one episode at a time: leave --workers and --on out"
        )


def _line(over: Round) -> str:
    rate = "" if over.mean_return is None else f", return {mean_text(over.mean_return)}"
    if over.success_rate is not None:
        rate = f", success {rate_text(over.success_rate)}"
    return (
        f"round {over.number}: {counted(over.episodes, 'episode')}, {counted(over.steps, 'step')}, "
        f"{over.interventions} of them expert-controlled; {counted(over.labels, 'label')} so far{rate}: "
        f"{over.checkpoint}"
    )


def _with_keys(config: Config, dataset: Path | None) -> Config:
    """Return the configuration with ``"auto"`` replaced by the demonstrations' observations."""
    from imitate.config.observation import AUTO
    from imitate.train.observations import with_observations

    if AUTO not in config.all_obs_keys:
        return config
    if dataset is None:
        raise ConfigError(
            "observation.modalities: 'auto' means all observations of the demonstrations, but no data file is "
            "given: list the keys, or name a file with --dataset"
        )
    found = with_observations(config.with_overrides({"train.data": [{"path": str(dataset)}]}))
    return found.with_overrides({"train.data": config.to_dict()["train"]["data"]})


def _environment(env: str | None, dataset: Path | None, config: Config) -> dict[str, Any]:
    """Return the env_args of the environment in which the rounds are played.

    These are the env_args of the demonstrations. If ``env`` or the configuration changes them, the environment is made
    and the env_args that it reports are returned.

    Raises:
        EnvError: the environment cannot be made.
    """
    from imitate.data import DatasetFile
    from imitate.envs import make_env
    from imitate.envs.make import is_robot
    from imitate.evaluate.environments import at_rate, laid_over, named_env_of, trust_named

    trust_named(config, env)
    own: dict[str, Any] = {}
    rate = None
    if dataset is not None:
        with DatasetFile(dataset) as file:
            own, rate = file.env_meta, file.control_freq
    update = config.experiment.env_meta_update_dict.to_dict()
    if env is None and not update and dataset is not None:
        return own
    if env is None and "env_name" not in {**own, **update}:
        raise ConfigError(
            "--env: no environment is given: name it, or give demonstrations that contain their "
            "environment"
        )
    meta = laid_over(own, update) if env is None else named_env_of(config, env, own)
    if is_robot(meta):  # a robot is not opened here; it is connected once, when the rounds begin
        return at_rate(meta, rate)
    made = make_env(meta, obs_keys=config.all_obs_keys)
    try:
        return made.serialize()
    finally:
        made.close()


def _horizon(dataset: Path | None) -> int:
    """Return the episode length in steps that suits the demonstrations, for a configuration in which it is null."""
    from imitate.config.experiment import DEFAULT_HORIZON
    from imitate.config.from_data import rollout_horizon
    from imitate.data import DatasetFile

    if dataset is None:
        return DEFAULT_HORIZON
    with DatasetFile(dataset) as file:
        return rollout_horizon([file.length(demo) for demo in file.demos()])


def _supervisor(
    expert: str,
    beta: float,
    label_every: int,
    ask_above: float | None,
    take_over: str | None,
    meta: dict[str, Any],
) -> SuperviseRound:
    """Return a function that makes the supervisor of a round."""
    from imitate.train.interactive.supervision import (
        CorrectionsOf,
        LabelsOf,
        TakesOver,
        imported,
        named_expert,
    )

    env_name = _task_of(meta)
    if (meta.get("env_kwargs") or {}).get(
        "take_over"
    ) is not None:  # the robot itself reads the person's device
        return lambda number: TakesOver(lambda obs, wanted: None)
    if take_over is not None and take_over != "expert":
        hand = imported(take_over, "--take-over")
        return lambda number: TakesOver(hand)
    named_expert(expert, env_name)  # raises an error now rather than in the first round
    if take_over is not None:
        return CorrectionsOf(expert, env_name)
    return LabelsOf(expert, env_name, beta, label_every, ask_above)


def _with_device(
    meta: dict[str, Any], take_over: str | None, words: Sequence[str]
) -> dict[str, Any]:
    """Add the device of ``--take-over`` to the env_args of a robot.

    Raises:
        ConfigError: a device is given without a robot, or device options are given without a device.
    """
    from imitate.cli.robot.robots import options_of
    from imitate.deploy.robot.robot import TELEOPERATORS, Teleoperator, names_of
    from imitate.envs.make import is_robot
    from imitate.system.trust import trust

    is_device = take_over is not None and (
        take_over in names_of(TELEOPERATORS)
        or take_over.startswith("expert:")
        or (":" in take_over and _is_class_of(take_over, Teleoperator))
    )
    if not is_device:
        if words:
            raise ConfigError(
                "--take-over-arg: sets an option of a teleoperation device, but --take-over names none: name one, or "
                "leave --take-over-arg out"
            )
        return meta
    if not is_robot(meta):
        raise ConfigError(
            f"--take-over {take_over}: is a device, which needs a robot that runs in real "
            "time: give --env robot:NAME, or --env robot:sim for the environment of the "
            "demonstrations"
        )
    trust(str(take_over))
    kwargs = {"take_over": take_over, "take_over_options": options_of(words)}
    return {**meta, "env_kwargs": {**(meta.get("env_kwargs") or {}), **kwargs}}


def _is_class_of(name: str, base: type) -> bool:
    from imitate.system.trust import typed_object

    try:
        found = typed_object(name)
    except (ImportError, AttributeError, ValueError, OSError):
        return False
    return isinstance(found, type) and issubclass(found, base)


def _task_of(meta: dict[str, Any]) -> str:
    """Return the environment's name; for ``robot:sim`` the name of the simulated environment."""
    options = (meta.get("env_kwargs") or {}).get("options") or {}
    simulated = options.get("env_meta") if isinstance(options, dict) else None
    return str((simulated or meta)["env_name"])
