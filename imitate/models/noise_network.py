"""Network of a flow over single vectors, as in flow Q-learning: a velocity field, or a policy of one step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from imitate.functional.sampling import fill_normal
from imitate.models.actor import GroupEncoder, Inputs, Obs, PolicyNetwork
from imitate.models.mlp import MLP, FullPrecisionLinear, gelu


class NoiseNetwork(PolicyNetwork):
    """Network from an observation and a vector (B, A) to another vector (B, A): a velocity field or a one-step policy.

    Args:
        encoder: encoder of observation and goal.
        layer_dims: widths of the hidden layers.
        action_dim: size A of an action.
        has_time: true if the input also has a time, for a velocity field.
        dropout: dropout after each hidden layer.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        layer_dims: Sequence[int],
        action_dim: int,
        *,
        has_time: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder, self.action_dim = encoder, action_dim
        size = encoder.output_dim + action_dim + has_time
        self.mlp = MLP(size, layer_dims, gelu, dropout)
        self.last = FullPrecisionLinear(self.mlp.output_dim, action_dim)

    def forward(self, features: Tensor, x: Tensor, time: Tensor | None = None) -> Tensor:
        """Map the encoder's features (B, D), vectors (B, [N,] A) and times (B, [N,] 1) to vectors (B, [N,] A)."""
        if x.dim() == 3:
            features = features.unsqueeze(1).expand(-1, x.shape[1], -1)
        inputs = [features, x] if time is None else [features, x, time]
        out: Tensor = self.last(self.mlp(torch.cat(inputs, -1)))
        return out

    def cloning_errors(self, obs: Obs, goal: Obs | None, data: Tensor) -> Tensor:
        """Return the squared errors (B, A) of a velocity field on the lines from new noise to data (B, A).

        With noise x_0 from N(0, 1) and a time t from [0, 1]: (v(s, (1 - t) x_0 + t a, t) - (a - x_0))^2.
        """
        noise, time = torch.randn_like(data), torch.rand_like(data[:, :1])
        made: Tensor = self(self.encoder(obs, goal), (1.0 - time) * noise + time * data, time)
        return (made - (data - noise)).square()

    def follow(self, features: Tensor, noise: Tensor, num_steps: int) -> Tensor:
        """Return the actions in [-1, 1] to which a velocity field moves noise (B, [N,] A) in equal steps."""
        x = noise
        for k in range(num_steps):
            time = torch.full_like(x[..., :1], k / num_steps)
            x = x + self(features, x, time) / num_steps
        return x.clamp(-1.0, 1.0)

    def candidates(
        self,
        obs: Obs,
        goal: Obs | None,
        number: int,
        num_steps: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw noise and return the actions (B, number, A) to which a velocity field moves it: :meth:`follow`."""
        features = self.encoder(obs, goal)
        noise = features.new_empty(len(features), number, self.action_dim)
        return self.follow(features, fill_normal(noise, generator), num_steps)

    def actions(
        self, obs: Obs, goal: Obs | None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw noise and return actions (B, A) of the one-step policy, in [-1, 1]."""
        features = self.encoder(obs, goal)
        noise = fill_normal(features.new_empty(len(features), self.action_dim), generator)
        made: Tensor = self(features, noise)
        return made.clamp(-1.0, 1.0)

    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return actions (B, A) of the one-step policy."""
        return self.actions(inputs["obs"], inputs["goal"], generator)
