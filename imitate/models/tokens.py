"""Observations as tokens of a transformer, as in ACT (Zhao et al. 2023, arXiv:2304.13705)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from imitate.models.detr import sinusoidal_positions_2d
from imitate.models.observation import ObservationEncoder


class ObservationTokens(nn.Module):
    """Tokens of the last frames of an observation.

    The vectors without a network make one token together. Each key that has a network makes one token, or where
    its features are a map ``(C, H, W)`` (no pooling, not flattened) one per cell. A token's position is learned per
    frame and key; cells have DETR's sines of their row and column besides.

    Args:
        encoder: of the observation.
        embed_dim: E.
        frames: F, observations that the policy sees.
    """

    def __init__(self, encoder: ObservationEncoder, embed_dim: int, frames: int = 1) -> None:
        super().__init__()
        self.encoder = encoder
        self.frames = frames
        self.vectors = [key for key in encoder.feature_dims if key not in encoder.encoded_shapes]
        self.state_dim = sum(encoder.feature_dims[key] for key in self.vectors)
        self.state = nn.Linear(self.state_dim, embed_dim) if self.vectors else None
        # Numbered: a key may have a name that a module may not.
        self.encoded = list(encoder.encoded_shapes)
        shapes = encoder.encoded_shapes.values()
        self.maps = nn.ModuleList(
            nn.Linear(shape[0] if len(shape) == 3 else math.prod(shape), embed_dim)
            for shape in shapes
        )
        cells = [torch.zeros(1, embed_dim)] if self.vectors else []
        cells += [
            sinusoidal_positions_2d(shape[1], shape[2], embed_dim)
            if len(shape) == 3
            else torch.zeros(1, embed_dim)
            for shape in shapes
        ]
        self.register_buffer("cells", torch.cat(cells), persistent=False)
        kinds = torch.repeat_interleave(
            torch.arange(len(cells)), torch.tensor([len(places) for places in cells])
        )
        self.register_buffer("kinds", kinds, persistent=False)
        self.places = nn.Parameter(0.02 * torch.randn(frames, len(cells), embed_dim))

    cells: Tensor
    kinds: Tensor

    def features(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Features of each key, ``(B, F, D)``, for observations ``(B, ...)``, or ``(B, F, ...)`` where F > 1."""
        if self.frames == 1:
            obs = {key: value.unsqueeze(1) for key, value in obs.items()}
        return self.encoder.features(obs)

    def state_of(self, features: Mapping[str, Tensor]) -> Tensor | None:
        """Join the vectors without a network,  ``(B, F, state_dim)``; None where there are none."""
        if not self.vectors:
            return None
        return torch.cat([features[key] for key in self.vectors], dim=-1)

    def forward(self, features: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens ``(B, T, E)`` and positions ``(1, T, E)`` from :meth:`features`; frames in turn, oldest first."""
        tokens = []
        state = self.state_of(features)
        if self.state is not None and state is not None:
            tokens.append(self.state(state).unsqueeze(2))
        for key, linear in zip(self.encoded, self.maps, strict=True):
            shape, value = self.encoder.encoded_shapes[key], features[key]
            # A map's channels are the features of its cells.
            channels = shape[0] if len(shape) == 3 else value.shape[-1]
            pixels = value.reshape(*value.shape[:2], channels, -1)
            tokens.append(linear(pixels.transpose(-2, -1)))
        positions = self.places[:, self.kinds] + self.cells
        return torch.cat(tokens, dim=2).flatten(1, 2), positions.flatten(0, 1).unsqueeze(0)
