"""Folders of LeRobot's policies: configuration, weights and statistics; nothing in them is executed.

Up to 0.3 the statistics lie among the weights, as ``normalize_inputs.buffer_<feature>.<statistic>`` with underscores in
place of the feature's dots. Since 0.4 they lie in files of their own, named by ``policy_preprocessor.json`` and
``policy_postprocessor.json``. No file says which release wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from imitate.errors import CheckpointError
from imitate.models.pretrained import read_safetensors
from imitate.system import plain_files
from imitate.system.recognition import LEROBOT_WEIGHTS

_MOST_JSON = 2**24
"""Largest size of a JSON file in bytes."""
_PREPROCESSOR, _POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
_NORMALIZERS = ("normalizer_processor", "unnormalizer_processor")
_NEUTRAL = ("rename_observations_processor", "to_batch_processor", "device_processor")
"""Steps of a processor that change no value of what the policy's own features hold."""
_OLD_STATISTICS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")
_ADVICE = "read it in LeRobot itself, or train a policy here on its dataset"

Statistics = Mapping[str, Mapping[str, Tensor]]
"""Statistics by their name ('mean', 'std', 'min', ...), by feature."""


@dataclass(frozen=True)
class PolicyFolder:
    """Contents of a folder.

    Attributes:
        path: where its files lie.
        config: ``config.json``.
        tensors: weights, without statistics.
        observed: statistics of observations.
        acted: statistics of actions.
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
    """Read a policy.

    Args:
        path: the folder.
        config: its ``config.json``.

    Raises:
        CheckpointError: a file is missing, damaged, or means what is not converted.
    """
    if config.get("use_peft") or (path / "adapter_config.json").exists():
        raise CheckpointError(
            f"{path}: its weights are an adapter (PEFT): merge them in LeRobot first"
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
    """Read an object.

    Raises:
        CheckpointError: there is no such file, or it holds something else.
    """
    try:
        if file.stat().st_size > _MOST_JSON:
            raise CheckpointError(
                f"{file}: has {file.stat().st_size} bytes, too many for a configuration"
            )
        tree = plain_files.read_json(file)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file}: cannot be read ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{file}: holds {type(tree).__name__}; expected an object")
    return tree


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a file of tensors.

    Raises:
        CheckpointError: there is no such file, or it is cut or damaged.
    """
    try:
        return read_safetensors(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file}: missing, cut short or damaged ({error}); copy or download it again"
        ) from error


def _processor_statistics(path: Path, name: str) -> dict[str, dict[str, Tensor]]:
    """Return the statistics of a processor: of every column of the dataset, more than the policy has features."""
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
            continue  # it knows no statistics: all features are as they are
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{path / name}: state_file is {file!r}; expected a file beside it"
            )
        for key, value in read_tensors(path / file).items():
            feature, _, statistic = key.rpartition(".")
            found.setdefault(feature, {})[statistic] = value
    return found


def _buffers(
    tensors: Mapping[str, Tensor], owner: str, features: list[str]
) -> dict[str, dict[str, Tensor]]:
    """Return the statistics among the weights; a feature is found by its name, never by its underscores."""
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
