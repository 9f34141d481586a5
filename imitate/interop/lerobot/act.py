"""Conversion between LeRobot's ACT and our ``act``: configuration and names of tensors.

Unlike ours, LeRobot's network has one token per vector, gives only the robot's state to the VAE's posterior, uses the
same map from camera features to tokens for all cameras, and has no embedding that distinguishes cameras. Its frozen
BatchNorm keeps the running statistics that come with the pretrained weights.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.act import ACTConfig, ACTNetwork
from imitate.config import Config
from imitate.errors import CheckpointError
from imitate.interop.lerobot.features import (
    CameraEncoder,
    Feature,
    Kind,
    backbone_of,
    cameras,
    vectors,
)
from imitate.interop.names import NameRule, names_of, same, to_ours, to_theirs, under
from imitate.models.observation import ObservationEncoder

PREFIX = "model."
_SINES = "vae_encoder_pos_enc"
"""LeRobot's name of the sine position embeddings in the posterior's encoder, which are not learned."""
_ROWS = "encoder_1d_feature_pos_embed.weight"
"""LeRobot's name of the learned position embeddings of the latent and of the vectors, one row each."""
_PLACED = ("policy.latent_place", "policy.obs.places")
"""Names of the learned position embeddings in our network."""
_COUNTER = "num_batches_tracked"


def algo_tree(config: Mapping[str, Any], features: list[Feature]) -> dict[str, Any]:
    """Return the parts of our configuration tree that differ from its defaults.

    Raises:
        CheckpointError: an option of LeRobot has no counterpart here; the message names it.
    """
    if config["n_obs_steps"] != 1:
        raise CheckpointError(
            f"n_obs_steps is {config['n_obs_steps']}, but act here takes 1 observation"
        )
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


def their_config(
    config: Config, network: ACTNetwork, features: list[Feature], encoders: list[CameraEncoder]
) -> dict[str, Any]:
    """Return LeRobot's configuration that describes the same policy as ours.

    Raises:
        CheckpointError: LeRobot has no counterpart of an option; the message names it.
    """
    section = cast(ACTConfig, config.algo)
    _check_exportable(config, network, features)
    sizes, vae = section.transformer, section.vae
    if any(entry.step == "resize" for entry in config.train.preprocess):
        raise CheckpointError(
            "train.preprocess resizes images, but LeRobot's ACT takes the cameras' images unchanged"
        )
    for encoder in encoders:
        if encoder.norm != "batch":
            raise CheckpointError("cameras have norm 'group'; LeRobot's ACT needs 'frozen_batch'")
        if encoder.crop is not None:
            raise CheckpointError("images are cropped, but LeRobot's ACT does not crop")
        if len(encoder.core.output_shape) != 3:
            raise CheckpointError(
                "cameras are encoded as vectors, but LeRobot's ACT takes feature maps (pool_class and "
                "feature_dimension null, flatten false)"
            )
    optimizer = section.optim_params.policy
    rate, decay = optimizer.learning_rate.initial, optimizer.regularization.L2
    return {
        "n_obs_steps": 1,
        "chunk_size": section.chunk.size,
        "n_action_steps": section.chunk.execute,
        "temporal_ensemble_coeff": section.chunk.temporal_ensemble,
        "vision_backbone": encoders[0].name if encoders else "resnet18",
        "pretrained_backbone_weights": None,
        "replace_final_stride_with_dilation": False,
        "pre_norm": sizes.pre_norm,
        "dim_model": sizes.embed_dim,
        "n_heads": sizes.num_heads,
        "dim_feedforward": sizes.feedforward_dim,
        "feedforward_activation": sizes.activation,
        "n_encoder_layers": sizes.encoder_layers,
        "n_decoder_layers": 1 if sizes.decoder_first_layer_only else sizes.decoder_layers,
        "use_vae": vae.enabled,
        "latent_dim": vae.latent_dim,
        "n_vae_encoder_layers": vae.encoder_layers,
        "dropout": sizes.dropout,
        "kl_weight": vae.kl_weight,
        "optimizer_lr": rate,
        "optimizer_weight_decay": decay,
        "optimizer_lr_backbone": rate * (encoders[0].trunk.lr_scale if encoders else 1.0),
    }


def _check_exportable(config: Config, network: ACTNetwork, features: list[Feature]) -> None:
    section = cast(ACTConfig, config.algo)
    vectors_here = [feature for feature in features if feature.kind != "VISUAL"]
    if config.train.frame_stack != 1:
        raise CheckpointError(
            f"train.frame_stack is {config.train.frame_stack}, but LeRobot's ACT takes one observation"
        )
    if section.chunk.latency:
        raise CheckpointError(
            f"algo.chunk.latency is {section.chunk.latency}, but LeRobot's ACT needs 0"
        )
    if len(vectors_here) > 1 and not section.tokens.separate_vectors:
        raise CheckpointError(
            "state and environment_state share one token, but LeRobot needs one for each: train with "
            "algo.tokens.separate_vectors=true"
        )
    if section.tokens.separate_vectors and any(len(one.keys) > 1 for one in vectors_here):
        names = ", ".join(network.obs.vectors)
        raise CheckpointError(
            f"each of {names} has its own token, but LeRobot has one token for 'state' and one for "
            "'environment_state'"
        )
    state = [key for feature in vectors(features, "STATE") for key in feature.keys]
    if section.vae.enabled and sorted(network.posterior_keys) != sorted(state):
        raise CheckpointError(
            f"the posterior takes {', '.join(network.posterior_keys) or 'no vectors'}; LeRobot's "
            f"takes {', '.join(state)}: train with algo.vae.posterior_keys set to these"
        )
    maps = list(network.obs.maps)
    if any(one is not maps[0] and not _equal(one, maps[0]) for one in maps):
        raise CheckpointError(
            "each camera has its own map to tokens, but in LeRobot all cameras share one: train with "
            "algo.tokens.shared_maps and the encoder's share set to true"
        )
    first = len(network.obs.places[0]) - len(maps)
    if section.tokens.camera_positions and bool((network.obs.places[0, first:] != 0).any()):
        raise CheckpointError(
            "cameras have learned position embeddings, which LeRobot lacks: train with "
            "algo.tokens.camera_positions=false"
        )


def _equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def our_tensors(
    network: ACTNetwork,
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    features: list[Feature],
) -> dict[str, Tensor]:
    """Convert LeRobot's tensors to ours.

    Args:
        network: our network, of which only the structure is used.
        ours: our network's tensors, used if LeRobot has no counterpart.
        theirs: all tensors of LeRobot's policy.
        features: observations, in LeRobot's order.
    """
    made = _places(network, features, theirs)
    # LeRobot's frozen BatchNorm does not count batches.
    made |= {name: value for name, value in ours.items() if name.endswith(_COUNTER)}
    names = names_of(
        [name for name in ours if name not in made], _rules(network, features), "LeRobot"
    )
    shapes = {name: value.shape for name, value in ours.items()}
    return made | to_ours(theirs, names, shapes, (PREFIX + _SINES, PREFIX + _ROWS))


def their_tensors(network: ACTNetwork, features: list[Feature]) -> dict[str, Tensor]:
    """Return all tensors that LeRobot's policy loads."""
    ours = {f"policy.{name}": value for name, value in network.state_dict().items()}
    layers = network.decoder.layers
    skipped = [
        f"policy.decoder.layers.{number}."
        for number in range(1, len(layers))
        if network.decoder.first_layer_only
    ]
    kept = [
        name
        for name in ours
        if name not in _PLACED
        and not name.endswith(_COUNTER)
        and not name.startswith(tuple(skipped))
    ]
    theirs = to_theirs(ours, names_of(kept, _rules(network, features), "LeRobot"))
    theirs |= _rows(network, features)
    if network.posterior is not None:
        theirs[PREFIX + _SINES] = network.posterior.places.detach().cpu().unsqueeze(0).clone()
    return theirs


def _rules(network: ACTNetwork, features: list[Feature]) -> list[NameRule]:
    """Return the rules for LeRobot's names of a policy's tensors, except learned positions."""
    vector_names = {
        "STATE": "encoder_robot_state_input_proj",
        "ENV": "encoder_env_state_input_proj",
    }
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
        NameRule(
            r"obs\.maps\.\d+\.weight", lambda: ("encoder_img_feat_input_proj.weight",), trail=2
        ),
        NameRule(r"obs\.maps\.\d+\.bias", lambda: ("encoder_img_feat_input_proj.bias",)),
    ]
    kinds = {key: feature.kind for feature in features for key in feature.keys}
    for number, key in enumerate(network.obs.vectors):
        rules.append(same(rf"obs\.vector_maps\.{number}\.(.+)", f"{vector_names[kinds[key]]}.{{}}"))
    if network.obs.vectors:  # there is only one type of vectors, which share one token
        joined = vector_names[kinds[network.obs.vectors[0]]]
        rules.append(same(r"obs\.state\.(.+)", f"{joined}.{{}}"))
    encoder: ObservationEncoder = network.obs.encoder
    for module in encoder.nets:
        backbone = f"obs.encoder.nets.{module}.core.backbone."
        rules += under([same(r"(.+)")], backbone, "backbone.")
    return under(rules, "policy.", PREFIX)


def _places(
    network: ACTNetwork, features: list[Feature], theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return our position embeddings: LeRobot's for the latent and the vectors, 0 for the cameras.

    Raises:
        CheckpointError: LeRobot's position embeddings are missing or have another shape.
    """
    rows = theirs.get(PREFIX + _ROWS)
    wanted = (1 + _num_vectors(features), network.latent_place.shape[-1])
    if rows is None or tuple(rows.shape) != wanted:
        got = "missing" if rows is None else f"of shape {tuple(rows.shape)}"
        raise CheckpointError(f"the tensor '{PREFIX}{_ROWS}' is {got}; expected {wanted}")
    at = torch.zeros_like(network.obs.places)
    for number, row in enumerate(_row_of_tokens(network, features)):
        at[0, number] = rows[row]
    return {"policy.latent_place": rows[:1].unsqueeze(0).clone(), "policy.obs.places": at}


def _rows(network: ACTNetwork, features: list[Feature]) -> dict[str, Tensor]:
    """Return LeRobot's position embeddings from ours; the inverse of :func:`_places`."""
    at = network.obs.places.detach().cpu()[0]
    rows = torch.zeros(1 + _num_vectors(features), at.shape[-1])
    rows[0] = network.latent_place.detach().cpu()[0, 0]
    for number, row in enumerate(_row_of_tokens(network, features)):
        rows[row] = at[number]
    return {PREFIX + _ROWS: rows}


def _num_vectors(features: list[Feature]) -> int:
    return sum(feature.kind != "VISUAL" for feature in features)


def _row_of_tokens(network: ACTNetwork, features: list[Feature]) -> list[int]:
    """Return the row of each vector's token; the order is latent, robot state, environment state."""
    order = [feature.keys for kind in _VECTORS for feature in vectors(features, kind)]
    if network.obs.state is not None:
        return [1]
    return [1 + order.index((key,)) for key in network.obs.vectors]


_VECTORS: tuple[Kind, ...] = ("STATE", "ENV")


def encoder_of(network: ACTNetwork) -> ObservationEncoder:
    """Return the policy's encoder of observations."""
    return network.obs.encoder
