"""From an observation, a dictionary, to one feature vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class ObservationEncoder(nn.Module):
    """Concatenates the features of all keys, in alphabetical order of the keys.

    Keys whose modality has no core go in as they are, flattened.

    Args:
        obs_shapes: shape of one step of each key as networks see it: images (C, H, W).
        modalities: modality of each key.
        encoder_config: section ``observation.encoder``.
    """

    def __init__(
        self,
        obs_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        encoder_config: Any,
    ) -> None:
        super().__init__()
        self.obs_shapes = {key: tuple(obs_shapes[key]) for key in sorted(obs_shapes)}
        self.output_dim = sum(math.prod(shape) for shape in self.obs_shapes.values())

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """``(*B, ...)`` per key to ``(*B, output_dim)``."""
        features = []
        for key, shape in self.obs_shapes.items():
            value = obs[key]
            if len(shape) != 1:
                value = value.reshape(*value.shape[: value.dim() - len(shape)], -1)
            features.append(value)
        return torch.cat(features, dim=-1)
