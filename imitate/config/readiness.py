"""Check that a configuration that can be loaded can also be trained."""

import re
from typing import Any

from imitate.config.config import Config
from imitate.errors import ConfigError

THEIR_OUTPUT = re.compile(r"\.\./\w+_trained_models")
"""Pattern of robomimic's default ``train.output_dir``, such as ``../bc_trained_models``, beside robomimic's package."""


def trainable_template(config: Config) -> tuple[Config, list[str]]:
    """Change values of a robomimic template that would prevent its training, and describe each change in a line.

    A template is recognized by its ``train.output_dir``. Other configurations are returned unchanged.
    """
    if not THEIR_OUTPUT.fullmatch(config.train.output_dir):
        return config, []
    changes: dict[str, tuple[Any, str]] = {
        "train.output_dir": (
            "runs",
            f"is {config.train.output_dir}, a folder beside robomimic's package",
        )
    }
    if config.experiment.validate and config.train.hdf5_validation_filter_key is None:
        reason = "is true, but train.hdf5_validation_filter_key names no demos"
        changes["experiment.validate"] = (False, reason)
    if config.experiment.rollout.enabled and not config.algo.acts:
        reason = f"is true, but {config.algo_name} learns no policy that acts"
        changes["experiment.rollout.enabled"] = (False, reason)
    lines = [
        f"{key}: {reason}; here it is {str(value).lower()}"
        for key, (value, reason) in changes.items()
    ]
    return config.with_overrides({key: value for key, (value, _) in changes.items()}), lines


def check_trainable(config: Config) -> None:
    """Refuse settings that are valid one by one but cannot be trained together.

    `load_config` accepts them, because files of robomimic contain them.

    Raises:
        ConfigError: the message has one line per problem, with the remedy.
    """
    problems = [*_data_problems(config), *_measurement_problems(config)]
    if problems:
        raise ConfigError("\n".join(problems))


def _data_problems(config: Config) -> list[str]:
    train = config.train
    problems = []
    if not config.observation.modality_of("obs"):
        problems.append(
            "observation.modalities.obs: lists no observation: name at least one, or set observation.modalities to "
            "'auto' for all of the data"
        )
    draws_goals = config.algo.data_needs(config).goals is not None
    if draws_goals and not config.use_goals:
        problems.append(
            f"observation.modalities.goal: is empty, but {config.algo_name} learns to reach goals: list the "
            "observations that make up a goal, such as the keys under obs"
        )
    if config.use_goals and train.goal_mode is None and not draws_goals:
        problems.append(
            "train.goal_mode: is null, but observation.modalities.goal lists observations: "
            "set it to 'last', or empty that list"
        )
    if config.experiment.validate and train.hdf5_validation_filter_key is None:
        problems.append(
            "train.hdf5_validation_filter_key: is null, but experiment.validate is true: "
            "name the mask of the validation demos (such as 'valid'), or --set experiment.validate=false"
        )
    if train.hdf5_validation_filter_key and (
        train.hdf5_validation_filter_key == train.hdf5_filter_key
    ):
        problems.append(
            f"train.hdf5_validation_filter_key: '{train.hdf5_filter_key}' is also hdf5_filter_key: "
            "choose other demos for validation than for training"
        )
    if train.reward.normalization == "running" and not train.online.enabled:
        problems.append(
            "train.reward.normalization: 'running' is for rollouts in an environment: take 'std' or 'return_range'"
        )
    from_demos = {
        "experiment.rollout.horizon": config.experiment.rollout.horizon,
        "train.num_epochs": train.num_epochs,
    }
    problems += [
        f"{key}: null needs demonstrations to compute the value, but train.online.enabled is true: write a number"
        for key, value in from_demos.items()
        if value is None and train.online.enabled
    ]
    steps = config.experiment.epoch_every_n_steps
    if steps is not None and steps % train.gradient_accumulation:
        problems.append(
            f"experiment.epoch_every_n_steps: {steps} is not a multiple of train.gradient_accumulation "
            f"{train.gradient_accumulation}: make an epoch a whole number of updates"
        )
    return problems


def _measurement_problems(config: Config) -> list[str]:
    experiment = config.experiment
    problems = []
    if experiment.rollout.enabled and not config.algo.acts:
        problems.append(
            f"experiment.rollout.enabled: is true, but {config.algo_name} learns no policy that acts: set it to false"
        )
    if experiment.save.on_best_validation and not experiment.validate:
        problems.append(
            "experiment.save.on_best_validation: is true, but experiment.validate is false: "
            "set both to true, or both to false"
        )
    if experiment.early_stopping.enabled:
        metric = experiment.early_stopping.metric
        if metric == "valid_loss" and not experiment.validate:
            problems.append(
                "experiment.early_stopping.metric: 'valid_loss' is never measured: "
                "set experiment.validate to true"
            )
        if metric == "success_rate" and not experiment.rollout.enabled:
            problems.append(
                "experiment.early_stopping.metric: 'success_rate' is never measured: "
                "set experiment.rollout.enabled to true"
            )
    return problems
