"""Import of LeRobot's policies from their folders: configuration, normalization and weights; no file is executed.

Up to release 0.3 the statistics are stored with the weights, as ``normalize_inputs.buffer_<feature>.<statistic>`` with
underscores in place of the feature's dots. Since 0.4 they are in separate files, which ``policy_preprocessor.json`` and
``policy_postprocessor.json`` name. No file contains the release that wrote it.

The normalization becomes an offset and a scale, ``(x - offset) / scale``, by the mode that ``normalization_mapping``
has for the feature's type. Features of other types are not normalized.

    MEAN_STD    (x - mean) / (std + 1e-8)
    MIN_MAX     2 (x - low) / (high - low) - 1, with low = min and high = max
    QUANTILES   the same with low = q01 and high = q99
    QUANTILE10  the same with low = q10 and high = q90

A number that is constant in the data (high = low) becomes -1; up to 0.3, 1e-8 is added to every range.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit, count_numbers
from imitate.algo.base.factory import algo_factory
from imitate.config import Config, load_config
from imitate.errors import CheckpointError, UserError
from imitate.interop.lerobot import act, diffusion
from imitate.interop.lerobot.features import EPSILON, Feature, inputs_of, output_of
from imitate.models.fitting import Affine
from imitate.models.preprocess import Preprocess
from imitate.models.pretrained import read_safetensors
from imitate.system import plain_files
from imitate.system.recognition import LEROBOT_ALGOS, LEROBOT_WEIGHTS, diagnosis, is_lfs_pointer

_MOST_JSON = 2**24
"""Largest size of a JSON file in bytes."""
_PREPROCESSOR, _POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
_NORMALIZERS = ("normalizer_processor", "unnormalizer_processor")
_NEUTRAL = ("rename_observations_processor", "to_batch_processor", "device_processor")
"""Processing steps that do not change the values of the policy's features."""
_OLD_STATISTICS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")
_ADVICE = "run the policy in LeRobot itself, or train a policy here on its dataset"

Statistics = Mapping[str, Mapping[str, Tensor]]
"""Statistics of each feature, by name ('mean', 'std', 'min', ...)."""


@dataclass(frozen=True)
class PolicyFolder:
    """Contents of a policy's folder.

    Attributes:
        path: path of the folder.
        config: content of ``config.json``.
        tensors: the weights, without statistics.
        observed: statistics of the observations.
        acted: statistics of the actions.
    """

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    observed: Statistics
    acted: Statistics

    @property
    def kind(self) -> str:
        """``type`` of the policy, such as 'act'."""
        return str(self.config.get("type"))


def read_folder(path: Path, config: dict[str, Any]) -> PolicyFolder:
    """Read a policy's folder.

    Args:
        path: the folder.
        config: content of its ``config.json``.

    Raises:
        CheckpointError: a file is missing, damaged, or has an option that cannot be converted.
    """
    if config.get("use_peft") or (path / "adapter_config.json").exists():
        raise CheckpointError(
            f"{path}: the weights are an adapter (PEFT); merge them into the base model with LeRobot first"
        )
    tensors = read_tensors(path / LEROBOT_WEIGHTS)
    if not (path / _PREPROCESSOR).is_file():
        names = [*config.get("input_features", {}), *config.get("output_features", {})]
        old = {name: value for name, value in tensors.items() if name.startswith(_OLD_STATISTICS)}
        weights = {name: value for name, value in tensors.items() if name not in old}
        observed = _buffers(old, "normalize_inputs", names)
        return PolicyFolder(
            path, config, weights, observed, _buffers(old, "unnormalize_outputs", names)
        )
    observed = _processor_statistics(path, _PREPROCESSOR)
    acted = _processor_statistics(path, _POSTPROCESSOR)
    return PolicyFolder(path, config, tensors, observed, acted)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        CheckpointError: the file does not exist, cannot be read, or does not contain an object.
    """
    try:
        if file.stat().st_size > _MOST_JSON:
            raise CheckpointError(
                f"{file}: has {file.stat().st_size} bytes, but a configuration may have at most {_MOST_JSON}"
            )
        tree = plain_files.read_json(file)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file}: cannot be read ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{file}: contains {type(tree).__name__}; expected an object")
    return tree


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a file of tensors.

    Raises:
        CheckpointError: the file does not exist, or is truncated or damaged.
    """
    try:
        return read_safetensors(file)
    except (OSError, ValueError) as error:
        if is_lfs_pointer(file):
            raise CheckpointError(str(diagnosis(file))) from None
        raise CheckpointError(
            f"{file}: missing, truncated or damaged ({error}); copy or download it again"
        ) from error


def _processor_statistics(path: Path, name: str) -> dict[str, dict[str, Tensor]]:
    """Return a processor's statistics of all columns of the dataset, including columns that the policy does not use."""
    steps = read_json(path / name).get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise CheckpointError(f"{path / name}: has no list of steps")
    found: dict[str, dict[str, Tensor]] = {}
    for step in steps:
        kind = step.get("registry_name")
        if kind in _NEUTRAL:
            continue
        if kind not in _NORMALIZERS:
            raise CheckpointError(
                f"{path / name}: step '{kind}' has no counterpart here; {_ADVICE}"
            )
        file = step.get("state_file")
        if file is None:
            continue  # a step without statistics normalizes no feature
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{path / name}: state_file is {file!r}; expected the name of a file in the same folder"
            )
        for key, value in read_tensors(path / file).items():
            feature, _, statistic = key.rpartition(".")
            found.setdefault(feature, {})[statistic] = value
    return found


def _buffers(
    tensors: Mapping[str, Tensor], owner: str, features: list[str]
) -> dict[str, dict[str, Tensor]]:
    """Return the statistics that are stored with the weights; feature names may themselves contain underscores."""
    found: dict[str, dict[str, Tensor]] = {}
    for feature in features:
        prefix = f"{owner}.buffer_{feature.replace('.', '_')}."
        named = {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        if named:
            found[feature] = named
    return found


_RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
MODES = ("IDENTITY", "MEAN_STD", *_RANGES)


def affine_of(
    feature: Feature, mapping: Mapping[str, Any], statistics: Mapping[str, Mapping[str, Tensor]]
) -> Affine | None:
    """Return offset and scale of a feature, per number or image channel; None if it is not normalized.

    Raises:
        CheckpointError: the statistics are missing, have another shape or are not finite, or the mode is unknown.
    """
    mode = mapping.get(feature.kind, "IDENTITY")
    if mode not in MODES:
        raise CheckpointError(
            f"normalization_mapping.{feature.kind}: {mode!r}; expected one of {', '.join(MODES)}"
        )
    if mode == "IDENTITY":
        return None
    of_feature = statistics.get(feature.name, {})
    if mode == "MEAN_STD":
        mean, std = (_statistic(feature, of_feature, name, mode) for name in ("mean", "std"))
        return mean, std + EPSILON
    low, high = (_statistic(feature, of_feature, name, mode) for name in _RANGES[mode])
    span = high - low
    if feature.kind == "ACTION":  # a constant action does not depend on the network's prediction
        half = torch.where(span == 0, torch.full_like(span, EPSILON), span) / 2
        return low + half, half
    # In training, the network's input for a constant observation was always -1.
    half = torch.where(span == 0, torch.ones_like(span), span / 2)
    return low + half, half


def _statistic(feature: Feature, found: Mapping[str, Tensor], name: str, mode: str) -> Tensor:
    if name not in found:
        raise CheckpointError(
            f"'{feature.name}' needs '{name}' for its normalization {mode}, but the folder has no "
            "such statistic, so LeRobot would use values that are not normalized: save the policy "
            "again with the statistics of its dataset"
        )
    value = found[name].double().flatten()
    wanted = feature.shape[0]
    if value.numel() != wanted:
        raise CheckpointError(
            f"'{name}' of '{feature.name}' has {value.numel()} numbers; expected {wanted}"
        )
    if not bool(value.isfinite().all()):
        raise CheckpointError(
            f"'{name}' of '{feature.name}' is not finite, because the policy was saved without "
            "statistics: save it again with the statistics of its dataset"
        )
    return value


_REFUSED = {
    "vqbet": "its network differs from our vq_bet; train vq_bet on its dataset",
    "of 2024": "LeRobot has had another layout since February 2025; save it again with a release of 2025",
    "tdmpc": "its world model has no counterpart here; mbrl is the nearest algorithm",
    "sac": "it is the actor of HIL-SERL; train rlpd instead",
    "gaussian_actor": "it is the actor of HIL-SERL; train rlpd instead",
}
_ELSEWHERE = "it needs pretrained networks that come with LeRobot; run it there (only act and diffusion are read)"


@dataclass(frozen=True)
class LeRobotImport:
    """A policy of LeRobot as an algorithm of ours.

    Attributes:
        algo: the algorithm, with configuration, weights and normalization.
        parts: parts of a checkpoint, as the arguments of :func:`imitate.policy.checkpoint.checkpoint_dict`.
    """

    algo: Algo
    parts: dict[str, Any]


def from_lerobot(path: Path) -> LeRobotImport:
    """Convert a policy of LeRobot to an algorithm that gives the same actions.

    Args:
        path: the folder, with ``config.json`` and ``model.safetensors``.

    Raises:
        CheckpointError: a part of the policy has no counterpart here; the message names it.
    """
    their_config = read_json(path / "config.json")
    type_ = str(their_config.get("type", "of 2024"))
    if type_ not in LEROBOT_ALGOS:  # refused before the weights are read, which may take gigabytes
        reason = _REFUSED.get(type_, _ELSEWHERE)
        raise CheckpointError(f"a policy of type '{type_}' cannot be read: {reason}")
    folder = read_folder(path, their_config)
    features, action = inputs_of(folder.config), output_of(folder.config)
    preprocess_affine = _affine(folder, features, action)
    config = _config(folder, features)
    shapes = {feature.key: _network_shape(feature, config) for feature in features}
    # The random initial weights are replaced below, so the caller's random number generator is left unchanged.
    with torch.random.fork_rng(devices=[]), AllocationLimit(count_numbers(folder.tensors)):
        algo = algo_factory(
            config.algo_name, config, shapes, action.shape[0], "cpu", load_pretrained=False
        )
    algo.preprocess = Preprocess(
        {feature.key: feature.raw_shape for feature in features},
        {feature.key: _modality(feature) for feature in features},
        {"actions": action.shape[0]},
        {key: pair for key, pair in preprocess_affine.items() if key != "actions"},
        {key: pair for key, pair in preprocess_affine.items() if key == "actions"},
        steps=[entry.to_dict() for entry in config.train.preprocess],
    )
    algo.nets.load_state_dict(_weights(algo, folder, features))
    parts = {
        "env_metadata": {},
        "environments": [],
        "shape_metadata": {
            "raw_shapes": {feature.key: list(feature.raw_shape) for feature in features},
            "action_dims": {"actions": action.shape[0]},
        },
        "train_state": {},
        "provenance": {"imported_from": "lerobot", "lerobot_config": folder.config},
        "model": {"nets": algo.nets.state_dict(), "optimizers": {}},
    }
    return LeRobotImport(algo, parts)


def _config(folder: PolicyFolder, features: list[Feature]) -> Config:
    describe = act.algo_tree if folder.kind == "act" else diffusion.algo_tree
    try:
        tree = describe(folder.config, features)
    except KeyError as error:
        raise CheckpointError(f"config.json: {error} is missing") from None
    modalities: dict[str, list[str]] = {"low_dim": [], "rgb": []}
    for feature in features:
        modalities[_modality(feature)].append(feature.key)
    tree["algo_name"] = LEROBOT_ALGOS[folder.kind]
    tree["experiment"] = {"name": f"lerobot_{folder.kind}"}
    tree.setdefault("observation", {})["modalities"] = {"obs": modalities}
    try:
        return load_config(tree)
    except UserError as error:
        raise CheckpointError(f"its configuration cannot be used by imitate: {error}") from error


def _modality(feature: Feature) -> str:
    return "rgb" if feature.kind == "VISUAL" else "low_dim"


def _network_shape(feature: Feature, config: Config) -> tuple[int, ...]:
    """Return the shape of an observation after preprocessing, as the networks get it."""
    for step in config.train.preprocess:
        if step.step == "resize" and feature.kind == "VISUAL":
            return (feature.shape[0], *step.to_dict()["size"])
    return feature.shape


def _affine(
    folder: PolicyFolder, features: list[Feature], action: Feature
) -> dict[str, tuple[Tensor, Tensor]]:
    mapping = folder.config.get("normalization_mapping")
    if not isinstance(mapping, Mapping):
        raise CheckpointError("config.json: normalization_mapping is missing")
    found = {feature.key: affine_of(feature, mapping, folder.observed) for feature in features}
    found[action.key] = affine_of(action, mapping, folder.acted)
    return {
        key: (pair[0].float(), pair[1].float()) for key, pair in found.items() if pair is not None
    }


def _weights(algo: Algo, folder: PolicyFolder, features: list[Feature]) -> dict[str, Tensor]:
    """Return the weights of our networks, converted from the folder's."""
    theirs = {
        name: value.float() if value.is_floating_point() else value
        for name, value in folder.tensors.items()
    }
    network: Any = algo.nets["policy"]
    kind = act if folder.kind == "act" else diffusion
    made: dict[str, Tensor] = kind.our_tensors(network, algo.nets.state_dict(), theirs, features)
    return made
