"""Benchmarks of robomimic's image encoder and its augmentations. They need torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
BATCH_SIZE = 16
SIZE, CROP = 84, 76
LOW_DIM = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")


def crop_case() -> Callable[[int], None]:
    """Return a function that crops a batch at random."""
    from robomimic.models.obs_core import CropRandomizer

    return _randomizer_case(
        CropRandomizer(input_shape=[3, SIZE, SIZE], crop_height=CROP, crop_width=CROP)
    )


def colour_case() -> Callable[[int], None]:
    """Return a function that jitters the colours of a batch."""
    from robomimic.models.obs_core import ColorRandomizer

    return _randomizer_case(ColorRandomizer(input_shape=[3, SIZE, SIZE]))


def _randomizer_case(randomizer: Any) -> Callable[[int], None]:
    images = _images()
    randomizer.train()

    def iterate(n: int) -> None:
        for _ in range(n):
            randomizer.forward_in(images)

    return iterate


def _images() -> Any:
    """Return a batch in the form of robomimic's data processing: (B, C, H, W), with the channels last in memory."""
    import torch

    return torch.rand(BATCH_SIZE, SIZE, SIZE, 3).permute(0, 3, 1, 2)


def use_cameras(config: Any) -> None:
    """Set robomimic's configuration to a ResNet-18 with spatial softmax per camera and random crops."""
    config.observation.modalities.obs.rgb = list(CAMERAS)
    rgb = config.observation.encoder.rgb
    rgb.core_class = "VisualCore"
    rgb.core_kwargs.backbone_class = "ResNet18Conv"
    rgb.core_kwargs.pool_class = "SpatialSoftmax"
    rgb.core_kwargs.feature_dimension = 64
    rgb.obs_randomizer_class = "CropRandomizer"
    rgb.obs_randomizer_kwargs.crop_height = CROP
    rgb.obs_randomizer_kwargs.crop_width = CROP


def encoder_case() -> Callable[[int], None]:
    """Return a function that computes features of two cameras, and gradients: ResNet-18, spatial softmax, crops."""
    from collections import OrderedDict

    import robomimic.utils.obs_utils as obs_utils
    from robomimic.config import config_factory
    from robomimic.models.obs_nets import obs_encoder_factory

    config = config_factory("bc")
    with config.values_unlocked():
        config.observation.modalities.obs.low_dim = []
        use_cameras(config)
    obs_utils.initialize_obs_utils_with_config(config)
    encoder = obs_encoder_factory(
        obs_shapes=OrderedDict((key, [3, SIZE, SIZE]) for key in CAMERAS),
        encoder_kwargs=obs_utils.obs_encoder_kwargs_from_config(config.observation.encoder),
    )
    encoder.train()
    obs = {key: _images() for key in CAMERAS}

    def iterate(n: int) -> None:
        for _ in range(n):
            encoder.zero_grad(set_to_none=True)
            encoder(obs).sum().backward()

    return iterate


IMAGE_CASES = {"crop": crop_case, "colour": colour_case, "encoder": encoder_case}
