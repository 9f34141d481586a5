"""Policy and value with a shared encoder, and optionally a recurrent network after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from imitate.models.actor import GroupEncoder, Obs
from imitate.models.categorical import Categorical, CategoricalHead
from imitate.models.heads import Gaussian, GaussianHead
from imitate.models.mlp import MLP, FullPrecisionLinear
from imitate.models.rnn import RNN

StochasticPolicy = Gaussian | Categorical
_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


class PolicyAndValue(nn.Module):
    """Policy and value, each with its own hidden layers, on a shared encoder.

    A recurrent network is shared by both, because the value depends on the same part of the past as the policy, and its
    loss gives the network the stronger gradient.

    Args:
        encoder: encoder of observations.
        ac_dim: A.
        num_choices: number of choices of a discrete action; 0: continuous.
        memory: recurrent network after the encoder, or None.
        layer_dims: widths of the hidden layers of policy and value, each.
        activation: activation after each hidden layer.
        init_std: initial standard deviation, the same for all states.
        orthogonal_init: initialize weights orthogonally.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        ac_dim: int,
        num_choices: int,
        memory: RNN | None = None,
        *,
        layer_dims: Sequence[int],
        activation: Literal["tanh", "relu"] = "tanh",
        init_std: float = 1.0,
        orthogonal_init: bool = True,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.output_dim if memory is None else memory.output_dim
        self.policy = MLP(width, layer_dims, _ACTIVATIONS[activation])
        self.value = MLP(width, layer_dims, _ACTIVATIONS[activation])
        width = self.policy.output_dim
        self.head: CategoricalHead | GaussianHead = (
            CategoricalHead(width, ac_dim)
            if num_choices
            else GaussianHead(width, ac_dim, init_std=init_std, state_independent_std=True)
        )
        self.value_head = FullPrecisionLinear(width, 1)
        self.memory = memory
        if orthogonal_init:
            self._orthogonal()

    def _orthogonal(self) -> None:
        gain = math.sqrt(2.0)
        scales: list[tuple[nn.Module, float]] = [
            (layer, gain) for mlp in (self.policy, self.value) for layer in mlp.layers
        ]
        last = self.head.logits if isinstance(self.head, CategoricalHead) else self.head.mean
        for layer, scale in [*scales, (last, 0.01), (self.value_head, 1.0)]:
            nn.init.orthogonal_(cast(Tensor, layer.weight), scale)
            nn.init.zeros_(cast(Tensor, layer.bias))
        for weight in () if self.memory is None else self.memory.parameters():
            if weight.dim() > 1:
                nn.init.orthogonal_(weight)
            else:
                nn.init.zeros_(weight)

    def forward(self, obs: Obs, goal: Obs | None = None) -> tuple[StochasticPolicy, Tensor]:
        """Return the distribution of the policy and values (B,), without a memory."""
        return self.decide(self.encoder(obs, goal))

    def decide(self, features: Tensor) -> tuple[StochasticPolicy, Tensor]:
        """Return the distribution of the policy and values (B,), from features (B, D)."""
        return self.policy_of(features), self.values_of(features)

    def policy_of(self, features: Tensor) -> StochasticPolicy:
        """Return the distribution of the policy, from features (B, D)."""
        return cast(StochasticPolicy, self.head(self.policy(features)))

    def values_of(self, features: Tensor) -> Tensor:
        """Return values (B,), from features (B, D)."""
        value: Tensor = self.value_head(self.value(features))
        return value.squeeze(-1)

    def actor(self, obs: Obs, goal: Obs | None = None) -> StochasticPolicy:
        """Return the distribution of the policy, without a memory."""
        return self.policy_of(self.encoder(obs, goal))
