"""Conversion of LeRobot's policies to ours."""

from __future__ import annotations

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
from imitate.interop.lerobot.features import Feature, inputs_of, output_of
from imitate.interop.lerobot.folder import PolicyFolder, read_folder, read_json
from imitate.interop.lerobot.statistics import affine_of
from imitate.models.preprocess import Preprocess
from imitate.system.recognition import LEROBOT_ALGOS

_REFUSED = {
    "vqbet": "its network differs from vq_bet here: train that on its dataset",
    "of 2024": "LeRobot has had another layout since February 2025: let a release of 2025 save it again",
    "tdmpc": "it plans with a world model, which is not here; mbrl is the nearest",
    "sac": "it is the actor of HIL-SERL: train rlpd here",
    "gaussian_actor": "it is the actor of HIL-SERL: train rlpd here",
}
_ELSEWHERE = "it needs pretrained networks that LeRobot brings: run it there; act and diffusion policies are read here"


@dataclass(frozen=True)
class Imported:
    """A policy of LeRobot as an algorithm of ours.

    Attributes:
        algo: with its configuration, weights and normalization.
        parts: of a checkpoint, as the arguments of :func:`imitate.policy.checkpoint.checkpoint_dict`.
    """

    algo: Algo
    parts: dict[str, Any]


def from_lerobot(path: Path) -> Imported:
    """Return the same policy here: networks, normalization, execution; it acts equally.

    Args:
        path: folder with ``config.json`` and ``model.safetensors``.

    Raises:
        CheckpointError: a part of it has no counterpart here; the message names it.
    """
    their_config = read_json(path / "config.json")
    type_ = str(their_config.get("type", "of 2024"))
    if type_ not in LEROBOT_ALGOS:  # before weights, which may be of gigabytes
        reason = _REFUSED.get(type_, _ELSEWHERE)
        raise CheckpointError(f"a policy of type '{type_}' cannot be read: {reason}")
    folder = read_folder(path, their_config)
    features, action = inputs_of(folder.config), output_of(folder.config)
    preprocess_affine = _affine(folder, features, action)
    config = _config(folder, features)
    shapes = {feature.key: _network_shape(feature, config) for feature in features}
    # Fresh weights are drawn only to be replaced; the caller's random numbers stay as they were.
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
    return Imported(algo, parts)


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
        raise CheckpointError(f"its configuration does not fit this toolkit: {error}") from error


def _modality(feature: Feature) -> str:
    return "rgb" if feature.kind == "VISUAL" else "low_dim"


def _network_shape(feature: Feature, config: Config) -> tuple[int, ...]:
    """Return the shape of an observation as networks see it."""
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
    """Return the tensors of our networks."""
    theirs = {
        name: value.float() if value.is_floating_point() else value
        for name, value in folder.tensors.items()
    }
    network: Any = algo.nets["policy"]
    kind = act if folder.kind == "act" else diffusion
    made: dict[str, Tensor] = kind.our_tensors(network, algo.nets.state_dict(), theirs, features)
    return made
