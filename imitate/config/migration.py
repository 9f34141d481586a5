"""From the trees of robomimic's releases to the present one."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

STRAY_KEYS = {
    "experiment.mse": "an empty object in robomimic's bc_transformer template that nothing reads",
    "algo.optim_params.*.num_train_batches": "written into saved configurations by robomimic's "
    "training script",
    "algo.optim_params.*.num_epochs": "written into saved configurations by robomimic's "
    "training script",
}
"""Keys in robomimic's files that mean nothing: dropped with a warning. ``*`` is any one key."""


def migrate(tree: dict[str, Any]) -> dict[str, Any]:
    """A tree in today's form; ``tree`` is a private copy and may be changed."""
    tree.pop("$schema", None)
    for pattern, reason in STRAY_KEYS.items():
        for path in _drop(tree, pattern.split("."), ()):
            logger.warning("%s: dropped, %s", path, reason)
    if isinstance(tree.get("observation"), dict):
        _rename_images(tree["observation"])
    return tree


def _drop(node: Any, pattern: list[str], path: tuple[str, ...]) -> list[str]:
    if not isinstance(node, dict):
        return []
    keys = list(node) if pattern[0] == "*" else [key for key in pattern[:1] if key in node]
    if len(pattern) == 1:
        for key in keys:
            del node[key]
        return [".".join((*path, key)) for key in keys]
    return [found for key in keys for found in _drop(node[key], pattern[1:], (*path, key))]


def _rename_images(observation: dict[str, Any]) -> None:
    """Before 0.2 the modality ``rgb`` was ``image``, with the one encoder, in flat keys."""
    modalities = observation.get("modalities")
    if not isinstance(modalities, dict):  # hierarchical algorithms nest one level deeper
        for child in observation.values():
            if isinstance(child, dict):
                _rename_images(child)
        return
    renamed = False
    for group in modalities.values():
        if isinstance(group, dict) and "image" in group:
            group["rgb"] = group.pop("image")
            renamed = True
    encoder = observation.get("encoder")
    if renamed and isinstance(encoder, dict):
        observation["encoder"] = {"rgb": _encoder_from_flat_keys(encoder)}


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
