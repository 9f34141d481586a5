"""Conversion of robomimic's checkpoints to ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit, count_numbers
from imitate.algo.base.factory import algo_factory
from imitate.algo.base.hierarchy import Hierarchy
from imitate.config import Config, load_config
from imitate.errors import CheckpointError, UserError
from imitate.interop.names import Name, names_of
from imitate.interop.robomimic.configuration import ours_from_theirs
from imitate.interop.robomimic.networks import constants_of, rules_of
from imitate.interop.robomimic.optimizers import moments
from imitate.interop.robomimic.statistics import affine_of
from imitate.interop.weights import to_ours
from imitate.models.action_layout import ActionLayout
from imitate.models.layout import raw_shape_of
from imitate.models.preprocess import Preprocess


@dataclass(frozen=True)
class Imported:
    """A policy of robomimic as an algorithm of ours.

    Attributes:
        algo: with its configuration, weights and normalization.
        parts: of a checkpoint, as the arguments of :func:`imitate.policy.checkpoint.checkpoint_dict`.
    """

    algo: Algo
    parts: dict[str, Any]


def from_robomimic(ckpt: Mapping[str, Any]) -> Imported:
    """Return the same policy here: its networks, averages, normalization and, where they map, Adam's moments.

    As in robomimic, actions are not clipped.

    Raises:
        CheckpointError: a part of it has no counterpart here; the message names it.
    """
    algo, names = _algo_and_names(ckpt)
    saved: dict[str, Any] = {
        "nets": algo.nets.state_dict(),
        "optimizers": moments(algo, ckpt["model"], names),
    }
    variables = ckpt.get("variable_state") or {}
    epoch = int(variables.get("epoch") or 0)
    step = epoch * (algo.global_config.experiment.epoch_every_n_steps or 0)
    if isinstance(algo, Hierarchy):
        saved["emas"] = {}
    if algo.ema is not None:
        # robomimic does not save how many updates its average has seen, and overwrites it in the first ones.
        algo.ema.num_updates = step
        saved["ema"] = algo.ema.state_dict()
    metas = ckpt.get("env_metadata") or {}
    metas = metas if isinstance(metas, list) else [metas]
    parts = {
        "env_metadata": metas[0],
        "environments": metas,
        "shape_metadata": {
            "raw_shapes": {k: list(v) for k, v in algo.preprocess.raw_shapes.items()},
            "action_dims": {k: key.stored for k, key in algo.preprocess.actions.keys.items()},
        },
        "train_state": {"epoch": epoch, "step": step} if variables else {},
        "provenance": {"imported_from": "robomimic", "robomimic_config": ckpt["config"]},
        "model": saved,
    }
    return Imported(algo, parts)


def algo_from_robomimic(ckpt: Mapping[str, Any]) -> Algo:
    """Return the algorithm of a checkpoint, with its weights and normalization.

    Args:
        ckpt: content of a file of robomimic.

    Raises:
        CheckpointError: a part of it has no counterpart here; the message names it.
    """
    return _algo_and_names(ckpt)[0]


def _algo_and_names(ckpt: Mapping[str, Any]) -> tuple[Algo, list[Name]]:
    obs_affine = affine_of(ckpt.get("obs_normalization_stats"), "obs_normalization_stats")
    config = _config(ckpt, bool(obs_affine))
    shapes = {key: tuple(shape) for key, shape in _shape_metadata(ckpt)["all_shapes"].items()}
    ac_dim = int(_shape_metadata(ckpt)["ac_dim"])
    # Fresh weights are drawn only to be replaced; the caller's random numbers stay as they were.
    with torch.random.fork_rng(devices=[]), AllocationLimit(count_numbers(ckpt["model"])):
        algo = algo_factory(config.algo_name, config, shapes, ac_dim, "cpu", load_pretrained=False)
    algo.preprocess = _preprocess(ckpt, algo, obs_affine)
    return algo, _load_weights(algo, ckpt)


def _config(ckpt: Mapping[str, Any], normalizes_obs: bool) -> Config:
    tree = ckpt["config"]
    tree = json.loads(tree) if isinstance(tree, str) else json.loads(json.dumps(tree))
    try:
        return load_config(
            ours_from_theirs(str(ckpt["algo_name"]), tree, normalizes_obs, _tensors(ckpt))
        )
    except UserError as error:
        raise CheckpointError(f"its configuration does not fit this toolkit: {error}") from error


def _tensors(ckpt: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """Return the tensors of the networks."""
    return flattened(ckpt["model"])


def flattened(model: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of ``model``: itself up to 0.4, an entry since then; several in hierarchical policies."""
    if "nets" in model:
        return flattened(model["nets"], prefix)
    tensors: dict[str, Tensor] = {}
    for name, value in model.items():
        if isinstance(value, Tensor):
            tensors[prefix + name] = value
        elif isinstance(value, Mapping):
            tensors |= flattened(value, f"{prefix}{name}.")
    return tensors


def _shape_metadata(ckpt: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of the first dataset, where there are several: they have one network."""
    shapes = ckpt["shape_metadata"]
    return shapes[0] if isinstance(shapes, list) else shapes  # type: ignore[no-any-return]


def _preprocess(ckpt: Mapping[str, Any], algo: Algo, obs_affine: Mapping[str, Any]) -> Preprocess:
    modalities = algo.preprocess.modalities
    affine = {}
    for key, (offset, scale) in obs_affine.items():
        if key not in modalities:
            continue
        if modalities[key] == "low_dim":
            affine[key] = (offset, scale)
        elif not (bool((offset == 0).all()) and bool((scale == 1).all())):
            raise CheckpointError(
                f"obs_normalization_stats of '{key}' ({modalities[key]}): robomimic cannot act with normalized images "
                "and scans, so there is nothing to be equal to"
            )
    actions = affine_of(ckpt.get("action_normalization_stats"), "action_normalization_stats")
    train = algo.global_config.train
    sizes = {key: offset.numel() for key, (offset, _) in actions.items()}
    if len(train.action_keys) == 1:
        sizes = {train.action_keys[0]: algo.ac_dim}
    unknown = [key for key in train.action_keys if key not in sizes]
    if unknown:
        raise CheckpointError(
            f"action_normalization_stats: lack {', '.join(unknown)}, so that nothing says how many numbers each of "
            "train.action_keys has"
        )
    layout = ActionLayout.from_config(
        {key: sizes[key] for key in train.action_keys}, dict(train.action_config.items())
    )
    raw = {
        key: raw_shape_of(shape, modalities[key], key)
        for key, shape in algo.preprocess.obs_shapes.items()
    }
    normalized = {key: pair for key, pair in actions.items() if key in sizes}
    return Preprocess(raw, modalities, layout, affine, normalized)


def _load_weights(algo: Algo, ckpt: Mapping[str, Any]) -> list[Name]:
    """Fill the networks; return the names of their tensors."""
    theirs = _tensors(ckpt)
    ours = algo.nets.state_dict()
    names = names_of(ours, rules_of(algo.nets), "robomimic")
    shapes = {name: value.shape for name, value in ours.items()}
    constants = constants_of(algo.nets)
    algo.nets.load_state_dict(to_ours(theirs, names, shapes, constants))
    averaged = ckpt["model"].get("ema")
    if algo.ema is not None and averaged is not None:
        algo.ema.module.load_state_dict(to_ours(averaged, names, shapes, constants))
    return names
