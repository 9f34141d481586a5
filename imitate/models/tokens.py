"""Conversion of observations to tokens of a transformer, as in ACT (Zhao et al. 2023, arXiv:2304.13705)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from imitate.models.detr import sinusoidal_positions_2d
from imitate.models.observation import ObservationEncoder


class ObservationTokens(nn.Module):
    """Tokens of the last frames of an observation.

    Vectors without a network form one token together, or one each. Each key with a network forms one token, or one per
    cell if its features are a map ``(C, H, W)`` (no pooling, not flattened). A token's position is learned per frame
    and key; DETR's sinusoidal positions of row and column are added for cells.

    Args:
        encoder: encoder of the observation.
        embed_dim: E, features of a token.
        frames: F, number of observations that the policy sees.
        separate_vectors: each vector without a network forms its own token.
        shared_maps: keys that share a network also share the linear map from its features to tokens.
        learned_camera_positions: false: keys with a network have no learned position.
    """

    def __init__(
        self,
        encoder: ObservationEncoder,
        embed_dim: int,
        frames: int = 1,
        *,
        separate_vectors: bool = False,
        shared_maps: bool = False,
        learned_camera_positions: bool = True,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.frames = frames
        self.vectors = [key for key in encoder.feature_dims if key not in encoder.encoded_shapes]
        joined = bool(self.vectors) and not separate_vectors
        self.state = nn.Linear(self.dim_of(self.vectors), embed_dim) if joined else None
        # numbered, because a key's name may not be a valid module name
        self.vector_maps = nn.ModuleList(
            nn.Linear(self.dim_of([key]), embed_dim) for key in self.vectors if separate_vectors
        )
        self.encoded = list(encoder.encoded_shapes)
        shapes = encoder.encoded_shapes.values()
        self.maps = nn.ModuleList(
            nn.Linear(shape[0] if len(shape) == 3 else math.prod(shape), embed_dim)
            for shape in shapes
        )
        if shared_maps:
            for keys in encoder.shared_keys():
                places = [self.encoded.index(key) for key in keys]
                for place in places[1:]:
                    self.maps[place] = self.maps[places[0]]
        cells = [torch.zeros(1, embed_dim)] * (1 if joined else len(self.vector_maps))
        num_vectors = len(cells)
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
        learned = torch.ones(len(cells), 1)
        if not learned_camera_positions:
            learned[num_vectors:] = 0.0
        self.register_buffer("learned", learned, persistent=False)

    cells: Tensor
    kinds: Tensor
    learned: Tensor

    def dim_of(self, keys: Sequence[str]) -> int:
        """Return the total number of features of some keys."""
        return sum(self.encoder.feature_dims[key] for key in keys)

    def features(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return features of each key, ``(B, F, D)``, for observations ``(B, ...)``, or ``(B, F, ...)`` if F > 1."""
        if self.frames == 1:
            obs = {key: value.unsqueeze(1) for key, value in obs.items()}
        return self.encoder.features(obs)

    def forward(self, features: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return tokens ``(B, T, E)`` and positions ``(1, T, E)`` from :meth:`features`.

        Frames are in order, oldest first.
        """
        tokens = []
        if self.state is not None:
            joined = torch.cat([features[key] for key in self.vectors], dim=-1)
            tokens.append(self.state(joined).unsqueeze(2))
        for key, linear in zip(self.vectors, self.vector_maps, strict=False):
            tokens.append(linear(features[key]).unsqueeze(2))
        for key, linear in zip(self.encoded, self.maps, strict=True):
            shape, value = self.encoder.encoded_shapes[key], features[key]
            # the channels of a map are the features of its cells
            channels = shape[0] if len(shape) == 3 else value.shape[-1]
            pixels = value.reshape(*value.shape[:2], channels, -1)
            tokens.append(linear(pixels.transpose(-2, -1)))
        positions = (self.places * self.learned)[:, self.kinds] + self.cells
        return torch.cat(tokens, dim=2).flatten(1, 2), positions.flatten(0, 1).unsqueeze(0)
