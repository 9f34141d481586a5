"""Networks of offline goal-conditioned RL as in OGBench's code: GELU, layer normalization in values, Xavier weights.

Park et al., "OGBench: Benchmarking Offline Goal-Conditioned RL", ICLR 2025 (arXiv:2410.20092).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from imitate.models.actor import GroupEncoder, Inputs, Obs, PolicyNetwork
from imitate.models.critics import NORM_EPS, EnsembleLayerNorm, EnsembleLinear
from imitate.models.mlp import MLP, FullPrecisionLinear, gelu
from imitate.models.observation import ObservationEncoder

LAST_GAIN = 0.1
"""Gain of the Xavier initialization of an actor's last layer."""


class GoalActor(PolicyNetwork):
    """Mean of a Gaussian policy of unit variance.

    Args:
        encoder: encoder of observation and goal, or of the observation alone.
        layer_dims: widths of the hidden layers.
        output_dim: A, size of an action.
        more: number of further input features, such as a learned representation of the goal.
    """

    def __init__(
        self, encoder: GroupEncoder, layer_dims: Sequence[int], output_dim: int, more: int = 0
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(encoder.output_dim + more, layer_dims, gelu)
        self.last = FullPrecisionLinear(self.mlp.output_dim, output_dim)
        for layer in self.mlp.layers:
            nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.xavier_uniform_(self.last.weight, LAST_GAIN)
        nn.init.zeros_(self.last.bias)

    def forward(self, obs: Obs, goal: Obs | None = None, more: Tensor | None = None) -> Tensor:
        """Return means (B, A) for observations, goals and further features (B, D)."""
        features = self.encoder(obs, goal)
        if more is not None:
            features = torch.cat([features, more], dim=-1)
        mean: Tensor = self.last(self.mlp(features))
        return mean

    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the means (B, A) in [-1, 1]."""
        mean: Tensor = self(inputs["obs"], inputs["goal"])
        return mean.clamp(-1.0, 1.0)


class NormedMLPs(nn.Module):
    """E MLPs whose hidden layers are linear map, GELU and layer normalization; the last layer is linear.

    Args:
        size: E, number of networks.
        input_dim: number of input features.
        layer_dims: widths of the hidden layers.
        output_dim: K, number of outputs.
        layer_norm: normalize after each GELU.
    """

    def __init__(
        self,
        size: int,
        input_dim: int,
        layer_dims: Sequence[int],
        output_dim: int,
        *,
        layer_norm: bool = True,
    ) -> None:
        super().__init__()
        self.size = size
        widths = [input_dim, *layer_dims]
        self.layers = nn.ModuleList(
            EnsembleLinear(size, n, m) for n, m in zip(widths[:-1], widths[1:], strict=True)
        )
        self.norms = nn.ModuleList(
            EnsembleLayerNorm(size, width, NORM_EPS) for width in layer_dims if layer_norm
        )
        self.head = EnsembleLinear(size, widths[-1], output_dim)
        for layer in (*self.layers, self.head):
            assert isinstance(layer, EnsembleLinear)
            _, inputs, outputs = layer.weight.shape
            bound = math.sqrt(6.0 / (inputs + outputs))
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (B, D) to (E, B, K)."""
        x = x.expand(self.size, *x.shape)
        for number, layer in enumerate(self.layers):
            x = gelu(layer(x))
            if self.norms:
                x = self.norms[number](x)
        out: Tensor = self.head(x)
        return out


class GoalValue(nn.Module):
    """Ensemble of E values V(s, g), or Q(s, a, g) with actions.

    Args:
        encoder: encoder of observation and goal.
        layer_dims: widths of the hidden layers.
        ac_dim: size of an action; 0 for values of states.
        size: E, number of members.
        layer_norm: normalize after each GELU.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        layer_dims: Sequence[int],
        ac_dim: int = 0,
        size: int = 2,
        *,
        layer_norm: bool = True,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.output_dim + ac_dim
        self.mlps = NormedMLPs(size, width, layer_dims, 1, layer_norm=layer_norm)

    def forward(self, obs: Obs, goal: Obs, actions: Tensor | None = None) -> Tensor:
        """Return values (E, B)."""
        features = self.encoder(obs, goal)
        if actions is not None:
            features = torch.cat([features, actions], dim=-1)
        values: Tensor = self.mlps(features)
        return values.squeeze(-1)


class BilinearValue(nn.Module):
    """Ensemble of E contrastive values phi(s, a)^T psi(g) / sqrt(K), or phi(s)^T psi(g) / sqrt(K) without actions.

    Args:
        obs: encoder of the observation.
        goal: encoder of the goal.
        layer_dims: widths of the hidden layers of phi and psi.
        latent_dim: K, number of features of phi and psi.
        ac_dim: size of an action; 0 for values of states.
        size: E, number of members.
        layer_norm: normalize after each GELU.
    """

    def __init__(
        self,
        obs: GroupEncoder,
        goal: ObservationEncoder,
        layer_dims: Sequence[int],
        latent_dim: int,
        ac_dim: int = 0,
        size: int = 2,
        *,
        layer_norm: bool = True,
    ) -> None:
        super().__init__()
        self.obs, self.goal, self.scale = obs, goal, latent_dim**-0.5
        words = {"layer_dims": layer_dims, "output_dim": latent_dim, "layer_norm": layer_norm}
        self.phi = NormedMLPs(size, obs.output_dim + ac_dim, **words)  # type: ignore[arg-type]
        self.psi = NormedMLPs(size, goal.output_dim, **words)  # type: ignore[arg-type]

    def _features(self, obs: Obs, goal: Obs, actions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return phi and psi, (E, B, K) each."""
        features = self.obs(obs)
        if actions is not None:
            features = torch.cat([features, actions], dim=-1)
        return self.phi(features), self.psi(self.goal(goal))

    def forward(self, obs: Obs, goal: Obs, actions: Tensor | None = None) -> Tensor:
        """Return the value (E, B) of each state for the goal of the same row."""
        phi, psi = self._features(obs, goal, actions)
        value: Tensor = (phi * psi).sum(-1) * self.scale
        return value

    def pairs(self, obs: Obs, goal: Obs, actions: Tensor | None = None) -> Tensor:
        """Return the value (E, B, B) of each state (row) for each goal (column)."""
        phi, psi = self._features(obs, goal, actions)
        value: Tensor = phi @ psi.transpose(-1, -2) * self.scale
        return value


class SubgoalValue(nn.Module):
    """Ensemble of values V(s, r), where r = sqrt(K) n(s, g) / |n(s, g)| represents the goal g in the state s.

    Args:
        obs: encoder of the observation, for V.
        both: encoder of observation and goal, for the representation.
        layer_dims: widths of the hidden layers of V and of the representation.
        rep_dim: K, size of the representation.
        size: E, number of members of V.
        layer_norm: normalize after each GELU.
    """

    def __init__(
        self,
        obs: GroupEncoder,
        both: GroupEncoder,
        layer_dims: Sequence[int],
        rep_dim: int,
        size: int = 2,
        *,
        layer_norm: bool = True,
    ) -> None:
        super().__init__()
        self.obs, self.both = obs, both
        self.rep = NormedMLPs(1, both.output_dim, layer_dims, rep_dim, layer_norm=layer_norm)
        self.mlps = NormedMLPs(size, obs.output_dim + rep_dim, layer_dims, 1, layer_norm=layer_norm)

    def represent(self, obs: Obs, goal: Obs) -> Tensor:
        """Return representations (B, K) of length sqrt(K)."""
        return to_sphere(self.rep(self.both(obs, goal))[0])

    def forward(self, obs: Obs, goal: Obs, target: NormedMLPs | None = None) -> Tensor:
        """Return values (E, B), by the MLPs ``target`` if given; the representation is always the online one."""
        features = torch.cat([self.obs(obs), self.represent(obs, goal)], dim=-1)
        values: Tensor = (target or self.mlps)(features)
        return values.squeeze(-1)


def to_sphere(x: Tensor) -> Tensor:
    """Scale vectors (*B, K) to length sqrt(K)."""
    scaled: Tensor = x / x.norm(dim=-1, keepdim=True) * math.sqrt(x.shape[-1])
    return scaled
