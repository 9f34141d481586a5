"""Encoder and decoder of DETR (Carion et al. 2020, arXiv:2005.12872), as in ACT (Zhao et al. 2023, arXiv:2304.13705).

Unlike in GPT's blocks, positions are added to queries and keys in every layer, never to values, and by
default LayerNorm follows each residual sum. Names of the weights are those of the original code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.attention import head_dim
from imitate.models.observation import ObservationEncoder

Activation = Literal["relu", "gelu"]
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class _Layer(nn.Module):
    """Common part of encoder and decoder layers: self-attention and an MLP."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feedforward_dim: int,
        dropout: float,
        pre_norm: bool,
        activation: Activation,
    ) -> None:
        super().__init__()
        head_dim(dim, num_heads)  # head_dim raises an error if num_heads does not divide dim
        self.pre_norm, self._activation = pre_norm, _ACTIVATIONS[activation]
        self.self_attn = nn.MultiheadAttention(dim, num_heads, dropout, batch_first=True)
        self.linear1 = nn.Linear(dim, feedforward_dim)
        self.linear2 = nn.Linear(feedforward_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _feedforward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self._activation(self.linear1(x)))
        return cast(Tensor, self.dropout(self.linear2(hidden)))

    def _attend(
        self,
        attention: nn.MultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        hidden = None if mask is None else ~mask
        y, _ = attention(query, key, value, key_padding_mask=hidden, need_weights=False)
        return cast(Tensor, self.dropout(y))


class EncoderLayer(_Layer):
    """Layer with self-attention and an MLP."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feedforward_dim: int,
        dropout: float,
        pre_norm: bool,
        activation: Activation = "relu",
    ) -> None:
        super().__init__(dim, num_heads, feedforward_dim, dropout, pre_norm, activation)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(
        self, x: Tensor, positions: Tensor, mask: Tensor | None, count: int | None = None
    ) -> Tensor:
        """Return the first ``count`` tokens ``(B, count, E)``, computed from all tokens ``(B, T, E)``; None for all."""
        if self.pre_norm:
            y = self.norm1(x)
            place = y + positions
            x = x[:, :count] + self._attend(self.self_attn, place[:, :count], place, y, mask)
            return x + self._feedforward(self.norm2(x))
        place = x + positions
        y = self._attend(self.self_attn, place[:, :count], place, x, mask)
        x = self.norm1(x[:, :count] + y)
        return cast(Tensor, self.norm2(x + self._feedforward(x)))


class DecoderLayer(_Layer):
    """Layer with self-attention among the queries, attention to the memory, and an MLP."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feedforward_dim: int,
        dropout: float,
        pre_norm: bool,
        activation: Activation = "relu",
    ) -> None:
        super().__init__(dim, num_heads, feedforward_dim, dropout, pre_norm, activation)
        self.multihead_attn = nn.MultiheadAttention(dim, num_heads, dropout, batch_first=True)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)

    def forward(
        self, x: Tensor, queries: Tensor, memory: Tensor, places: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Update the values ``x`` of the queries, ``(B, K or 1, E)``, to ``(B, K, E)``.

        ``queries`` (K, E) are their positions; ``places`` is the memory plus the memory's positions. If all K values
        are equal, ``x`` may contain only one of them.
        """
        own = queries[: x.shape[1]]
        if self.pre_norm:
            y = self.norm1(x)
            x = x + self._attend(self.self_attn, y + own, y + own, y, None)
            y = self.norm2(x) + queries
            x = x + self._attend(self.multihead_attn, y, places, memory, mask)
            return x + self._feedforward(self.norm3(x))
        y = x + own
        x = self.norm1(x + self._attend(self.self_attn, y, y, x, None))
        x = self.norm2(x + self._attend(self.multihead_attn, x + queries, places, memory, mask))
        return cast(Tensor, self.norm3(x + self._feedforward(x)))


class DETREncoder(nn.Module):
    """Stack of layers over tokens.

    Args:
        dim: E, features of a token.
        num_layers: number of layers.
        num_heads: number of attention heads, a divisor of E.
        feedforward_dim: width of the MLPs.
        dropout: dropout of attention weights, of each sublayer and inside the MLPs.
        pre_norm: LayerNorm before each sublayer and at the end; if false, after each residual sum.
        activation: activation of the MLPs.
    """

    def __init__(
        self,
        dim: int = 512,
        num_layers: int = 4,
        num_heads: int = 8,
        feedforward_dim: int = 3200,
        dropout: float = 0.1,
        pre_norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(dim, num_heads, feedforward_dim, dropout, pre_norm, activation)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim) if pre_norm else nn.Identity()
        _init_matrices(self)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        pad_mask: Tensor | None = None,
        count: int | None = None,
    ) -> Tensor:
        """Transform the tokens.

        Args:
            x: (B, T, E).
            positions: (1 or B, T, E) positions, which are added to queries and keys.
            pad_mask: (B, T) bool, false for padding, which is ignored. Each row needs at least one true value.
            count: number of tokens to return, from the first; the last layer computes only these. None for all.

        Returns:
            (B, count, E).
        """
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            x = layer(x, positions, pad_mask, count if number == last else None)
        return cast(Tensor, self.norm(x))


class Decoder(nn.Module):
    """Stack of layers over queries that attend to a memory.

    Args:
        dim: E, features of a token.
        num_layers: number of layers.
        num_heads: number of attention heads, a divisor of E.
        feedforward_dim: width of the MLPs.
        dropout: dropout of attention weights, of each sublayer and inside the MLPs.
        pre_norm: LayerNorm before each sublayer; if false, after each residual sum.
        first_layer_only: return the result of the first layer and skip the other layers, as the published code of ACT
            does by mistake.
        activation: activation of the MLPs.
    """

    def __init__(
        self,
        dim: int = 512,
        num_layers: int = 7,
        num_heads: int = 8,
        feedforward_dim: int = 3200,
        dropout: float = 0.1,
        pre_norm: bool = False,
        first_layer_only: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(dim, num_heads, feedforward_dim, dropout, pre_norm, activation)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.first_layer_only = first_layer_only
        _init_matrices(self)

    def forward(
        self, queries: Tensor, memory: Tensor, positions: Tensor, pad_mask: Tensor | None = None
    ) -> Tensor:
        """Compute one output per query.

        Args:
            queries: (K, E) positions of the outputs; the queries' content starts as zeros.
            memory: (B, T, E).
            positions: (1 or B, T, E) positions of the memory.
            pad_mask: (B, T) bool, false where a token of the memory is padding.

        Returns:
            (B, K, E).
        """
        places = memory + positions
        # Attention among K equal values returns that value, so without dropout one query can represent all.
        count = len(queries) if self.training else 1
        x = queries.new_zeros(memory.shape[0], count, queries.shape[1])
        layers = list(self.layers)[: 1 if self.first_layer_only else None]
        for layer in layers:
            x = layer(x, queries, memory, places, pad_mask)
        return cast(Tensor, self.norm(x))


def sinusoidal_positions_2d(height: int, width: int, dim: int) -> Tensor:
    """Return the positions of the cells of a feature map, rows first: ``(height * width, dim)``.

    As in DETR, half of the features encode the row and half the column, each counted from 1 and scaled so that the last
    is 2 pi, by alternating sines and cosines.
    """
    if dim % 4:
        raise ConfigError(f"positions of a feature map: {dim} features; expected a multiple of 4")
    frequency = 10000.0 ** (-2.0 * torch.arange(dim // 4) / (dim // 2))

    def axis(size: int) -> Tensor:
        place = torch.arange(1, size + 1) / (size + 1e-6) * 2.0 * math.pi
        angle = place.unsqueeze(1) * frequency
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)

    rows = axis(height).unsqueeze(1).expand(-1, width, -1)
    columns = axis(width).unsqueeze(0).expand(height, -1, -1)
    return torch.cat((rows, columns), dim=-1).flatten(0, 1)


def _init_matrices(module: nn.Module) -> None:
    """Initialize every matrix by Xavier's rule, as DETR does."""
    for p in module.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)


class ObservationTokens(nn.Module):
    """Tokens of the last frames of an observation.

    Vectors without a network form one common token, or one token each. Each key with a network forms one token, or one
    token per cell if its features are a map ``(C, H, W)`` (no pooling, not flattened). A token's position is learned
    per frame and key; DETR's sinusoidal positions of row and column are added for cells.

    Args:
        encoder: encoder of the observation.
        embed_dim: E, features of a token.
        frames: F, number of observations that the policy sees.
        separate_vectors: make a token of each vector without a network; if false, of all of them together.
        shared_maps: keys that share a network also share the linear map from its features to tokens.
        learned_camera_positions: learn positions of keys with a network too; if false, only of vectors.
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
        # a list instead of a dict, because an observation's key may not be a valid module name
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
            # each cell of a feature map becomes one token, whose features are the channels
            channels = shape[0] if len(shape) == 3 else value.shape[-1]
            pixels = value.reshape(*value.shape[:2], channels, -1)
            tokens.append(linear(pixels.transpose(-2, -1)))
        positions = (self.places * self.learned)[:, self.kinds] + self.cells
        return torch.cat(tokens, dim=2).flatten(1, 2), positions.flatten(0, 1).unsqueeze(0)
