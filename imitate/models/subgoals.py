"""Networks that predict the mean or a sample of a subgoal, a future observation.

Names of the weights, and robomimic's names in its ``goal_network``:

    SubgoalNetwork   encoder.obs, encoder.goal     nets.encoder.nets.{obs, goal}
                     net.mlp.layers.<i>            nets.mlp._model.<2 i>
                     net.heads.<key>               nets.decoder.nets.<key>
    SubgoalVAE       vae.encoder.mlp, .heads       nets.encoder.nets.mlp, .decoder.nets; inputs: subgoal, obs, goal
                     vae.decoder.mlp, .heads       nets.decoder.nets.mlp, .decoder.nets; inputs: latent, obs, goal
                     vae.latent.prior              nets.prior

robomimic has separate image encoders for encoder, decoder and prior; here all three share ``encoder``.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from imitate.models.actor import GroupEncoder, Obs
from imitate.models.layout import Shape
from imitate.models.mlp import MultiHeadMLP
from imitate.models.observation import ObservationEncoder
from imitate.models.vae import VAE


class SubgoalNetwork(nn.Module):
    """Network that predicts the mean subgoal.

    Args:
        encoder: encoder of observation and goal.
        shapes: shape of each key of a subgoal, as networks see it.
        layer_dims: widths of the hidden layers.
    """

    def __init__(
        self, encoder: GroupEncoder, shapes: Mapping[str, Shape], layer_dims: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.shapes = dict(shapes)
        self.net = MultiHeadMLP(encoder.output_dim, layer_dims, _sizes(shapes))

    def forward(self, obs: Obs, goal: Obs | None = None) -> Obs:
        """Map observations (B, ...) to subgoals {key: (B, *shape)}."""
        return _shaped(self.net(self.encoder(obs, goal)), self.shapes)


class SubgoalVAEOutput(NamedTuple):
    """Output of the VAE for B subgoals: {key: (B, *shape)} ``reconstruction``, (B,) ``kl``, (B, Z) ``latent``."""

    reconstruction: Obs
    kl: Tensor
    latent: Tensor


class SubgoalVAE(nn.Module):
    """VAE that predicts a distribution of subgoals.

    Args:
        encoder: encoder of observation and goal, whose features are the condition.
        subgoal: encoder of subgoals.
        config: section ``vae``.
    """

    def __init__(self, encoder: GroupEncoder, subgoal: ObservationEncoder, config: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.subgoal = subgoal
        self.shapes = dict(subgoal.obs_shapes)
        self.vae = VAE.from_config(
            encoder.output_dim, subgoal.output_dim, config, _sizes(self.shapes)
        )

    def forward(self, subgoals: Obs, obs: Obs, goal: Obs | None = None) -> SubgoalVAEOutput:
        """Encode subgoals {key: (B, ...)} by the posterior, sample latents, and decode them."""
        condition = self.encoder(obs, goal)
        posterior = self.vae.encode(self.subgoal(subgoals), condition)
        z = self.vae.latent.sample_posterior(posterior, None)
        return SubgoalVAEOutput(
            reconstruction=self._decoded(z, condition),
            kl=self.vae.latent.kl(posterior, z, condition),
            latent=z,
        )

    def sample_prior(
        self, obs: Obs, goal: Obs | None, number: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample latents (B, N, Z) from the prior."""
        condition = self.encoder(obs, goal).unsqueeze(1).expand(-1, number, -1)
        return self.vae.sample_prior(condition, generator)

    def sample(
        self, obs: Obs, goal: Obs | None, number: int, generator: torch.Generator | None = None
    ) -> Obs:
        """Sample subgoals {key: (B, N, *shape)}."""
        condition = self.encoder(obs, goal).unsqueeze(1).expand(-1, number, -1)
        return self._decoded(self.vae.sample_prior(condition, generator), condition)

    def _decoded(self, z: Tensor, condition: Tensor) -> Obs:
        return _shaped(self.vae.decode_parts(z, condition), self.shapes)


def _sizes(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the number of values of each key of a subgoal, by the name of the key's head."""
    return {_head(key): math.prod(shapes[key]) for key in sorted(shapes)}


def _shaped(parts: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> Obs:
    """Convert the outputs of the heads, vectors (*B, D) by head name, to {key: (*B, *shape)}."""
    return {
        key: (part := parts[_head(key)]).reshape(*part.shape[:-1], *shape)
        for key, shape in shapes.items()
    }


def _head(key: str) -> str:
    return key.replace(".", "/")  # the name of a submodule must not contain a dot
