"""Conversion between LeRobot's diffusion policy and our ``diffusion_policy``: configuration and names of tensors.

LeRobot concatenates the features of a frame in the order state, cameras, environment state; imitate sorts them by name.
So the columns of the weights for the U-Net's condition are permuted.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.diffusion_policy import DiffusionPolicyConfig
from imitate.config import Config
from imitate.errors import CheckpointError
from imitate.interop.lerobot.features import CameraEncoder, Feature, backbone_of, cameras, vectors
from imitate.interop.names import NameRule, names_of, same, to_ours, to_theirs, under
from imitate.models.denoiser import Denoiser
from imitate.models.observation import ObservationEncoder
from imitate.models.pools import SpatialSoftmax
from imitate.models.unet import ConditionalUnet1D

PREFIX = "diffusion."
_CONDITION = ".cond_encoder.1.weight"


def algo_tree(config: Mapping[str, Any], features: list[Feature]) -> dict[str, Any]:
    """Return the parts of our configuration tree that differ from its defaults.

    Raises:
        CheckpointError: an option of LeRobot has no counterpart here; the message names it.
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
                    "betas": config["optimizer_betas"],
                    "learning_rate": {
                        "initial": config["optimizer_lr"],
                        "scheduler_type": "cosine"
                        if config["scheduler_name"] == "cosine"
                        else "multistep",
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
                **{
                    key: config[key]
                    for key in ("kernel_size", "n_groups", "diffusion_step_embed_dim")
                },
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
    """Return height and width of the crop; LeRobot's crop as a fraction of the resized image overrides a crop size."""
    size, ratio = config.get("resize_shape"), config.get("crop_ratio", 1.0)
    if size:
        return [int(size[0] * ratio), int(size[1] * ratio)] if ratio < 1.0 else None
    return config["crop_shape"]  # type: ignore[no-any-return]


def _encoder(config: Mapping[str, Any], features: list[Feature]) -> dict[str, Any]:
    images = cameras(features)
    if not images:
        return {}
    if len({image.shape for image in images}) > 1:
        raise CheckpointError(
            "input_features: cameras have different sizes; LeRobot's diffusion policy takes one size"
        )
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
            raise CheckpointError(
                "crop_is_random: false has no counterpart here: crops are random in training"
            )
        rgb["obs_randomizer_class"] = "CropRandomizer"
        rgb["obs_randomizer_kwargs"] = {
            "crop_height": crop[0],
            "crop_width": crop[1],
            "centre": "even",
        }
    return {"observation": {"encoder": {"rgb": rgb}}}


def their_config(
    config: Config, network: Denoiser, features: list[Feature], encoders: list[CameraEncoder]
) -> dict[str, Any]:
    """Return LeRobot's configuration that describes the same policy as ours.

    Raises:
        CheckpointError: LeRobot has no counterpart of an option; the message names it.
    """
    section = cast(DiffusionPolicyConfig, config.algo)
    sampler, horizon, unet = section.sampler, section.horizon, section.unet
    _check_exportable(section)
    for encoder in encoders:
        _check_pool(encoder)
    keypoints = encoders[0].core.output_shape[0] // 2 if encoders else 32
    crop = encoders[0].crop if encoders else None
    resize = [
        entry.to_dict()["size"] for entry in config.train.preprocess if entry.step == "resize"
    ]
    if resize and crop is not None:
        raise CheckpointError(
            "images are resized and then cropped to a size, but LeRobot crops a resized image to a "
            "fraction: omit the resize or the crop"
        )
    optimizer = section.optim_params.policy
    theirs = {
        "n_obs_steps": horizon.observation_horizon,
        "horizon": horizon.prediction_horizon,
        "n_action_steps": horizon.action_horizon,
        "drop_n_last_frames": max(
            0, horizon.prediction_horizon - horizon.action_horizon - horizon.observation_horizon + 1
        ),
        "vision_backbone": encoders[0].name if encoders else "resnet18",
        "crop_shape": None if crop is None else list(crop.crop),
        "crop_is_random": True,
        "pretrained_backbone_weights": None,
        "use_group_norm": not encoders or encoders[0].norm == "group",
        "spatial_softmax_num_keypoints": keypoints,
        "use_separate_rgb_encoder_per_camera": len(encoders) > 1,
        "down_dims": list(unet.down_dims),
        "kernel_size": unet.kernel_size,
        "n_groups": unet.n_groups,
        "diffusion_step_embed_dim": unet.diffusion_step_embed_dim,
        "use_film_scale_modulation": unet.cond_predict_scale,
        "noise_scheduler_type": "DDIM" if section.ddim.enabled else "DDPM",
        "num_train_timesteps": sampler.num_train_timesteps,
        "beta_schedule": sampler.beta_schedule,
        "beta_start": sampler.beta_start,
        "beta_end": sampler.beta_end,
        "prediction_type": sampler.prediction_type,
        "clip_sample": sampler.clip_sample,
        "clip_sample_range": sampler.clip_sample_range,
        "num_inference_steps": sampler.num_inference_timesteps,
        "do_mask_loss_for_padding": True,
        "optimizer_lr": optimizer.learning_rate.initial,
        "optimizer_betas": list(optimizer.betas),
        "optimizer_weight_decay": optimizer.regularization.L2,
        "scheduler_name": "cosine"
        if optimizer.learning_rate.scheduler_type == "cosine"
        else "constant_with_warmup",
        "scheduler_warmup_steps": optimizer.learning_rate.warmup_steps,
    }
    return theirs | ({"resize_shape": list(resize[0])} if resize else {})


def _check_exportable(section: DiffusionPolicyConfig) -> None:
    ddim = section.ddim
    problems = {
        "algo.unet.enabled is false": not section.unet.enabled,
        "algo.prefix.max_delay is set": section.prefix.max_delay > 0,
        "algo.horizon.temporal_ensemble is set": section.horizon.temporal_ensemble is not None,
        "algo.horizon.latency is set": section.horizon.latency > 0,
        "prediction_type is v_prediction": section.sampler.prediction_type == "v_prediction",
        "algo.ddim.steps_offset or set_alpha_to_one differs from its default": ddim.enabled
        and (ddim.steps_offset != 0 or not ddim.set_alpha_to_one),
    }
    found = [words for words, holds in problems.items() if holds]
    if found:
        raise CheckpointError(f"{found[0]}, but LeRobot's diffusion policy has no such option")


def _check_pool(encoder: CameraEncoder) -> None:
    """Refuse an encoder that does not consist of crop, trunk, spatial softmax, square linear layer and ReLU."""
    pool, crop = encoder.core.pool, encoder.crop
    plain = (
        isinstance(pool, SpatialSoftmax)
        and isinstance(pool.maps, nn.Conv2d)
        and not pool.output_variance
        and bool((pool.temperature == 1).all())
        and encoder.core.output_shape == (2 * pool.num_kp,)
        and isinstance(encoder.core.linear, nn.Linear)
    )
    if not plain:
        raise CheckpointError(
            f"encoder of '{encoder.keys[0]}': LeRobot's diffusion policy needs SpatialSoftmax with "
            "num_kp keypoints and a feature_dimension of 2 * num_kp"
        )
    if crop is not None and any(
        round(room / 2) != at for room, at in zip(crop.room, crop.corner, strict=True)
    ):
        raise CheckpointError(
            f"encoder of '{encoder.keys[0]}': its centre crop begins a pixel before LeRobot's: train "
            "with the crop's centre set to 'even'"
        )


def our_tensors(
    network: Denoiser,
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    features: list[Feature],
) -> dict[str, Tensor]:
    """Convert LeRobot's tensors to ours.

    Args:
        network: our network, of which only the structure is used.
        ours: our network's tensors, used for constants that the configuration determines.
        theirs: all tensors of LeRobot's policy.
        features: observations, in LeRobot's order.
    """
    made = {name: value for name, value in ours.items() if re.fullmatch(_COMPUTED, name)}
    separate = any(name.startswith(f"{PREFIX}rgb_encoder.0.") for name in theirs)
    rules = _rules(network, features, separate=separate)
    names = names_of([name for name in ours if name not in made], rules, "LeRobot")
    shapes = {name: value.shape for name, value in ours.items()}
    grids = [name for name in theirs if name.endswith(_GRID)]
    return made | to_ours(_reordered(network, features, theirs), names, shapes, grids)


def their_tensors(network: Denoiser, features: list[Feature]) -> dict[str, Tensor]:
    """Return all tensors that LeRobot's policy loads."""
    ours = {f"policy.{name}": value for name, value in network.state_dict().items()}
    rules = _rules(network, features, separate=len(encoder_of(network).nets) > 1)
    theirs: dict[str, Tensor] = {}
    for name in ours:
        if not re.fullmatch(_COMPUTED, name):
            theirs |= to_theirs(ours, names_of([name], rules, "LeRobot"))
        elif name.endswith("pos_x"):
            grid = torch.stack((ours[name], ours[name.removesuffix("x") + "y"]), dim=-1).cpu()
            (maps,) = names_of([name.removesuffix("pos_x") + "maps.weight"], rules, "LeRobot")
            theirs[maps.theirs.removesuffix(".nets.weight") + _GRID.removeprefix(".pool")] = grid
    return _reordered(network, features, theirs, back=True)


def _rules(network: Denoiser, features: list[Feature], *, separate: bool) -> list[NameRule]:
    """Return the rules for LeRobot's names of tensors; :func:`_reordered` permutes columns for the condition."""
    unet = [
        NameRule(
            r"((?:down|mid|up)_modules\..+)\.blocks\.(\d)\.(.+)",
            lambda block, number, rest: (f"{block}.conv{int(number) + 1}.{rest}",),
        ),
        same(r"((?:down|up)_modules\.\d+\.2)\.conv\.(.+)", "{}.{}"),
        same(r"(.+)"),
    ]
    rules = under(unet, "policy.network.", PREFIX + "unet.")
    order = [key for image in cameras(features) for key in image.keys]
    nets = encoder_of(network).nets
    for module in nets:
        number = order.index(module.split("+")[0].replace("/", "."))
        theirs = f"{PREFIX}rgb_encoder." + (f"{number}." if separate else "")
        rules = under(_CORE, f"policy.encoder.obs.nets.{module}.core.", theirs) + rules
    return rules


_CORE = [
    same(r"backbone\.conv1\.(.+)", "backbone.0.{}"),
    same(r"backbone\.bn1\.(.+)", "backbone.1.{}"),
    NameRule(
        r"backbone\.layer(\d)\.(.+)",
        lambda stage, rest: (f"backbone.{int(stage) + 3}.{rest}",),
    ),
    same(r"pool\.maps\.(.+)", "pool.nets.{}"),
    same(r"linear\.(.+)", "out.{}"),
]
_COMPUTED = r".*\.pool\.(pos_x|pos_y|temperature)"
"""Our names of tensors that are constants, determined by the configuration."""
_GRID = ".pool.pos_grid"
"""Suffix of LeRobot's names of the tensors whose columns are permuted."""


def _reordered(
    network: Denoiser, features: list[Feature], tensors: Mapping[str, Tensor], *, back: bool = False
) -> dict[str, Tensor]:
    """Permute the columns of the weights for the U-Net's condition.

    Args:
        network: our network.
        features: observations, in LeRobot's order.
        tensors: tensors by LeRobot's names, with or without a prefix.
        back: true to permute from our order to LeRobot's, false for the opposite direction.
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
    """Return the index of LeRobot's column for each of our columns."""
    dims = network.encoder.obs.feature_dims
    order = [
        key
        for part in (vectors(features, "STATE"), cameras(features), vectors(features, "ENV"))
        for feature in part
        for key in feature.keys
    ]
    starts, start = {}, 0
    for key in order:
        starts[key] = start
        start += dims[key]
    frame = torch.cat([torch.arange(starts[key], starts[key] + dims[key]) for key in dims])
    return torch.cat([frame + number * start for number in range(network.encoder.frames)])


def encoder_of(network: Denoiser) -> ObservationEncoder:
    """Return the policy's encoder of observations."""
    return network.encoder.obs
