"""Start of a training from a checkpoint, of this project or of robomimic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imitate.algo.base.algo import Algo
from imitate.algo.slots.frozen import frozen_policy_of
from imitate.errors import CheckpointError, ConfigError
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import load_checkpoint


def start_from(algo: Algo, path: str, *, with_optimizers: bool = False) -> None:
    """Load a checkpoint's weights and its preprocessing of observations and actions.

    Args:
        algo: newly built algorithm.
        path: the checkpoint.
        with_optimizers: also load the moments of its optimizers; learning rates and their schedules start again.

    Raises:
        CheckpointError: the checkpoint does not fit the algorithm.
    """
    ckpt = load_checkpoint(path)
    preprocess = Preprocess.from_dict(ckpt["preprocess"]).to(algo.device)
    if preprocess.obs_shapes != algo.preprocess.obs_shapes or preprocess.action_dim != algo.ac_dim:
        raise CheckpointError(
            f"experiment.ckpt_path: the weights of {path} do not fit this configuration: they are for observations "
            f"{preprocess.obs_shapes} and {preprocess.action_dim} actions, the data or environment have "
            f"{algo.preprocess.obs_shapes} and {algo.ac_dim}"
        )
    theirs, ours = (
        [{"step": step.name, **step.options} for step in pipeline.chosen_steps]
        for pipeline in (preprocess, algo.preprocess)
    )
    if theirs != ours:
        raise CheckpointError(
            f"experiment.ckpt_path: {path} was trained with train.preprocess {theirs}, this "
            f"configuration has {ours}: set train.preprocess to the checkpoint's value"
        )
    try:
        algo.deserialize(ckpt["model"], load_optimizers=False)
        if with_optimizers:
            _load_moments(algo, ckpt["model"].get("optimizers", {}), path)
    except (RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"experiment.ckpt_path: the weights of {path} do not fit this configuration: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error
    algo.preprocess = preprocess


def adopt_frozen(algo: Algo) -> None:
    """Load the frozen policy that the algorithm's section names, if the algorithm builds on one.

    Raises:
        ConfigError: no checkpoint is named.
        CheckpointError: it does not fit.
    """
    policy = frozen_policy_of(algo)
    if policy is None:
        return
    path = algo.config.base.checkpoint
    if path is not None:
        policy.adopt(load_checkpoint(path), algo.preprocess)
    elif algo.global_config.experiment.ckpt_path is None:
        raise ConfigError(
            f"algo.base.checkpoint: is null, but {algo.global_config.algo_name} builds upon a "
            "policy: give its checkpoint"
        )


def _load_moments(algo: Algo, saved: Mapping[str, Any], path: str) -> None:
    missing = [name for name in algo.optimizers if not saved.get(name, {}).get("state")]
    if missing:
        raise CheckpointError(
            f"experiment.ckpt_optimizers: {path} contains no optimizer moments of "
            f"{', '.join(missing)} (robomimic writes them since 0.5): set it to false"
        )
    for name, optimizer in algo.optimizers.items():
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": saved[name]["state"], "param_groups": groups})
