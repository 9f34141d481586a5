"""Migration of configuration trees from earlier releases of robomimic to the present form."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

STRAY_KEYS = {
    "experiment.mse": "not supported",
    "algo.optim_params.*.num_train_batches": "written by robomimic's training script, means nothing",
    "algo.optim_params.*.num_epochs": "written by robomimic's training script, means nothing",
}
"""Keys of robomimic's files that are not used here; they are dropped with a warning. ``*`` matches any one key."""

FLAT_ENCODER_KEYS = {
    "visual_core",
    "visual_core_kwargs",
    "visual_feature_dimension",
    "use_spatial_softmax",
    "spatial_softmax_kwargs",
    "obs_randomizer_class",
    "obs_randomizer_kwargs",
}
"""Image encoder keys that were directly in ``observation.encoder`` before 0.2."""

CORE_KEYS = ("feature_dimension", "pool_class", "pool_kwargs")
"""Keys that were beside ``core_kwargs`` in 0.2 and are now inside it."""


def migrate(tree: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """Convert a tree to the present form.

    Args:
        tree: a private copy, which is changed.
        quiet: drop meaningless keys without a warning.
    """
    tree.pop("$schema", None)
    for pattern, reason in STRAY_KEYS.items():
        for path in _drop(tree, pattern.split("."), ()):
            if not quiet:
                logger.warning("%s: %s: dropped", path, reason)
    _update_observation(tree.get("observation"))
    return tree


def _drop(node: object, pattern: list[str], path: tuple[str, ...]) -> list[str]:
    if not isinstance(node, dict):
        return []
    keys = list(node) if pattern[0] == "*" else [key for key in pattern[:1] if key in node]
    if len(pattern) == 1:
        for key in keys:
            del node[key]
        return [".".join((*path, key)) for key in keys]
    return [found for key in keys for found in _drop(node[key], pattern[1:], (*path, key))]


def _update_observation(observation: object) -> None:
    if not isinstance(observation, dict):
        return
    if "modalities" not in observation and "encoder" not in observation:
        for child in observation.values():  # hierarchical algorithms are nested one level deeper
            _update_observation(child)
        return
    for group in _objects_in(observation.get("modalities")):
        if "image" in group:
            group["rgb"] = group.pop("image")
    encoder = observation.get("encoder")
    if isinstance(encoder, dict) and FLAT_ENCODER_KEYS & encoder.keys():
        observation["encoder"] = {"rgb": _encoder_from_flat_keys(encoder)}
    for one in _objects_in(observation.get("encoder")):
        _move_into_core_kwargs(one)


def _objects_in(node: object) -> list[dict[str, Any]]:
    values = node.values() if isinstance(node, dict) else ()
    return [value for value in values if isinstance(value, dict)]


def _move_into_core_kwargs(encoder: dict[str, Any]) -> None:
    moved = {key: encoder.pop(key) for key in CORE_KEYS if key in encoder}
    if moved and encoder.get("core_class"):  # these keys had no effect without a core
        encoder["core_kwargs"] = {**moved, **(encoder.get("core_kwargs") or {})}


def _encoder_from_flat_keys(old: dict[str, Any]) -> dict[str, Any]:
    core: dict[str, Any] = {"backbone_kwargs": {}, "pool_kwargs": {}}
    if "visual_feature_dimension" in old:
        core["feature_dimension"] = old["visual_feature_dimension"]
    if "visual_core" in old:
        core["backbone_class"] = old["visual_core"]
    if old.get("use_spatial_softmax", True):
        core["pool_class"] = "SpatialSoftmax"
    for new, flat, keys in (
        ("backbone_kwargs", "visual_core_kwargs", ("pretrained", "input_coord_conv")),
        (
            "pool_kwargs",
            "spatial_softmax_kwargs",
            ("num_kp", "learnable_temperature", "temperature", "noise_std"),
        ),
    ):
        values = old.get(flat) or {}
        core[new] = {key: values[key] for key in keys if key in values}
    kept: dict[str, Any] = {
        key: old[key] for key in ("obs_randomizer_class", "obs_randomizer_kwargs") if key in old
    }
    return {"core_class": "VisualCore", "core_kwargs": core, **kept}
