"""Start of a training from a checkpoint of this project or of robomimic, or from pretrained weights."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from imitate.algo.base.acting import OMITTED, REMEDY
from imitate.algo.base.algo import Algo
from imitate.algo.slots.frozen import frozen_policy_of
from imitate.algo.slots.scripted import scripted_algo
from imitate.config import Config, ExperimentConfig
from imitate.config.algorithms import is_scripted
from imitate.errors import CheckpointError, ConfigError, nearest
from imitate.models.preprocess import Preprocess
from imitate.models.pretrained import checksum
from imitate.policy.checkpoint import checkpoint_dict, load_checkpoint
from imitate.system.run_folder import find_checkpoint


def start_words(settings: ExperimentConfig) -> tuple[str, ...]:
    """Return a line that names the weights with which a new run starts; no line if they are random."""
    if settings.ckpt_path is None:
        return ()
    parts = settings.ckpt_parts
    return (f"weights: {'all' if parts is None else ', '.join(parts)} of {settings.ckpt_path}",)


def start_from(algo: Algo, settings: ExperimentConfig) -> None:
    """Load the weights and preprocessing of ``ckpt_path``, or only the weights of its ``ckpt_parts`` if they are set.

    With ``ckpt_optimizers`` the moments of its optimizers are loaded too; learning rates and their schedules start
    again.

    Args:
        algo: newly built algorithm.
        settings: section ``experiment`` of the configuration.

    Raises:
        CheckpointError: the checkpoint does not fit the algorithm.
        ConfigError: optimizer state is requested for parts of networks.
    """
    path = settings.ckpt_path
    if path is None:
        return
    ckpt = load_checkpoint(path)
    if OMITTED in ckpt["model"] and settings.ckpt_parts is None:
        raise CheckpointError(
            f"experiment.ckpt_path: {path} {REMEDY}, or name experiment.ckpt_parts"
        )
    if settings.ckpt_parts is not None:
        if settings.ckpt_optimizers:
            raise ConfigError(
                "experiment.ckpt_optimizers: optimizer state is loaded for whole networks only: set "
                "experiment.ckpt_parts to null, or experiment.ckpt_optimizers to false"
            )
        _load_parts(algo, ckpt["model"]["nets"], settings.ckpt_parts, path)
        return
    preprocess = Preprocess.from_dict(ckpt["preprocess"]).to(algo.device)
    if preprocess.obs_shapes != algo.preprocess.obs_shapes or preprocess.action_dim != algo.ac_dim:
        raise CheckpointError(
            f"experiment.ckpt_path: the weights of {path} do not fit this configuration: they are for observations "
            f"{preprocess.obs_shapes} and actions of size {preprocess.action_dim}, but the data or environment have "
            f"{algo.preprocess.obs_shapes} and {algo.ac_dim}: choose a checkpoint with these observations and actions"
        )
    theirs, ours = (
        [{"step": step.name, **step.options} for step in pipeline.chosen_steps]
        for pipeline in (preprocess, algo.preprocess)
    )
    if theirs != ours:
        raise CheckpointError(
            f"experiment.ckpt_path: {path} was trained with train.preprocess {theirs}, but this configuration has "
            f"{ours}: set train.preprocess to the checkpoint's value"
        )
    try:
        algo.deserialize(ckpt["model"], load_optimizers=False)
        if settings.ckpt_optimizers:
            _load_moments(algo, ckpt["model"].get("optimizers", {}), path)
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"experiment.ckpt_path: the weights of {path} do not fit this configuration: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error
    algo.preprocess = preprocess


def _load_parts(algo: Algo, saved: Mapping[str, Tensor], parts: Sequence[str], path: str) -> None:
    """Load the weights of some networks or parts of them, also into the moving average."""
    own = algo.nets.state_dict()
    chosen: dict[str, Tensor] = {}
    for part in parts:
        theirs, ours = (
            {key: value for key, value in state.items() if f"{key}.".startswith(f"{part}.")}
            for state in (saved, own)
        )
        if not theirs:
            known = {
                key.rsplit(".", depth)[0] for key in saved for depth in range(1, key.count(".") + 1)
            }
            raise CheckpointError(
                f"experiment.ckpt_parts: {path} has no part '{part}'; {nearest(part, sorted(known))}"
            )
        differing = [
            key
            for key in sorted({*theirs, *ours})
            if key not in theirs or key not in ours or theirs[key].shape != ours[key].shape
        ]
        if differing:
            raise CheckpointError(
                f"experiment.ckpt_parts: '{part}' of {path} does not fit this configuration: {len(differing)} of "
                f"{len({*theirs, *ours})} weights have another shape or no counterpart, such as {differing[0]}: "
                "name parts with the same networks"
            )
        chosen |= theirs
    for nets in (algo.nets, *(() if algo.ema is None else (algo.ema.module,))):
        nets.load_state_dict(chosen, strict=False)


def adopt_frozen(algo: Algo, env_meta: Mapping[str, Any]) -> None:
    """Load the frozen policy that the algorithm's section names, if the algorithm builds on one.

    Args:
        algo: newly built algorithm.
        env_meta: env_args of its environment.

    Raises:
        ConfigError: no checkpoint is named.
        CheckpointError: the checkpoint does not fit.
    """
    policy = frozen_policy_of(algo)
    if policy is None:
        return
    if policy.checkpoint is not None:
        policy.adopt(_named_policy(policy.checkpoint, algo, env_meta), algo.preprocess)
    elif algo.global_config.experiment.ckpt_path is None:
        raise ConfigError(
            f"{policy.key}.checkpoint: is null, but {algo.global_config.algo_name} builds upon a "
            "policy: give its checkpoint"
        )


def _named_policy(name: str, algo: Algo, env_meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint in a file or run folder, or a new one for a scripted policy."""
    if not is_scripted(name):
        return load_checkpoint(find_checkpoint(name))
    size = sum(key.sent for key in algo.preprocess.actions.keys.values())
    shapes = algo.preprocess.obs_shapes
    scripted = scripted_algo(name, str(env_meta.get("env_name")), shapes, size)
    limits: dict[str, Any] = {"action_low": [], "action_high": []}
    return checkpoint_dict(scripted, env_metadata=env_meta, shape_metadata=limits)


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


_TRUNK = "backbone_kwargs"


def with_checksums(config: Config) -> Config:
    """Return the configuration with absolute paths of pretrained weights, and the checksum of each file.

    A run that reads the file again refuses it if its content has changed; checkpoints contain the weights themselves. A
    missing file is not an error here, because a checkpoint may contain the weights.
    """
    values: dict[str, Any] = {}
    for path, trunk in _trunks(config.observation.to_dict(), "observation"):
        source = trunk.get("pretrained")
        if not isinstance(source, str):
            continue
        file = Path(source).expanduser()
        if file.is_file():
            values[f"{path}.pretrained"] = str(file.resolve())
            if trunk.get("pretrained_sha256") is None:
                values[f"{path}.pretrained_sha256"] = checksum(file)
    return config.with_overrides(values) if values else config


def _trunks(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (dotted key, content) of each section with arguments of a pretrained trunk."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            if name == _TRUNK:
                yield f"{path}.{name}", value
            else:
                yield from _trunks(value, f"{path}.{name}")
