"""GPT over the steps of a window: each step attends to itself and to earlier steps.

Radford et al. 2019 (GPT-2): LayerNorm before each sublayer. The weights have the names of robomimic's transformer, so
that its checkpoints can be loaded.
"""

from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from imitate.errors import ConfigError, nearest
from imitate.models.attention import (
    causal_mask,
    head_dim,
    rotary_table,
    rotate,
    sinusoidal_positions,
)
from imitate.system.text import counted

Activation = Literal["gelu", "geglu"]
Positions = Literal["parameter", "embedding", "sinusoidal", "rotary"]
KVCache = dict[str, Tensor]
"""Keys and values of the last W steps of each sequence: ``keys`` (not yet rotated) and ``values`` (B, L, heads, W,
head_dim), the newest step last, and ``length`` (B,), the number of steps so far, at most W. The initial cache is all
zeros.
"""


class GEGLU(nn.Module):
    """Half of the features gated by the GELU of the other half (Shazeer 2020, arXiv:2002.05202)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., 2 D)`` to ``(..., D)``."""
        value, gate = x.chunk(2, dim=-1)
        return value * F.gelu(gate)


class CausalSelfAttention(nn.Module):
    """Self-attention among the steps of each sequence, without the normalization before it."""

    def __init__(
        self, embed_dim: int, num_heads: int, attn_dropout: float, output_dropout: float
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim(embed_dim, num_heads)
        self.attn_dropout = attn_dropout
        self.nets = nn.ModuleDict(
            {
                "qkv": nn.Linear(embed_dim, 3 * embed_dim, bias=False),
                "output": nn.Linear(embed_dim, embed_dim),
                "output_dropout": nn.Dropout(output_dropout),
            }
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # robomimic's checkpoints contain the causal mask, a triangle of ones, which is not learned
        state_dict.pop(f"{prefix}mask", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values: ``(B, T, E)`` to ``(B, heads, T, head_dim)`` each."""
        qkv = self.nets["qkv"](x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Compute self-attention, ``(B, T, E)``; without a mask each step attends to itself and all earlier steps."""
        dropout = self.attn_dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=mask is None)
        y = self.nets["output"](y.transpose(1, 2).flatten(2))
        return cast(Tensor, self.nets["output_dropout"](y))


class SelfAttentionBlock(nn.Module):
    """Attention and an MLP, each after a LayerNorm and added to its input."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attn_dropout: float,
        output_dropout: float,
        activation: Activation,
    ) -> None:
        super().__init__()
        gated = activation == "geglu"
        self.nets = nn.ModuleDict(
            {
                "attention": CausalSelfAttention(
                    embed_dim, num_heads, attn_dropout, output_dropout
                ),
                "mlp": nn.Sequential(
                    nn.Linear(embed_dim, 4 * embed_dim * (2 if gated else 1)),
                    GEGLU() if gated else nn.GELU(),
                    nn.Linear(4 * embed_dim, embed_dim),
                    nn.Dropout(output_dropout),
                ),
                "ln1": nn.LayerNorm(embed_dim),
                "ln2": nn.LayerNorm(embed_dim),
            }
        )

    @property
    def attention(self) -> CausalSelfAttention:
        """The attention sublayer."""
        return cast(CausalSelfAttention, self.nets["attention"])

    def forward(self, x: Tensor, mask: Tensor | None, rotation: Tensor | None) -> Tensor:
        """Map ``(B, T, E)`` to ``(B, T, E)``; ``rotation`` has the rows of a rotary table for the T steps."""
        q, k, v = self.attention.project(self.nets["ln1"](x))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return self.finish(x, self.attention.attend(q, k, v, mask))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention's result and then the MLP's result to the input, ``(B, T, E)``."""
        x = x + attended
        return x + cast(Tensor, self.nets["mlp"](self.nets["ln2"](x)))


class GPTBackbone(nn.Module):
    """Blocks and a final LayerNorm over embedded steps.

    **The window.** With rotary positions a step attends to itself and the ``context_length - 1`` steps before it, in
    sequences of any length. :meth:`step` computes the same, one step at a time, with a cache. With several layers, a
    step also depends on steps before its window, through the steps in between. So the result with a cache equals a
    masked pass over the whole sequence so far, not a pass over only the last window; train on windows longer than
    ``context_length`` to include such steps.

    Without rotary positions, sequences are at most ``context_length`` long, and there is no cache.

    Args:
        embed_dim: E, features of a step.
        num_layers: L, number of layers.
        num_heads: number of heads of each layer, a divisor of E.
        context_length: W, number of steps that a step attends to.
        attn_dropout: dropout of attention weights.
        block_output_dropout: dropout of each sublayer's result.
        activation: activation of the MLPs; ``geglu`` doubles the width of their first layer.
        rotary: rotate queries and keys by their position.
        causal: a step attends to itself and earlier steps; if false, to the whole sequence, and there is no cache.
    """

    rotation: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_layers: int,
        num_heads: int,
        context_length: int,
        *,
        attn_dropout: float = 0.1,
        block_output_dropout: float = 0.1,
        activation: Activation = "gelu",
        rotary: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        valid = get_args(Activation)
        if activation not in valid:
            raise ConfigError(
                f"transformer activation: unknown '{activation}'; {nearest(activation, valid)}"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim(embed_dim, num_heads)
        self.context_length = context_length
        self.causal = causal
        self.nets = nn.ModuleDict(
            {
                "transformer": nn.Sequential(
                    *(
                        SelfAttentionBlock(
                            embed_dim, num_heads, attn_dropout, block_output_dropout, activation
                        )
                        for _ in range(num_layers)
                    )
                ),
                "output_ln": nn.LayerNorm(embed_dim),
            }
        )
        table = rotary_table(context_length, self.head_dim) if rotary else None
        self.register_buffer("rotation", table, persistent=False)
        self.apply(_init_weights)

    @property
    def blocks(self) -> list[SelfAttentionBlock]:
        """Return the transformer blocks, from the first to the last."""
        return cast(list[SelfAttentionBlock], list(cast(nn.Sequential, self.nets["transformer"])))

    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        """Compute features over a whole sequence.

        Args:
            x: (B, T, E).
            pad_mask: (B, T) bool, false for steps that no other step may attend to; None if there is no padding.

        Returns:
            (B, T, E) features.
        """
        num_steps = x.shape[1]
        self.check_length(num_steps)
        rotation = self.rotation
        if rotation is not None and num_steps > self.context_length:
            rotation = rotary_table(num_steps, self.head_dim, rotation.device).to(rotation)
        mask = self._mask(num_steps, pad_mask, x.device)
        for block in self.blocks:
            x = block(x, mask, None if rotation is None else rotation[:, :num_steps])
        return cast(Tensor, self.nets["output_ln"](x))

    def check_length(self, num_steps: int) -> None:
        """Raise ConfigError if a sequence is longer than ``context_length`` and positions are not rotary."""
        if self.rotation is None and num_steps > self.context_length:
            raise ConfigError(
                f"transformer: a window of {counted(num_steps, 'step')} is longer than context_length "
                f"{self.context_length}; raise context_length, shorten the windows, or use rotary positions"
            )

    def _mask(self, num_steps: int, pad_mask: Tensor | None, device: torch.device) -> Tensor | None:
        if self.causal and pad_mask is None and num_steps <= self.context_length:
            return None
        if self.causal:
            mask = causal_mask(num_steps, self.context_length, device)
        else:
            mask = torch.ones(num_steps, num_steps, dtype=torch.bool, device=device)
        if pad_mask is None:
            return mask
        # a padded step attends to itself, because a softmax over nothing is NaN
        own = causal_mask(num_steps, 1, device)
        return ((mask & pad_mask.bool().unsqueeze(1)) | own).unsqueeze(1)

    def initial_cache(self, batch_size: int) -> KVCache:
        """Return the cache before the first step, on the device of the weights."""
        if self.rotation is None or not self.causal:
            raise ConfigError(
                "transformer: a cache needs rotary positions and causal attention; otherwise a step's features change "
                "with the steps after it"
            )
        weight = cast(Tensor, self.nets["output_ln"].weight)
        shape = (batch_size, len(self.blocks), self.num_heads, self.context_length, self.head_dim)
        return {
            "keys": weight.new_zeros(shape),
            "values": weight.new_zeros(shape),
            "length": torch.zeros(batch_size, dtype=torch.long, device=weight.device),
        }

    @torch.no_grad()
    def step(self, x: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """Compute one step of each sequence: ``(B, E)`` to ``(B, E)``, and the next cache.

        The result has no gradient.
        """
        window, rotation = self.context_length, cast(Tensor, self.rotation)
        # shift keys and values by one step and write the new step at the end; the given cache is not changed
        keys, values = cache["keys"].roll(-1, 3), cache["values"].roll(-1, 3)
        turned = rotate(keys, rotation)
        length = (cache["length"] + 1).clamp(max=window)
        slot = torch.arange(window, device=x.device)
        mask = (slot >= window - length.unsqueeze(1)).view(-1, 1, 1, window)
        x = x.unsqueeze(1)
        for layer, block in enumerate(self.blocks):
            q, k, v = block.attention.project(block.nets["ln1"](x))
            keys[:, layer, :, -1:] = k
            values[:, layer, :, -1:] = v
            turned[:, layer, :, -1:] = rotate(k, rotation[:, -1:])
            q = rotate(q, rotation[:, -1:])
            attended = block.attention.attend(q, turned[:, layer], values[:, layer], mask)
            x = block.finish(x, attended)
        y = self.nets["output_ln"](x).squeeze(1)
        return y, {"keys": keys, "values": values, "length": length}


class CausalTransformer(nn.Module):
    """Embedding and :class:`GPTBackbone`: map the features of each step to features that depend on earlier steps.

    Args:
        input_dim: D, number of features per step.
        embed_dim: E, features inside the transformer.
        num_layers: L, number of layers.
        num_heads: number of heads of each layer.
        context_length: W, number of steps that a step attends to.
        positions: encoding of a step's position: ``parameter`` (learned, initially zero), ``embedding`` (learned,
            initially random), ``sinusoidal``, or ``rotary``, the only one that allows a cache.
        emb_dropout: dropout of the embedded steps.
        attn_dropout: dropout of attention weights.
        block_output_dropout: dropout of each sublayer's result.
        activation: activation of the MLPs.
        causal: see :class:`GPTBackbone`.
    """

    fixed_positions: Tensor | None

    def __init__(
        self,
        input_dim: int,
        *,
        embed_dim: int = 512,
        num_layers: int = 6,
        num_heads: int = 8,
        context_length: int = 10,
        positions: Positions = "parameter",
        emb_dropout: float = 0.1,
        attn_dropout: float = 0.1,
        block_output_dropout: float = 0.1,
        activation: Activation = "gelu",
        causal: bool = True,
    ) -> None:
        super().__init__()
        valid = get_args(Positions)
        if positions not in valid:
            raise ConfigError(
                f"transformer positions: unknown '{positions}'; {nearest(positions, valid)}"
            )
        self.positions = positions
        self.context_length = context_length
        self.output_dim = embed_dim
        self.nets = nn.ModuleDict(
            {
                "embed_encoder": nn.Linear(input_dim, embed_dim),
                "embed_ln": nn.LayerNorm(embed_dim),
                "embed_drop": nn.Dropout(emb_dropout),
                "transformer": GPTBackbone(
                    embed_dim,
                    num_layers,
                    num_heads,
                    context_length,
                    attn_dropout=attn_dropout,
                    block_output_dropout=block_output_dropout,
                    activation=activation,
                    rotary=positions == "rotary",
                    causal=causal,
                ),
            }
        )
        self.params = nn.ParameterDict()
        fixed = None
        if positions == "parameter":
            self.params["embed_timestep"] = nn.Parameter(torch.zeros(1, context_length, embed_dim))
        elif positions == "embedding":
            self.nets["embed_timestep"] = nn.Embedding(context_length, embed_dim)
        elif positions == "sinusoidal":
            fixed = sinusoidal_positions(context_length, embed_dim)
        self.register_buffer("fixed_positions", fixed, persistent=False)

    @property
    def backbone(self) -> GPTBackbone:
        """The transformer that follows the embedding."""
        return cast(GPTBackbone, self.nets["transformer"])

    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        """Map ``(B, T, D)`` to ``(B, T, E)``; ``pad_mask`` as in :meth:`GPTBackbone.forward`."""
        self.backbone.check_length(x.shape[1])
        embedded = self.nets["embed_encoder"](x)
        places = self._places(x.shape[1])
        if places is not None:
            embedded = embedded + places
        return cast(Tensor, self.backbone(self._normalized(embedded), pad_mask))

    def initial_cache(self, batch_size: int) -> KVCache:
        """Return the cache before the first step."""
        return self.backbone.initial_cache(batch_size)

    def step(self, x: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """Compute one step of each sequence: ``(B, D)`` to ``(B, E)``, and the next cache."""
        return self.backbone.step(self._normalized(self.nets["embed_encoder"](x)), cache)

    def _normalized(self, embedded: Tensor) -> Tensor:
        return cast(Tensor, self.nets["embed_drop"](self.nets["embed_ln"](embedded)))

    def _places(self, num_steps: int) -> Tensor | None:
        if self.positions == "parameter":
            return cast(Tensor, self.params["embed_timestep"])[:, :num_steps]
        if self.positions == "embedding":
            return cast(nn.Embedding, self.nets["embed_timestep"]).weight[:num_steps]
        return None if self.fixed_positions is None else self.fixed_positions[:num_steps]


def _init_weights(module: nn.Module) -> None:
    """Initialize as in GPT: small normal weights, biases of zero."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
