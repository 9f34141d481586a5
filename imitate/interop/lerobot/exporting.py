"""Export of our policies as folders that ``lerobot-rollout --policy.path`` runs.

The configuration of LeRobot's policies ``act`` and ``diffusion`` is derived from ours. If a policy uses an option that
LeRobot does not have, the export is refused and the error names the option. Vectors named ``state`` and
``environment_state`` keep their names. All other vectors are concatenated to ``observation.state``, in the order of
their names, as by ``imitate dataset convert --to lerobot``. LeRobot does not clip the actions of an exported policy.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.errors import CheckpointError
from imitate.interop.lerobot import act, diffusion
from imitate.interop.lerobot.features import ACTION, EPSILON, CameraEncoder, Feature, encoders_of
from imitate.system.instructions import LANGUAGE_KEY
from imitate.system.plain_files import fresh, give_name, sync
from imitate.system.recognition import LEROBOT_ALGOS, LEROBOT_WEIGHTS
from imitate.system.trust import in_networks

CHECKPOINT = "policy.pth"
"""Name of our checkpoint in a folder for the package ``lerobot_policy_imitate``."""
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
"""LeRobot's processing steps that change no value."""


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    statistics: Mapping[str, Mapping[str, Tensor]],
    *,
    old: bool,
) -> None:
    """Write a policy's folder; it gets its name only when it is complete.

    Args:
        folder: path of the new folder, which must not exist.
        config: content of ``config.json``.
        tensors: the weights.
        statistics: statistics by feature: (D,) for vectors, (C,) for the channels of images.
        old: true for the layout of releases up to 0.3, which keep statistics among the weights.

    Raises:
        CheckpointError: the folder exists, or the disk is full.
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
    """Write a folder for the package ``lerobot_policy_imitate``: our checkpoint, without LeRobot's normalization.

    Raises:
        CheckpointError: the folder exists, or the disk is full.
    """
    with _made(folder) as partial:
        _write_json(partial / "config.json", config)
        save(partial / CHECKPOINT)
        for name, steps in ((_BEFORE, _MOVING), (_BEHIND, [_DEVICE])):
            _write_json(partial / f"{name}.json", {"name": name, "steps": steps})


@contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``folder`` when the body is done."""
    if folder.exists():
        raise CheckpointError(f"{folder}: the folder exists already; choose another name")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        give_name(partial, folder)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be written ({error}): free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _shaped(config: Mapping[str, Any], feature: str, value: Tensor) -> Tensor:
    """Return statistics in the shapes that LeRobot broadcasts, (C, 1, 1) for images."""
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
    """Write the files of the processing steps before and after the policy, with their statistics."""
    outputs, norm_map = config["output_features"], config["normalization_mapping"]
    everything = {**config["input_features"], **outputs}

    def normalizer(kind: str, features: Mapping[str, Any], file: str) -> dict[str, Any]:
        settings = {"eps": EPSILON, "features": features, "norm_map": norm_map}
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


PLUGIN = "lerobot-plugin"
LAYOUTS = ("lerobot", "lerobot-0.3")
"""Layouts of policy folders: for LeRobot 0.4 to 0.6, and for releases up to 0.3."""
OWN_VECTORS = {"state": "STATE", "environment_state": "ENV"}
"""Vectors with their own name in LeRobot; all others are concatenated to ``observation.state``."""


def export(algo: Algo, folder: Path, layout: str) -> None:
    """Write a policy into a new folder.

    Args:
        algo: the policy.
        folder: path of the new folder; it gets its name when it is complete.
        layout: a name in :data:`LAYOUTS`.

    Raises:
        CheckpointError: see :func:`contents_of`.
    """
    write_folder(folder, *contents_of(algo), old=layout == "lerobot-0.3")


def contents_of(
    algo: Algo,
) -> tuple[dict[str, Any], Mapping[str, Tensor], Mapping[str, Mapping[str, Tensor]]]:
    """Return configuration, weights and statistics of a policy in LeRobot's form.

    Raises:
        CheckpointError: LeRobot lacks a part of the policy; the message names it.
    """
    kinds = {algo_name: kind for kind, algo_name in LEROBOT_ALGOS.items()}
    name = algo.global_config.algo_name
    if name not in kinds:
        raise CheckpointError(
            f"LeRobot has no policy that acts like '{name}' (only like {', '.join(kinds)}); use --to {PLUGIN}, which "
            "takes any checkpoint"
        )
    _check_shared(algo)
    features = features_of(algo)
    kinds_seen = {feature.kind for feature in features}
    if "STATE" not in kinds_seen or not kinds_seen & {"ENV", "VISUAL"}:
        seen = ", ".join(sorted(algo.obs_shapes))
        raise CheckpointError(
            f"observations {seen}: LeRobot's act and diffusion need a vector, and also an image or "
            f"environment_state; use --to {PLUGIN}, which takes any observations"
        )
    network: Any = algo.active_nets["policy"]
    kind = act if name == "act" else diffusion
    encoders = encoders_of(kind.encoder_of(network), features)
    config: dict[str, Any] = {
        "type": kinds[name],
        "normalization_mapping": dict.fromkeys(("VISUAL", "STATE", "ENV", "ACTION"), "MEAN_STD"),
        "input_features": {f.name: {"type": f.kind, "shape": list(f.shape)} for f in features},
        "output_features": {ACTION: {"type": "ACTION", "shape": [algo.ac_dim]}},
        "device": "cpu",
        "use_amp": False,
        "push_to_hub": False,
        **kind.their_config(algo.global_config, network, features, encoders),
    }
    tensors = kind.their_tensors(network, features)
    return config, tensors, _statistics(algo, features, encoders)


def features_of(algo: Algo, left_out: str | None = None) -> list[Feature]:
    """Return the observations under LeRobot's names.

    Args:
        algo: the policy.
        left_out: name of an observation that the robot does not provide, or None.

    Raises:
        CheckpointError: LeRobot's policies do not take observations of this modality or shape.
    """
    modalities, shapes = algo.preprocess.modalities, algo.preprocess.raw_shapes
    keys = sorted(key for key in algo.obs_shapes if key != left_out)
    other = [key for key in keys if modalities[key] not in ("low_dim", "rgb")]
    if other:
        raise CheckpointError(
            f"observation '{other[0]}' is '{modalities[other[0]]}': LeRobot's policies take colour images and vectors"
        )
    low_dim = [key for key in keys if modalities[key] == "low_dim"]
    long = [key for key in low_dim if len(shapes[key]) != 1]
    if long:
        raise CheckpointError(
            f"observation '{long[0]}' has shape {shapes[long[0]]}: LeRobot's policies take vectors with one axis"
        )
    found: list[Feature] = []
    if set(low_dim) <= set(OWN_VECTORS):
        for key, kind in OWN_VECTORS.items():
            if key in low_dim:
                found.append(Feature(f"observation.{key}", kind, shapes[key]))  # type: ignore[arg-type]
    else:
        size = sum(shapes[key][0] for key in low_dim)
        found.append(Feature("observation.state", "STATE", (size,), tuple(low_dim)))
    for key in (key for key in keys if modalities[key] == "rgb"):
        height, width, channels = shapes[key]
        found.append(Feature(_camera_name(key), "VISUAL", (channels, height, width), (key,)))
    return found


def export_plugin(
    algo: Algo, folder: Path, save: Callable[[Path], None], *, has_instructions: bool
) -> None:
    """Write a folder for the package ``lerobot_policy_imitate``, with which any policy runs on LeRobot's robots.

    Args:
        algo: the policy.
        folder: path of the new folder; it gets its name when it is complete.
        save: function that writes the checkpoint to a path.
        has_instructions: true if the policy has a table of instructions, from which LeRobot's task selects one.

    Raises:
        CheckpointError: the folder exists, or one of the observations is not available from LeRobot's robots.
    """
    if algo.goal_shapes:
        raise CheckpointError("the policy takes a goal, which LeRobot does not provide")
    features = features_of(algo, left_out=LANGUAGE_KEY if has_instructions else None)
    config = {
        "type": "imitate",
        "n_obs_steps": 1,
        "input_features": {f.name: {"type": f.kind, "shape": list(f.shape)} for f in features},
        "output_features": {
            ACTION: {"type": "ACTION", "shape": [algo.preprocess.actions.sent_dim]}
        },
        "device": "cpu",
        "push_to_hub": False,
        "checkpoint": CHECKPOINT,
        "observations": {feature.name: list(feature.keys) for feature in features},
    }
    write_plugin_folder(folder, config, save)


def _camera_name(key: str) -> str:
    if key == "image":
        return "observation.image"
    return f"observation.images.{key.removesuffix('_image')}"


def _check_shared(algo: Algo) -> None:
    """Refuse options for which no policy of LeRobot has a counterpart."""
    if algo.goal_shapes or LANGUAGE_KEY in algo.obs_shapes:
        raise CheckpointError(
            f"the policy takes a goal or an instruction, but LeRobot's act and diffusion do not; use --to {PLUGIN} for "
            "policies with instructions"
        )
    if in_networks(algo.algo_config.to_dict()):
        raise CheckpointError("algo.networks is set, but LeRobot cannot build custom networks")
    if algo.preprocess.obs_clip is not None:
        raise CheckpointError(
            f"train.obs_clip is {algo.preprocess.obs_clip}, but LeRobot does not clip observations"
        )
    steps = [
        step.name
        for step in algo.preprocess.chosen_steps
        if step.name not in ("normalize", "resize")
    ]
    if steps:
        raise CheckpointError(f"train.preprocess: LeRobot has no step '{steps[0]}'")
    if any(key.rotation for key in algo.preprocess.actions.keys.values()):
        raise CheckpointError("train.action_config converts rotations, but LeRobot does not")


def _statistics(
    algo: Algo, features: list[Feature], encoders: list[CameraEncoder]
) -> Mapping[str, Mapping[str, Tensor]]:
    """Return our normalization as the mean and standard deviation of each feature and of the action."""
    normalization = algo.preprocess.normalization
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for feature in features:
        pairs = [normalization.obs_affine(key) for key in feature.keys]
        offset, scale = (torch.cat([pair[i].flatten().double() for pair in pairs]) for i in (0, 1))
        if feature.kind == "VISUAL":
            (encoder,) = (one for one in encoders if feature.key in one.keys)
            mean, std = encoder.affine(feature.shape[0])
            offset, scale = offset + scale * mean, scale * std
        found[feature.name] = offset, scale
    pairs = [normalization.action_affine(key) for key in algo.preprocess.actions.keys]
    found[ACTION] = tuple(torch.cat([p[i].flatten().double() for p in pairs]) for i in (0, 1))  # type: ignore[assignment]
    return {
        name: {"mean": offset.float(), "std": (scale - 1e-8).float()}
        for name, (offset, scale) in found.items()
    }
