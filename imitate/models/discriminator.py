"""Who did this, the expert or the policy?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from imitate.models.actor import GroupEncoder, Obs
from imitate.models.mlp import MLP, FullPrecisionLinear


class Judge(nn.Module):
    """A number for each transition, or for each state.

    What comes after a terminal is one more state, the absorbing one, in which nothing else is seen.

    Args:
        encoder: of observations.
        ac_dim: A; 0: of states alone.
        layer_dims: hidden layers.
    """

    def __init__(self, encoder: GroupEncoder, ac_dim: int, layer_dims: Sequence[int]) -> None:
        super().__init__()
        self.encoder, self.ac_dim = encoder, ac_dim
        self.mlp = MLP(encoder.output_dim + ac_dim + 1, layer_dims, torch.tanh)
        self.last = FullPrecisionLinear(self.mlp.output_dim, 1)

    def inputs(self, obs: Obs, actions: Tensor) -> Tensor:
        """(B, D) what is judged: features, actions (B, A), and 0: this is no absorbing state."""
        features = self.encoder(obs)
        parts = [features, actions] if self.ac_dim else [features]
        return torch.cat([*parts, torch.zeros_like(features[:, :1])], dim=-1)

    def absorbing(self, like: Tensor) -> Tensor:
        """(1, D) the absorbing state."""
        row = torch.zeros(1, self.encoder.output_dim + self.ac_dim + 1).to(like)
        row[:, -1] = 1.0
        return row

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, D) to (B,)."""
        score: Tensor = self.last(self.mlp(inputs))
        return score.squeeze(-1)


def gradient_penalty(judge: Judge, first: Tensor, second: Tensor) -> Tensor:
    """Mean of (|gradient| - 1)^2 at random places between inputs (B, D); first and second may differ in number.

    Gulrajani et al., "Improved Training of Wasserstein GANs" (arXiv:1704.00028).
    """
    count = min(len(first), len(second))
    share = torch.rand(count, 1, device=first.device)
    between = share * first[:count].detach() + (1.0 - share) * second[:count].detach()
    between.requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    penalty: Tensor = (gradient.norm(dim=-1) - 1.0).square().mean()
    return penalty
