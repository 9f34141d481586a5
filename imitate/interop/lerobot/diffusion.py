"""LeRobot's diffusion policy as ours: configuration, and names of tensors.

Theirs joins the features of a frame in the order state, cameras, surroundings; ours in the order of names. The columns
of the U-Net's conditions are permuted accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from imitate.errors import CheckpointError
from imitate.interop.lerobot.features import Feature, cameras, vectors
from imitate.interop.lerobot.trunks import backbone_of
from imitate.interop.names import Rule, same, under
from imitate.models.denoiser import Denoiser
from imitate.models.observation import ObservationEncoder
from imitate.models.unet import ConditionalUnet1D

PREFIX = "diffusion."
_CONDITION = ".cond_encoder.1.weight"


def algo_tree(config: Mapping[str, Any], features: list[Feature]) -> dict[str, Any]:
    """Return the parts of our configuration tree that differ from its defaults.

    Raises:
        CheckpointError: an option of theirs has no counterpart; the message names it.
    """
    samplers = {"DDPM": "ddpm", "DDIM": "ddim"}
    kind = config["noise_scheduler_type"]
    if kind not in samplers:
        raise CheckpointError(f"noise_scheduler_type: {kind!r}; expected DDPM or DDIM")
    steps = config["num_train_timesteps"]
    sampler = {
        "enabled": True,
        "num_train_timesteps": steps,
        "num_inference_timesteps": config["num_inference_steps"] or steps,
        **{key: config[key] for key in ("beta_schedule", "beta_start", "beta_end", "clip_sample")},
        **{key: config[key] for key in ("clip_sample_range", "prediction_type")},
    }
    observe, act = config["n_obs_steps"], config["n_action_steps"]
    return {
        "algo": {
            "optim_params": {
                "policy": {
                    "learning_rate": {
                        "initial": config["optimizer_lr"],
                        "scheduler_type": config["scheduler_name"],
                        "warmup_steps": config["scheduler_warmup_steps"],
                    },
                    "regularization": {"L2": config["optimizer_weight_decay"]},
                }
            },
            "horizon": {
                "observation_horizon": observe,
                "action_horizon": act,
                "prediction_horizon": config["horizon"],
            },
            "unet": {
                "enabled": True,
                "down_dims": list(config["down_dims"]),
                "cond_predict_scale": config["use_film_scale_modulation"],
                **{key: config[key] for key in ("kernel_size", "n_groups", "diffusion_step_embed_dim")},
            },
            "ddpm": {"enabled": False},
            "ddim": {"enabled": False},
            "ema": {"enabled": False},
        }
        | {samplers[kind]: sampler},
        "train": {
            "seq_length": config["horizon"],
            "frame_stack": observe,
            "max_grad_norm": 10.0,
            "preprocess": _resizing(config, features),
        },
        **_encoder(config, features),
    }


def _resizing(config: Mapping[str, Any], features: list[Feature]) -> list[dict[str, Any]]:
    size = config.get("resize_shape")
    return [{"step": "resize", "size": list(size)}] if size and cameras(features) else []


def _crop(config: Mapping[str, Any]) -> list[int] | None:
    """Return height and width of the crop; a share of the resized image stands above a size."""
    size, ratio = config.get("resize_shape"), config.get("crop_ratio", 1.0)
    if size:
        return [int(size[0] * ratio), int(size[1] * ratio)] if ratio < 1.0 else None
    return config["crop_shape"]  # type: ignore[no-any-return]


def _encoder(config: Mapping[str, Any], features: list[Feature]) -> dict[str, Any]:
    images = cameras(features)
    if not images:
        return {}
    if len({image.shape for image in images}) > 1:
        raise CheckpointError("input_features: cameras of several sizes; LeRobot's diffusion policy has one size")
    keypoints = config["spatial_softmax_num_keypoints"]
    trunk = {
        "norm": "group" if config["use_group_norm"] else "batch",
        "pretrained": False,
        "imagenet_normalization": False,
    }
    core = {
        "backbone_class": backbone_of(config),
        "backbone_kwargs": trunk,
        "pool_class": "SpatialSoftmax",
        "pool_kwargs": {"num_kp": keypoints},
        "feature_dimension": 2 * keypoints,
    }
    rgb = {
        "core_class": "VisualCore",
        "core_kwargs": core,
        "share": not config["use_separate_rgb_encoder_per_camera"],
    }
    crop = _crop(config)
    if crop is not None:
        if not config["crop_is_random"]:
            raise CheckpointError("crop_is_random: false has no counterpart here: crops are random in training")
        rgb["obs_randomizer_class"] = "CropRandomizer"
        rgb["obs_randomizer_kwargs"] = {
            "crop_height": crop[0],
            "crop_width": crop[1],
            "centre": "even",
        }
    return {"observation": {"encoder": {"rgb": rgb}}}


def rules_of(network: Denoiser, features: list[Feature]) -> list[Rule]:
    """Return the names of theirs for the tensors of a policy; conditions are permuted by :func:`reordered`."""
    unet = [
        Rule(
            r"((?:down|mid|up)_modules\..+)\.blocks\.(\d)\.(.+)",
            lambda block, number, rest: (f"{block}.conv{int(number) + 1}.{rest}",),
        ),
        same(r"((?:down|up)_modules\.\d+\.2)\.conv\.(.+)", "{}.{}"),
        same(r"(.+)"),
    ]
    rules = under(unet, "policy.network.", PREFIX + "unet.")
    encoder: ObservationEncoder = network.encoder.obs
    order = [image.key for image in cameras(features)]
    for module in encoder.nets:
        number = order.index(module.split("+")[0].replace("/", "."))
        theirs = f"{PREFIX}rgb_encoder." + ("" if "+" in module or len(order) == 1 else f"{number}.")
        core = f"policy.encoder.obs.nets.{module}.core."
        # A single camera may have an encoder of its own in a list.
        rules += under(_CORE, core, theirs)
    return rules


_CORE = [
    same(r"backbone\.conv1\.(.+)", "backbone.0.{}"),
    same(r"backbone\.bn1\.(.+)", "backbone.1.{}"),
    Rule(
        r"backbone\.layer(\d)\.(.+)",
        lambda stage, rest: (f"backbone.{int(stage) + 3}.{rest}",),
    ),
    same(r"pool\.maps\.(.+)", "pool.nets.{}"),
    same(r"linear\.(.+)", "out.{}"),
]
COMPUTED = r".*\.pool\.(pos_x|pos_y|temperature)"
"""Tensors of ours that follow from the configuration."""


def reordered(
    network: Denoiser, features: list[Feature], tensors: Mapping[str, Tensor], *, back: bool = False
) -> dict[str, Tensor]:
    """Permute the columns of the U-Net's conditions.

    Args:
        network: ours.
        features: theirs, in their order.
        tensors: by any names that end as theirs do.
        back: from our order to theirs, instead of the other way round.
    """
    unet = network.network
    assert isinstance(unet, ConditionalUnet1D)
    columns = _columns(network, features)
    if back:
        columns = torch.argsort(columns)
    changed = dict(tensors)
    for name, value in tensors.items():
        if name.endswith(_CONDITION) and value.shape[1] == unet.step_dim + len(columns):
            condition = value[:, unet.step_dim :][:, columns]
            changed[name] = torch.cat([value[:, : unet.step_dim], condition], dim=1)
    return changed


def _columns(network: Denoiser, features: list[Feature]) -> Tensor:
    """Return the number of their column for each of ours."""
    dims = network.encoder.obs.feature_dims
    order = [
        feature.key
        for part in (vectors(features, "STATE"), cameras(features), vectors(features, "ENV"))
        for feature in part
    ]
    starts, start = {}, 0
    for key in order:
        starts[key] = start
        start += dims[key]
    frame = torch.cat([torch.arange(starts[key], starts[key] + dims[key]) for key in dims])
    return torch.cat([frame + number * start for number in range(network.encoder.frames)])


def network_of(nets: nn.ModuleDict) -> Denoiser:
    """Return the network of a policy."""
    network = nets["policy"]
    assert isinstance(network, Denoiser)
    return network
