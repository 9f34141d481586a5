"""Denoisers of action chunks without convolutions, an MLP and a transformer, and the embedding of the noise level.

A residual MLP to which the condition is added is far cheaper than a U-Net, and sufficient for short chunks in
low-dimensional tasks.

The transformer is the one of Diffusion Policy (Chi et al. 2023, arXiv:2303.04137). The noisy actions are the tokens of
a causal decoder; the decoder's memory contains a token for the diffusion step and a token for each observation step.
Names of weights, initialization and mask are those of the original code.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.attention import head_dim


class SinusoidalEmbedding(nn.Module):
    """Sines and cosines of a number at frequencies from 1 down to 1/10000.

    The scale of the number matters: numbers that differ by 1 get distinct embeddings. Use diffusion steps unscaled, and
    multiply times in [0, 1] by 100 or 1000 first.

    Args:
        dim: number of features, half sines and half cosines; even, at least 4.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 4 or dim % 2:
            raise ConfigError(f"step embedding: got {dim} features; expected an even number from 4")
        self.dim = dim

    def forward(self, step: Tensor) -> Tensor:
        """Embed steps ``(*B)`` as ``(*B, dim)``."""
        half = self.dim // 2
        exponent = torch.arange(half, device=step.device, dtype=torch.float32)
        frequency = torch.exp(exponent * (-math.log(10000.0) / (half - 1)))
        angle = step.unsqueeze(-1) * frequency
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


def step_encoder(dim: int, output_dim: int) -> nn.Sequential:
    """Build an embedding of the denoising step, followed by two layers: ``(*B)`` to ``(*B, output_dim)``."""
    return nn.Sequential(
        SinusoidalEmbedding(dim),
        nn.Linear(dim, dim * 4),
        nn.Mish(),
        nn.Linear(dim * 4, output_dim),
    )


def steps_like(step: Tensor | float, sample: Tensor) -> Tensor:
    """Return the step of each row of ``sample`` (B, ...) as a float tensor (B,); ``step`` is a number or (B,)."""
    steps = torch.as_tensor(step, dtype=torch.float32, device=sample.device)
    return steps.expand(sample.shape[0])


class ResidualBlock(nn.Module):
    """Residual block: LayerNorm, Linear, SiLU, dropout, Linear; the result is added to the input."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.inner = nn.Linear(dim, dim)
        self.outer = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, dim)`` to ``(B, dim)``."""
        return x + cast(Tensor, self.outer(self.dropout(F.silu(self.inner(self.norm(x))))))


class DenoisingMLP(nn.Module):
    """Predict a chunk from a noisy chunk, the step and the observation.

    Inputs and outputs are those of :class:`~imitate.models.unet.ConditionalUnet1D`.

    Args:
        input_dim: A, number of values of a noisy action.
        chunk_steps: T, the fixed number of actions in a chunk.
        global_cond_dim: D, number of features of the observation; 0 for none.
        hidden_dim: width of the layers.
        num_blocks: number of residual blocks, which have two layers each.
        step_embed_dim: number of features of the step's embedding.
        dropout: dropout inside the blocks.
        output_dim: number of values of a predicted action; A by default.
    """

    def __init__(
        self,
        input_dim: int,
        chunk_steps: int,
        global_cond_dim: int = 0,
        *,
        hidden_dim: int = 512,
        num_blocks: int = 3,
        step_embed_dim: int = 64,
        dropout: float = 0.0,
        output_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.step_encoder = step_encoder(step_embed_dim, hidden_dim)
        self.condition = nn.Linear(global_cond_dim, hidden_dim) if global_cond_dim else None
        self.enter = nn.Linear(input_dim * chunk_steps, hidden_dim)
        self.blocks = nn.ModuleList(ResidualBlock(hidden_dim, dropout) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(hidden_dim)
        self.leave = nn.Linear(hidden_dim, (output_dim or input_dim) * chunk_steps)

    def forward(
        self, sample: Tensor, timestep: Tensor | float, global_cond: Tensor | None = None
    ) -> Tensor:
        """Predict from noisy actions.

        Args:
            sample: (B, T, A) noisy actions.
            timestep: (B,) or one number for all rows; see
                :class:`~imitate.models.denoising_networks.SinusoidalEmbedding` about its scale.
            global_cond: (B, D) features of the observation.

        Returns:
            (B, T, output_dim) predictions.
        """
        of_step = self.step_encoder(steps_like(timestep, sample))
        return self.denoise(sample, self._with_obs(of_step, global_cond))

    def stacked(self, timesteps: Sequence[float], global_cond: Tensor | None) -> Tensor:
        """Return the conditions of all S steps of one sampling, (S, B, D), for :meth:`denoise`."""
        steps = torch.tensor(list(timesteps), dtype=torch.float32, device=self.enter.weight.device)
        return self._with_obs(self.step_encoder(steps).unsqueeze(1), global_cond)

    def _with_obs(self, of_step: Tensor, global_cond: Tensor | None) -> Tensor:
        return of_step if self.condition is None else of_step + self.condition(global_cond)

    def denoise(self, sample: Tensor, condition: Tensor) -> Tensor:
        """Predict from a condition of :meth:`stacked`: ``(B, T, A)`` to ``(B, T, output_dim)``."""
        x = self.enter(sample.flatten(1)) + condition
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.leave(self.norm(x)).unflatten(1, (sample.shape[1], -1)))


class DiffusionTransformer(nn.Module):
    """Predict a chunk from a noisy chunk, the diffusion step and the observations.

    Args:
        input_dim: A, number of values of a noisy action.
        chunk_steps: T, largest number of actions in a chunk.
        cond_dim: D, number of features of one observation step.
        obs_steps: number of observation steps.
        n_layer: number of decoder layers.
        n_head: number of attention heads, a divisor of ``n_emb``.
        n_emb: number of features of a token.
        p_drop_emb: dropout of embedded tokens.
        p_drop_attn: dropout inside the layers.
        causal_attn: let an action token attend only to itself, to earlier actions, and to observations up to the same
            step; if false, to everything.
        n_cond_layers: number of layers over the memory's tokens; with 0, an MLP on each token separately.
        output_dim: number of values of a predicted action; A by default.
    """

    causal: Tensor | None
    memory_causal: Tensor | None

    def __init__(
        self,
        input_dim: int,
        chunk_steps: int,
        cond_dim: int,
        obs_steps: int,
        *,
        n_layer: int = 8,
        n_head: int = 4,
        n_emb: int = 256,
        p_drop_emb: float = 0.0,
        p_drop_attn: float = 0.3,
        causal_attn: bool = True,
        n_cond_layers: int = 0,
        output_dim: int | None = None,
    ) -> None:
        super().__init__()
        head_dim(n_emb, n_head)  # head_dim raises an error if n_head does not divide n_emb
        self.input_emb = nn.Linear(input_dim, n_emb)
        self.pos_emb = nn.Parameter(torch.zeros(1, chunk_steps, n_emb))
        self.drop = nn.Dropout(p_drop_emb)
        self.time_emb = SinusoidalEmbedding(n_emb)
        self.cond_obs_emb = nn.Linear(cond_dim, n_emb)
        self.cond_pos_emb = nn.Parameter(torch.zeros(1, 1 + obs_steps, n_emb))
        self.encoder: nn.Module
        if n_cond_layers:
            self.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(
                    n_emb,
                    n_head,
                    4 * n_emb,
                    p_drop_attn,
                    activation="gelu",
                    batch_first=True,
                    norm_first=True,
                ),
                n_cond_layers,
                enable_nested_tensor=False,
            )
        else:
            self.encoder = nn.Sequential(
                nn.Linear(n_emb, 4 * n_emb), nn.Mish(), nn.Linear(4 * n_emb, n_emb)
            )
        layer = nn.TransformerDecoderLayer(
            n_emb,
            n_head,
            4 * n_emb,
            p_drop_attn,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.decoder = nn.TransformerDecoder(layer, n_layer)
        self.ln_f = nn.LayerNorm(n_emb)
        self.head = nn.Linear(n_emb, output_dim or input_dim)
        hidden = hidden_memory = None
        if causal_attn:
            action = torch.arange(chunk_steps).unsqueeze(1)
            hidden = action < torch.arange(chunk_steps)
            # Token 0 of the memory is the diffusion step, token s the observation of step s - 1.
            hidden_memory = action < torch.arange(1 + obs_steps) - 1
        self.register_buffer("causal", hidden, persistent=False)
        self.register_buffer("memory_causal", hidden_memory, persistent=False)
        self._init_weights()

    def forward(self, sample: Tensor, timestep: Tensor | float, cond: Tensor) -> Tensor:
        """Predict from noisy actions.

        Args:
            sample: (B, T, A) noisy actions.
            timestep: (B,) or one number for all rows.
            cond: (B, obs_steps, D) features of the observations.

        Returns:
            (B, T, output_dim) predictions.
        """
        step = self.time_emb(steps_like(timestep, sample)).unsqueeze(1)
        memory = torch.cat((step, self.cond_obs_emb(cond)), dim=1)
        memory = self.encoder(self.drop(memory + self.cond_pos_emb[:, : memory.shape[1]]))
        num_steps = sample.shape[1]
        x = self.drop(self.input_emb(sample) + self.pos_emb[:, :num_steps])
        hidden = None if self.causal is None else self.causal[:num_steps, :num_steps]
        hidden_memory = (
            None
            if self.memory_causal is None
            else self.memory_causal[:num_steps, : memory.shape[1]]
        )
        # is_causal is given because torch would otherwise read the mask, which makes the CPU wait for the GPU
        is_causal = hidden is not None
        x = self.decoder(x, memory, hidden, hidden_memory, tgt_is_causal=is_causal)
        return cast(Tensor, self.head(self.ln_f(x)))

    def _init_weights(self) -> None:
        """Initialize matrices and positions with small normal numbers, biases with zeros."""
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # checkpoints of the original code contain these buffers, which are not learned
        for name in ("mask", "memory_mask", "_dummy_variable"):
            state_dict.pop(f"{prefix}{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *args)
