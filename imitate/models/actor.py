"""The network of a policy: encoders of observation and goal, optional memory, hidden layers, action head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from imitate.models.heads import ActionHead
from imitate.models.mlp import MLP
from imitate.models.observation import ObservationEncoder
from imitate.models.rnn import RNN
from imitate.models.transformer import CausalTransformer
from imitate.models.vae import VAE

Obs = dict[str, Tensor]


class GroupEncoder(nn.Module):
    """Features of the observation, then those of the goal.

    Args:
        obs: encoder of the group ``obs``.
        goal: encoder of the group ``goal``; None for a policy without goals.
        frames: F > 1: observations are ``(B, F, ...)`` and the features of the frames are joined, oldest first.
    """

    def __init__(
        self, obs: ObservationEncoder, goal: ObservationEncoder | None = None, frames: int = 1
    ) -> None:
        super().__init__()
        self.obs = obs
        self.goal = goal
        self.frames = frames
        self.output_dim = obs.output_dim * frames + (goal.output_dim if goal else 0)

    def forward(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Observations ``(B, ...)`` or windows ``(B, T, ...)`` to ``(B, D)`` or ``(B, T, D)``.

        A goal ``(B, ...)`` is the same for all steps of a window.
        """
        features: Tensor = self.obs(obs)
        if self.frames > 1:
            features = features.flatten(-2)
        if self.goal is None:
            return features
        goal_features: Tensor = self.goal(goal)
        if features.dim() == 3:
            goal_features = goal_features.unsqueeze(1).expand(-1, features.shape[1], -1)
        return torch.cat([features, goal_features], dim=-1)


class Actor(nn.Module):
    """Encoder -> [RNN] -> MLP -> head. With an RNN, observations are windows ``(B, T, ...)``."""

    def __init__(self, encoder: GroupEncoder, rnn: RNN | None, mlp: MLP, head: ActionHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.rnn = rnn
        self.mlp = mlp
        self.head = head

    def forward(
        self, obs: Obs, goal: Obs | None = None, state: Obs | None = None
    ) -> tuple[Tensor, Obs | None]:
        """Features for the head, ``(B, D)`` or ``(B, T, D)``, and the state of the RNN after the last step."""
        features = self.encoder(obs, goal)
        if self.rnn is not None:
            features, state = self.rnn(features, state)
        return self.mlp(features), state


class TransformerActor(nn.Module):
    """Encoder of each step -> transformer over steps -> head."""

    def __init__(
        self, encoder: GroupEncoder, transformer: CausalTransformer, head: ActionHead
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.transformer = transformer
        self.head = head

    def forward(self, obs: Obs, goal: Obs | None = None) -> tuple[Tensor, None]:
        """Windows ``(B, T, ...)`` to features for the head, ``(B, T, D)``; there is no state."""
        features: Tensor = self.transformer(self.encoder(obs, goal))
        return features, None


class VAEActor(nn.Module):
    """Encoder, and a VAE over actions conditioned on its features."""

    def __init__(self, encoder: GroupEncoder, vae: VAE) -> None:
        super().__init__()
        self.encoder = encoder
        self.vae = vae
