"""Abilities of our policies that robomimic's lack: the export refuses them by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from imitate.algo.base.algo import Algo
from imitate.errors import CheckpointError
from imitate.interop.robomimic.released_keys import ALGO
from imitate.models.key_encoder import KeyEncoder
from imitate.models.pools import AttentionPool, QueryPool
from imitate.models.resnet import ResNet, ResNet18Conv, ResNet50Conv
from imitate.models.visual import ShallowConv
from imitate.models.vit import ViT

SHALLOW_CHANNELS = 32
UNET = {
    "diffusion_step_embed_dim": 256,
    "down_dims": (256, 512, 1024),
    "kernel_size": 5,
    "n_groups": 8,
}
"""The only U-Net of robomimic, whatever its key ``algo.unet`` says."""


def check_exportable(algo: Algo, release: str) -> None:
    """Refuse settings that a release of robomimic treats differently, or does not have.

    Raises:
        CheckpointError: the message names all of them.
    """
    problems = [*_of_algorithm(algo, release), *_of_observations(algo), *_of_actions(algo, release)]
    if algo.preprocess.obs_clip is not None:
        problems.append("train.obs_clip: it does not bound observations")
    if algo.preprocess.chosen_steps:
        names = ", ".join(step.name for step in algo.preprocess.chosen_steps)
        problems.append(f"train.preprocess: it has no steps such as {names}")
    if problems:
        raise CheckpointError(
            f"robomimic {release} cannot act like this policy: {'; '.join(problems)}"
        )


def _of_algorithm(algo: Algo, release: str) -> Iterator[str]:
    name = algo.global_config.algo_name
    if name not in ALGO or (name == "diffusion_policy" and release == "0.3"):
        known = [one for one in ALGO if release != "0.3" or one != "diffusion_policy"]
        yield f"it has no algorithm '{name}' (it has {', '.join(known)})"
        return
    section = algo.algo_config
    if section.get("actor_sees_subgoal", False):
        yield "algo.actor_sees_subgoal: its actors of hbc and iris see no subgoal"
    chunk = section.get("chunk", None)
    if chunk is not None and chunk.enabled:
        yield "algo.chunk.enabled: it predicts one action at a time"
    rnn = section.get("rnn", None)
    if name != "bc" and rnn is not None and rnn.enabled:
        yield f"algo.rnn.enabled: its {name} has no memory"
    transformer = section.get("transformer", None)
    stacks = name == "diffusion_policy"
    if name == "bc" and transformer.enabled:
        stacks = True
        yield from _of_transformer(algo, transformer, release)
    if algo.frame_stack > 1 and not stacks:
        yield f"train.frame_stack {algo.frame_stack}: its networks without memory see one observation"
    if name == "diffusion_policy":
        yield from _of_diffusion(algo, section)


def _of_transformer(algo: Algo, transformer: Any, release: str) -> Iterator[str]:
    if transformer.rotary_embedding:
        yield "algo.transformer.rotary_embedding"
    if transformer.pred_future_acs and release == "0.3":
        yield "algo.transformer.pred_future_acs"
    if transformer.causal is False or (transformer.pred_future_acs and not transformer.causal):
        yield "algo.transformer.causal: its attention is always causal, with pred_future_acs too"
    if algo.frame_stack != transformer.context_length:
        yield (
            f"train.frame_stack {algo.frame_stack}: it must be algo.transformer.context_length "
            f"{transformer.context_length}"
        )


def _of_diffusion(algo: Algo, section: Any) -> Iterator[str]:
    different = [key for key, value in UNET.items() if section.unet[key] != value]
    if section.unet.enabled and different:
        yield f"algo.unet.{different[0]} is {section.unet[different[0]]}: it always builds {UNET[different[0]]}"
    if section.horizon.temporal_ensemble is not None or section.horizon.latency:
        yield "algo.horizon.temporal_ensemble and latency"
    if section.prefix.max_delay:
        yield "algo.prefix.max_delay: its chunks are not given planned actions"
    if algo.goal_shapes:
        yield "observation.modalities.goal: its diffusion_policy sees no goal"
    if section.ddim.enabled and section.ddim.prediction_type == "sample":
        yield "algo.ddim.prediction_type 'sample': it samples differently"


def _of_observations(algo: Algo) -> Iterator[str]:
    name, encoder = algo.global_config.algo_name, algo.obs_config.get("encoder", {})
    activation = None if algo.algo_config.get("transformer", {}).get("enabled", False) else "relu"
    for net in (part for part in algo.nets.modules() if isinstance(part, KeyEncoder)):
        if net.core is None:
            continue
        if net.activation != activation:
            yield f"observation.encoder: feature_activation is {net.activation}, there it is {activation}"
        yield from _of_core(net.core, name)
    for key, entry in encoder.items():
        if key not in ("low_dim", "rgb", "depth", "scan"):
            yield f"observation.encoder.{key}: it has one encoder per modality, not per observation"
        elif entry.get("share", False):
            yield f"observation.encoder.{key}.share"


def _of_core(core: nn.Module, algo_name: str) -> Iterator[str]:
    backbone, pool = getattr(core, "backbone", None), getattr(core, "pool", None)
    for part in (pool, backbone):
        if isinstance(part, AttentionPool | QueryPool | ViT):
            yield f"observation.encoder: {type(part).__name__}"
    if isinstance(backbone, ShallowConv) and backbone.output_channel != SHALLOW_CHANNELS:
        yield f"observation.encoder: ShallowConv with {backbone.output_channel} channels, there {SHALLOW_CHANNELS}"
    if isinstance(backbone, ResNet):
        yield from _of_trunk(backbone, algo_name)


def _of_trunk(trunk: ResNet, algo_name: str) -> Iterator[str]:
    if not isinstance(trunk, ResNet18Conv | ResNet50Conv):
        yield f"observation.encoder: {type(trunk).__name__}"
    norm = nn.GroupNorm if algo_name == "diffusion_policy" else nn.BatchNorm2d
    if not isinstance(trunk.bn1, norm):
        yield f"observation.encoder: backbone_kwargs.norm, which in its {algo_name} is {norm.__name__}"
    if trunk.normalizes:
        yield "observation.encoder: backbone_kwargs.imagenet_normalization: it shows trunks colours in [0, 1]"
    if trunk.images.size is not None:
        yield "observation.encoder: backbone_kwargs.image_size: its trunks see images as they are"


def _of_actions(algo: Algo, release: str) -> Iterator[str]:
    if release != "0.3":
        return
    if algo.preprocess.normalizes_actions:
        yield "train.action_config: 0.3 does not normalize actions (0.5 does)"
    if algo.global_config.train.action_keys != ("actions",):
        yield "train.action_keys: 0.3 knows 'actions' only"
