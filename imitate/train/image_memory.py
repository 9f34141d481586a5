"""Estimate of the memory of a training on images, from one image of each camera."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from imitate.config import load_config
from imitate.config.observation import ObservationConfig
from imitate.models.observation import ObservationEncoder
from imitate.system.seeding import preserved_rng

LARGE = 2e9
"""Number of bytes above which smaller images are proposed."""
_SMALLEST = 64
_FLOAT = 4
_COPIES = 2
"""Number of copies of a batch's images besides the network's activations: floats, and gradients or crops."""
_PASSES = 3
"""Forward passes that take as long as the forward and backward pass of an update."""
_PER_CORE = 1e10
"""Operations per second and CPU core: rough."""


def image_memory(tree: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Estimate the bytes that an update needs for images and for their encoders' stored activations.

    Args:
        tree: a configuration.
        shapes: (H, W, C) of each camera as the encoders see it.
    """
    kept, _, images = _for_one_image(tree, shapes)
    numbers = sum(math.prod(shape) for shape in shapes.values())
    return float(images * (kept + _COPIES * _FLOAT * numbers))


def image_seconds(tree: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Estimate the seconds that the image encoders need in an update on this machine's CPU, without running one.

    The arguments are those of :func:`image_memory`.
    """
    _, operations, images = _for_one_image(tree, shapes)
    return _PASSES * images * operations / (_PER_CORE * torch.get_num_threads())


def _for_one_image(
    tree: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, int, int]:
    """Return bytes kept and operations of one image per camera, forward, and the number of images in an update."""
    config = load_config(dict(tree))
    if not shapes or not isinstance(config.observation, ObservationConfig):
        return 0, 0, 0
    network = config.observation.encoder.to_dict()
    channels_first = {key: (c, h, w) for key, (h, w, c) in shapes.items()}
    rnn = getattr(config.algo, "rnn", None)
    steps = config.train.seq_length if getattr(rnn, "enabled", False) else 1
    images = config.train.batch_size * config.train.frame_stack * steps
    with preserved_rng(), FlopCounterMode(display=False) as counter:
        encoder = ObservationEncoder(
            channels_first, dict.fromkeys(shapes, "rgb"), network, load_pretrained=False
        ).eval()  # batch normalization fails on a batch of one
        kept = _kept(encoder, channels_first)
    return kept, counter.get_total_flops(), images


def _kept(encoder: ObservationEncoder, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Measure the bytes of activations kept for the gradient, for one image of each camera."""
    own = {weight.untyped_storage().data_ptr() for weight in encoder.parameters()}
    sizes: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        out = encoder({key: torch.zeros(1, *shape) for key, shape in shapes.items()})
    del out
    return sum(sizes.values())


def smaller(shape: tuple[int, ...]) -> tuple[int, int]:
    """Yield an image's size halved repeatedly, while both sides stay at 64 or more."""
    height, width = shape[:2]
    return max(_SMALLEST, height // 2), max(_SMALLEST, width // 2)
