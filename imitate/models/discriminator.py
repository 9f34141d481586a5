"""Discriminator between transitions of an expert and of a policy, and its gradient penalty."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from imitate.models.actor import GroupEncoder, Obs
from imitate.models.mlp import MLP, FullPrecisionLinear


class Discriminator(nn.Module):
    """Network that returns a logit for each transition, or for each state.

    The last input is 1 in the absorbing state after a terminal, in which all other inputs are 0; otherwise it is 0.

    Args:
        encoder: encoder of observations.
        ac_dim: A; 0: the logit depends only on the state.
        layer_dims: widths of the hidden layers.
    """

    def __init__(self, encoder: GroupEncoder, ac_dim: int, layer_dims: Sequence[int]) -> None:
        super().__init__()
        self.encoder, self.ac_dim = encoder, ac_dim
        self.mlp = MLP(encoder.output_dim + ac_dim + 1, layer_dims, torch.tanh)
        self.last = FullPrecisionLinear(self.mlp.output_dim, 1)

    def inputs(self, obs: Obs, actions: Tensor) -> Tensor:
        """Concatenate the features of the observations, actions (B, A), and 0 to inputs (B, D)."""
        features = self.encoder(obs)
        parts = [features, actions] if self.ac_dim else [features]
        return torch.cat([*parts, torch.zeros_like(features[:, :1])], dim=-1)

    def absorbing(self) -> Tensor:
        """Return the input (1, D) of the absorbing state."""
        row = self.last.weight.new_zeros(1, self.encoder.output_dim + self.ac_dim + 1)
        row[:, -1] = 1.0
        return row

    def at_absorbing(self) -> Tensor:
        """Return the logit () of the absorbing state."""
        logit: Tensor = self(self.absorbing())[0]
        return logit

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B,) of inputs (B, D)."""
        logits: Tensor = self.last(self.mlp(inputs))
        return logits.squeeze(-1)


def gradient_penalty(discriminator: Discriminator, first: Tensor, second: Tensor) -> Tensor:
    """Compute the mean of (|gradient| - 1)^2 at random points between two sets of inputs, (B, D) each.

    The two may differ in length.

    Gulrajani et al., "Improved Training of Wasserstein GANs" (arXiv:1704.00028).
    """
    count = min(len(first), len(second))
    share = torch.rand(count, 1, device=first.device)
    between = share * first[:count].detach() + (1.0 - share) * second[:count].detach()
    between.requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(discriminator(between).sum(), between, create_graph=True)
    penalty: Tensor = (gradient.norm(dim=-1) - 1.0).square().mean()
    return penalty
