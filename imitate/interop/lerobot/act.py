"""LeRobot's ACT as ours: configuration, and names of tensors.

Theirs has a token for each vector, shows the posterior the robot's state alone, ties the map from camera features to
tokens, and tells no camera from another; frozen BatchNorm keeps the statistics of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from imitate.algo.act import ACTNetwork
from imitate.errors import CheckpointError
from imitate.interop.lerobot.features import Feature, cameras, vectors
from imitate.interop.lerobot.trunks import backbone_of
from imitate.interop.names import Rule, same, under
from imitate.models.observation import ObservationEncoder

PREFIX = "model."
CONSTANTS = ("vae_encoder_pos_enc",)
"""Tensors of theirs that follow from the configuration."""
_ROWS = "encoder_1d_feature_pos_embed.weight"
"""Learned positions of the latent and of the vectors, a row each."""


def algo_tree(config: Mapping[str, Any], features: list[Feature]) -> dict[str, Any]:
    """Return the parts of our configuration tree that differ from its defaults.

    Raises:
        CheckpointError: an option of theirs has no counterpart; the message names it.
    """
    if config["n_obs_steps"] != 1:
        raise CheckpointError(f"n_obs_steps: {config['n_obs_steps']}; ACT of LeRobot has 1")
    state = vectors(features, "STATE")
    ensemble = config["temporal_ensemble_coeff"]
    return {
        "algo": {
            "optim_params": {
                "policy": {
                    "learning_rate": {"initial": config["optimizer_lr"]},
                    "regularization": {"L2": config["optimizer_weight_decay"]},
                }
            },
            "chunk": {
                "size": config["chunk_size"],
                "execute": config["n_action_steps"],
                "temporal_ensemble": ensemble,
            },
            "transformer": {
                "embed_dim": config["dim_model"],
                "num_heads": config["n_heads"],
                "feedforward_dim": config["dim_feedforward"],
                "encoder_layers": config["n_encoder_layers"],
                "decoder_layers": config["n_decoder_layers"],
                "dropout": config["dropout"],
                "pre_norm": config["pre_norm"],
                "activation": config["feedforward_activation"],
            },
            "tokens": {"separate_vectors": True, "shared_maps": True, "camera_positions": False},
            "vae": {
                "enabled": config["use_vae"],
                "latent_dim": config["latent_dim"],
                "kl_weight": config["kl_weight"],
                "encoder_layers": config["n_vae_encoder_layers"],
                "posterior_keys": [feature.key for feature in state],
            },
        },
        "train": {"seq_length": config["chunk_size"], "frame_stack": 1, "max_grad_norm": 10.0},
        **_encoder(config, features),
    }


def _encoder(config: Mapping[str, Any], features: list[Feature]) -> dict[str, Any]:
    if not cameras(features):
        return {}
    if config["replace_final_stride_with_dilation"]:
        raise CheckpointError("replace_final_stride_with_dilation: true has no counterpart here")
    rates = config["optimizer_lr"], config["optimizer_lr_backbone"]
    trunk = {
        "norm": "frozen_batch",
        "pretrained": False,
        "imagenet_normalization": False,
        "lr_scale": rates[1] / rates[0],
    }
    core = {
        "backbone_class": backbone_of(config),
        "backbone_kwargs": trunk,
        "pool_class": None,
        "flatten": False,
        "feature_dimension": None,
    }
    rgb = {"core_class": "VisualCore", "core_kwargs": core, "share": True}
    return {"observation": {"encoder": {"rgb": rgb}}}


def rules_of(network: ACTNetwork, features: list[Feature]) -> list[Rule]:
    """Return the names of theirs for the tensors of a policy, but for those of :func:`places`."""
    vector_names = {"STATE": "encoder_robot_state_input_proj", "ENV": "encoder_env_state_input_proj"}
    rules = [
        same(r"latent\.(.+)", "encoder_latent_input_proj.{}"),
        same(r"((?:encoder|decoder)\..+)"),
        same(r"queries", "decoder_pos_embed.weight"),
        same(r"action\.(.+)", "action_head.{}"),
        same(r"posterior\.summary", "vae_encoder_cls_embed.weight", lead=1),
        same(r"posterior\.state\.(.+)", "vae_encoder_robot_state_input_proj.{}"),
        same(r"posterior\.action\.(.+)", "vae_encoder_action_input_proj.{}"),
        same(r"posterior\.latent\.(.+)", "vae_encoder_latent_output_proj.{}"),
        same(r"posterior\.encoder\.(.+)", "vae_encoder.{}"),
        Rule(r"obs\.maps\.\d+\.weight", lambda: ("encoder_img_feat_input_proj.weight",), trail=2),
        Rule(r"obs\.maps\.\d+\.bias", lambda: ("encoder_img_feat_input_proj.bias",)),
    ]
    kinds = {feature.key: feature.kind for feature in features}
    for number, key in enumerate(network.obs.vectors):
        rules.append(same(rf"obs\.vector_maps\.{number}\.(.+)", f"{vector_names[kinds[key]]}.{{}}"))
    encoder: ObservationEncoder = network.obs.encoder
    for module in encoder.nets:
        backbone = f"obs.encoder.nets.{module}.core.backbone."
        rules += under([same(r"(.+)")], backbone, "backbone.")
    return under(rules, "policy.", PREFIX)


def places(
    network: ACTNetwork, features: list[Feature], theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return our learned positions: of the latent, the vectors and the cameras, whose positions are 0.

    Raises:
        CheckpointError: theirs are missing or of another shape.
    """
    rows = theirs.get(PREFIX + _ROWS)
    wanted = (1 + len(network.obs.vectors), network.latent_place.shape[-1])
    if rows is None or tuple(rows.shape) != wanted:
        got = "missing" if rows is None else f"of shape {tuple(rows.shape)}"
        raise CheckpointError(f"'{PREFIX}{_ROWS}' is {got}; expected {wanted}")
    at = torch.zeros_like(network.obs.places)
    for number, key in enumerate(network.obs.vectors):
        at[0, number] = rows[_row(features, key)]
    return {"policy.latent_place": rows[:1].unsqueeze(0).clone(), "policy.obs.places": at}


def place_rows(network: ACTNetwork, features: list[Feature]) -> dict[str, Tensor]:
    """Return theirs of our learned positions, the inverse of :func:`places`."""
    at = network.obs.places.detach()[0]
    rows = torch.zeros(1 + len(network.obs.vectors), at.shape[-1])
    rows[0] = network.latent_place.detach()[0, 0]
    for number, key in enumerate(network.obs.vectors):
        rows[_row(features, key)] = at[number]
    return {PREFIX + _ROWS: rows}


PLACED = ("policy.latent_place", "policy.obs.places")
"""Tensors of ours that :func:`places` makes."""
PLACE_NAMES = (PREFIX + _ROWS,)
"""Tensors of theirs that it reads."""


def _row(features: list[Feature], key: str) -> int:
    """Return the row of a vector: the robot's state comes before that of its surroundings."""
    names = [feature.key for kind in ("STATE", "ENV") for feature in vectors(features, kind)]
    return 1 + names.index(key)


def network_of(nets: nn.ModuleDict) -> ACTNetwork:
    """Return the network of a policy."""
    network = nets["policy"]
    assert isinstance(network, ACTNetwork)
    return network
