"""Predictive representation: an auxiliary loss for predicting later rewards and observations from features.

The latent target is that of Schwarzer, Anand, Goel, Hjelm, Courville, Bachman, "Data-Efficient Reinforcement Learning
with Self-Predictive Representations" (SPR), ICLR 2021 (arXiv:2007.05929). With features phi, a recurrent network (GRU)
that starts from h_0 = tanh(W phi(o_t)), reads the actions and has the states h_1 ... h_K, decoders d, a projection g,
a predictor q, a linear map U, and target networks phi' and g':

    reward    mean over k = 1..K of smooth L1(d(h_k), r_t+k-1)                      -> Predictive.reward_loss
    KEY       mean over k = 0..K of smooth L1(d(h_k), o_t+k), of an observation     -> Predictive.observation_losses
    latent    mean over k = 1..K of 1 - cos(q(g(U h_k)), sg(g'(phi'(o_t+k))))       -> Predictive.latent_loss
    targets   phi' <- phi' + rate (phi - phi'), and g' alike, after each update     -> Predictive.follow

Steps after the episode's end are masked; the loss is the sum over the targets. Departures from SPR: a recurrent network
in place of convolutions over actions, and losses are means over the steps, so that their weight does not depend on K.
"""

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryContext,
    Batch,
    Features,
    SharingAuxiliaryConfig,
    newest_frame,
    register,
    window_of,
)
from imitate.config import Section
from imitate.functional.losses import cosine_loss, masked_mean
from imitate.models.critics import polyak_update_, target_of
from imitate.models.mlp import MLP
from imitate.models.reconstruction import ObservationDecoder
from imitate.models.rnn import RNN

REWARD, LATENT = "reward", "latent"
"""Names of prediction targets that are not observations."""


class PredictiveConfig(SharingAuxiliaryConfig):
    """Options of an auxiliary of type ``predictive``."""

    model_config = {**Section.model_config}

    steps: int = Field(5, ge=1, description="K: number of steps that are predicted")
    targets: tuple[str, ...] = Field(
        (LATENT,),
        min_length=1,
        description="targets of the prediction: 'latent' for features, 'reward', or names of observations",
    )
    hidden_dim: int = Field(256, ge=1, description="size of the recurrent state")
    layer_dims: tuple[PositiveInt, ...] = Field(
        (256,),
        description="widths of the hidden layers of the decoders of rewards and observations",
    )
    projection_dim: int = Field(128, ge=1, description="size of the latents that the loss compares")
    target_rate: float = Field(
        0.01,
        gt=0,
        le=1,
        description="Polyak rate of the target encoder: share of the online weights that it takes over per update",
    )

    @property
    def num_steps(self) -> int:
        """K: the loss is computed from this number of consecutive transitions."""
        return self.steps

    @property
    def needs_rewards(self) -> bool:
        """True if the loss depends on the rewards of the data."""
        return REWARD in self.targets


@register("predictive", PredictiveConfig)
class Predictive(Auxiliary):
    """Recurrent network that predicts rewards, observations or features after each of K actions."""

    def __init__(self, config: PredictiveConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.features = self.features_of(context)
        size, width, self.frames = self.features.output_dim, config.hidden_dim, context.frames
        self.start = nn.Linear(size, width)
        self.dynamics = RNN(context.ac_dim, width, 1, "GRU")
        if REWARD in config.targets:
            mlp = MLP(width, config.layer_dims)
            self.reward_head = nn.Sequential(mlp, nn.Linear(mlp.output_dim, 1))
        shapes = context.chosen_shapes(x for x in config.targets if x not in (REWARD, LATENT))
        if shapes:
            self.decoder = ObservationDecoder(width, shapes, config.layer_dims)
        if LATENT in config.targets:
            self.to_features = nn.Linear(width, size)
            self.projection = nn.Linear(size, config.projection_dim)
            self.predictor = nn.Linear(config.projection_dim, config.projection_dim)
            self.target_encoder = target_of(self.features.encoder)
            self.target_projection = target_of(self.projection)
            self.target_features = Features(self.target_encoder, context.frames)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of all targets."""
        window, goal = window_of(batch, self.config.steps), batch.get("goal_obs")
        first = {key: value[:, 0] for key, value in window["obs"].items()}
        start = self.start(self.features(first, goal).float()).tanh()
        states, _ = self.dynamics(window["actions"], {"h": start.unsqueeze(1)})
        losses: dict[str, Tensor] = {}
        if hasattr(self, "reward_head"):
            losses[REWARD] = self.reward_loss(states, window)
        if hasattr(self, "decoder"):
            every = torch.cat([start.unsqueeze(1), states], dim=1)
            losses |= self.observation_losses(every, window)
        if hasattr(self, "predictor"):
            losses[LATENT] = self.latent_loss(states, window, goal)
        total = torch.stack(list(losses.values())).sum()
        return total, {"Loss": total, **{f"{key}_Loss": value for key, value in losses.items()}}

    def reward_loss(self, states: Tensor, window: Batch) -> Tensor:
        """Return the mean loss of the rewards, from states (B, K, H)."""
        predicted = self.reward_head(states).squeeze(-1)
        errors = smooth_l1_loss(predicted, window["rewards"], reduction="none")
        return masked_mean(errors, window["mask"])

    def observation_losses(self, states: Tensor, window: Batch) -> dict[str, Tensor]:
        """Return the loss of each observation, from states (B, K + 1, H)."""
        mask = torch.cat([torch.ones_like(window["mask"][:, :1]), window["mask"]], dim=1)
        wanted = {key: window["obs"][key].flatten(0, 1) for key in self.decoder.shapes}
        wanted = newest_frame(wanted, self.frames)
        return {
            key: masked_mean(
                smooth_l1_loss(made, wanted[key], reduction="none").flatten(1).mean(-1),
                mask.flatten(),
            )
            for key, made in self.decoder(states.flatten(0, 1)).items()
        }

    def latent_loss(self, states: Tensor, window: Batch, goal: dict[str, Tensor] | None) -> Tensor:
        """Return the mean loss of later latent states, from states (B, K, H)."""
        predicted = self.predictor(self.projection(self.to_features(states)))
        with torch.no_grad():
            later = {key: value[:, 1:] for key, value in window["obs"].items()}
            wanted = self.target_projection(self.target_features.of_windows(later, goal).float())
        return masked_mean(cosine_loss(predicted, wanted), window["mask"])

    def follow(self, batch: Batch) -> None:
        """Move the target encoder and its projection towards the online encoder and projection."""
        if hasattr(self, "predictor"):
            target = nn.ModuleList([self.target_encoder, self.target_projection])
            online = nn.ModuleList([self.features.encoder, self.projection])
            polyak_update_(target, online, self.config.target_rate)
