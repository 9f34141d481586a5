"""Files of a policy's folder of LeRobot."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from imitate.errors import CheckpointError
from imitate.interop.lerobot.features import ACTION
from imitate.system.plain_files import fresh, sync
from imitate.system.recognition import LEROBOT_WEIGHTS

CHECKPOINT = "policy.pth"
"""File of ours in a folder of the plug-in."""
_EPSILON = 1e-8
_BEFORE, _BEHIND = "policy_preprocessor", "policy_postprocessor"
_DEVICE: dict[str, Any] = {
    "registry_name": "device_processor",
    "config": {"device": "cpu", "float_dtype": None},
}
_MOVING: list[dict[str, Any]] = [
    {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
    {"registry_name": "to_batch_processor", "config": {}},
    _DEVICE,
]
"""Steps that change no value."""


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    statistics: Mapping[str, Mapping[str, Tensor]],
    *,
    old: bool,
) -> None:
    """Write a folder, which appears when it is complete.

    Args:
        folder: must not exist.
        config: ``config.json``.
        tensors: weights.
        statistics: by feature, of vectors (D,) and of the channels of images (C,).
        old: the layout of releases up to 0.3, which keep statistics among the weights.

    Raises:
        CheckpointError: it exists, or the disk is full.
    """
    shaped = {
        feature: {name: _shaped(config, feature, value) for name, value in values.items()}
        for feature, values in statistics.items()
    }
    with _made(folder) as partial:
        _write_json(partial / "config.json", config)
        if old:
            _write_tensors(partial / LEROBOT_WEIGHTS, {**tensors, **_buffers(shaped)})
        else:
            _write_tensors(partial / LEROBOT_WEIGHTS, tensors)
            _write_processors(partial, config, shaped)


def write_plugin_folder(
    folder: Path, config: Mapping[str, Any], save: Callable[[Path], None]
) -> None:
    """Write a folder of the package ``lerobot_policy_imitate``: a checkpoint of ours, and nothing that normalizes.

    Raises:
        CheckpointError: it exists, or the disk is full.
    """
    with _made(folder) as partial:
        _write_json(partial / "config.json", config)
        save(partial / CHECKPOINT)
        for name, steps in ((_BEFORE, _MOVING), (_BEHIND, [_DEVICE])):
            _write_json(partial / f"{name}.json", {"name": name, "steps": steps})


@contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """Give a folder to fill, which gets its name when that is done."""
    if folder.exists():
        raise CheckpointError(f"{folder}: exists already; choose another name")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written ({error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _shaped(config: Mapping[str, Any], feature: str, value: Tensor) -> Tensor:
    """Return statistics as LeRobot broadcasts them: (C, 1, 1) for images."""
    kind = config["input_features"].get(feature, {}).get("type")
    return (value[:, None, None] if kind == "VISUAL" else value).contiguous()


def _buffers(statistics: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    found = {}
    for feature, values in statistics.items():
        owners = (
            ("normalize_targets", "unnormalize_outputs")
            if feature == ACTION
            else ("normalize_inputs",)
        )
        for owner in owners:
            for name, value in values.items():
                found[f"{owner}.buffer_{feature.replace('.', '_')}.{name}"] = value.clone()
    return found


def _write_processors(
    folder: Path, config: Mapping[str, Any], statistics: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write the steps before and behind the policy, and their statistics."""
    outputs, norm_map = config["output_features"], config["normalization_mapping"]
    everything = {**config["input_features"], **outputs}

    def normalizer(kind: str, features: Mapping[str, Any], file: str) -> dict[str, Any]:
        settings = {"eps": _EPSILON, "features": features, "norm_map": norm_map}
        return {"registry_name": kind, "config": settings, "state_file": file}

    before = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    behind = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    steps = [*_MOVING, normalizer("normalizer_processor", everything, before)]
    _write_json(folder / f"{_BEFORE}.json", {"name": _BEFORE, "steps": steps})
    steps = [normalizer("unnormalizer_processor", outputs, behind), _DEVICE]
    _write_json(folder / f"{_BEHIND}.json", {"name": _BEHIND, "steps": steps})
    flat = {
        f"{feature}.{name}": value.clone()
        for feature, values in statistics.items()
        for name, value in values.items()
    }
    for file in (before, behind):
        _write_tensors(folder / file, flat)


def _write_json(file: Path, tree: Mapping[str, Any]) -> None:
    with fresh(file, "w") as stream:
        json.dump(tree, stream, indent=4)
        stream.write("\n")
    sync(file)


def _write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(plain, file, metadata={"format": "pt"})
    sync(file)
