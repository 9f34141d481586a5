"""The transformer denoiser of Diffusion Policy (Chi et al. 2023, arXiv:2303.04137).

The noisy actions are the tokens of a causal decoder; its memory holds the diffusion step and one token for
each observation step. Names of the weights, initialization and mask are those of the original.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.models.attention import head_dim
from imitate.models.step_embedding import SinusoidalEmbedding, steps_like


class DiffusionTransformer(nn.Module):
    """Predicts a chunk from a noisy one, the diffusion step and the observations.

    Args:
        input_dim: A, numbers of a noisy action.
        chunk_steps: T, at most.
        cond_dim: D, features of one observation step.
        obs_steps: observation steps.
        n_layer: decoder layers.
        n_head: attention heads; divides ``n_emb``.
        n_emb: features of a token.
        p_drop_emb: dropout of embedded tokens.
        p_drop_attn: dropout inside the layers.
        causal_attn: an action token sees itself and those before it, and of the observations those up to its own
            step; or else everything.
        n_cond_layers: layers over the memory's tokens; with 0 an MLP on each alone.
        output_dim: numbers of a predicted action; A if left out.
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
        head_dim(n_emb, n_head)  # refuses what does not divide
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
        """Predict.

        Args:
            sample: (B, T, A) noisy actions.
            timestep: (B,) or one number for all rows.
            cond: (B, obs_steps, D) features of the observations.

        Returns:
            (B, T, output_dim).
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
        # Said, because torch would look at the mask, for which the process would wait.
        is_causal = hidden is not None
        x = self.decoder(x, memory, hidden, hidden_memory, tgt_is_causal=is_causal)
        return cast(Tensor, self.head(self.ln_f(x)))

    def optim_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: matrices decay; biases, LayerNorms and positions do not."""
        positions = (self.pos_emb, self.cond_pos_emb)
        decay: list[Tensor] = []
        keep: list[Tensor] = []
        for p in self.parameters():
            matrix = p.dim() > 1 and not any(p is position for position in positions)
            (decay if matrix else keep).append(p)
        return [
            {"params": decay, "weight_decay": weight_decay},
            {"params": keep, "weight_decay": 0.0},
        ]

    def _init_weights(self) -> None:
        """Small normal matrices and positions, zero biases."""
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("mask", "memory_mask", "_dummy_variable"):  # which the original stores
            state_dict.pop(f"{prefix}{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *args)
