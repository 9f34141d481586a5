"""Causal behavior cloning (ResiduIL): imitation of an expert whose noise lasts longer than one step.

Swamy, Choudhury, Bagnell, Wu, "Causal Imitation Learning under Temporally Correlated Noise", ICML 2022
(arXiv:2202.01312).

Noise on an action changes the next state. If the noise persists at the next action (a tremor, wind, a slow controller),
states predict the noise, and regression learns it as a part of the policy. A state from before the noise cannot predict
it, so any error a - pi(s) that such a state predicts is the policy's own. A discriminator f learns to predict errors,
and the policy learns to make no predictable errors:

    min over pi, max over f:  E[ 2 (a_t - pi(s_t)) f(s_{t-k}) - f(s_{t-k})^2 ]
    f:  -(2 (a - pi(s)) f - f^2) + norm_weight |f|, pi fixed                             -> CausalBC._discriminator_loss
    pi: 2 (a - pi(s)) f + bc_weight (a - pi(s))^2, f fixed                               -> CausalBC._loss

The best f is E[ a - pi(s) | s_{t-k} ]. The value of the game is then the mean square of f, which is 0 only if no error
is predictable. k is ``instrument_lag``: noise shared by two successive actions needs 1, as in the paper; noise shared
by k + 1 actions needs k.

Departures from the published code: f is updated before the policy and with a larger learning rate, by Adam, instead of
an optimistic Adam without momentum and a common learning rate; |f| is the root mean square instead of the norm over the
batch, which grows with the batch size (their weight 0.001 at 128 samples of one number is a ``norm_weight`` of 0.011);
actions are bounded by a tanh.
"""

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.sections import EMAConfig, LayerDims
from imitate.config import AlgoSection, BaseConfig
from imitate.config.optimizer import Networks, adam, networks
from imitate.functional.losses import masked_mean
from imitate.models.actor import Actor, GroupEncoder
from imitate.models.heads import DeterministicHead
from imitate.models.mlp import MLP
from imitate.system.text import counted


class CausalBCConfig(AlgoSection):
    """Options of algorithm ``causal_bc``, under ``algo``."""

    tree_defaults = {"train": {"seq_length": 2}}

    optim_params: Networks = networks(
        "CausalBCOptimParams", policy=adam(1e-4), discriminator=adam(1e-3)
    )
    actor_layer_dims: LayerDims = Field(
        (256, 256), description="widths of the hidden layers of the policy"
    )
    discriminator_layer_dims: LayerDims = Field(
        (256, 256), description="widths of the hidden layers of the discriminator"
    )
    instrument_lag: int = Field(
        1,
        ge=1,
        description="k: number of steps between the earlier state, which predicts the policy's errors, and the action",
    )
    bc_weight: float = Field(
        0.05,
        ge=0,
        description="weight of an additional regression loss, which learns a part of the persistent noise; 0: no "
        "regression",
    )
    norm_weight: float = Field(
        0.01,
        ge=0,
        description="weight of the penalty on the root mean square of the discriminator's predictions",
    )
    ema: EMAConfig = Field(EMAConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        steps = self.instrument_lag + 1
        if config.train.seq_length == steps:
            return []
        return [
            f"train.seq_length is {config.train.seq_length}, but algo.instrument_lag {self.instrument_lag} needs "
            f"windows of {counted(steps, 'step')}: set it to {steps}"
        ]


class ErrorPredictor(nn.Module):
    """Network that predicts the errors of actions from an earlier state."""

    def __init__(self, encoder: GroupEncoder, layer_dims: LayerDims, ac_dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(encoder.output_dim, layer_dims)
        self.error = nn.Linear(self.mlp.output_dim, ac_dim)

    def forward(self, obs: Batch, goal: Batch | None) -> Tensor:
        """Map observations (B, ...) to predicted errors (B, A)."""
        predicted: Tensor = self.error(self.mlp(self.encoder(obs, goal)))
        return predicted


@register("causal_bc", CausalBCConfig)
class CausalBC(Algo[CausalBCConfig]):
    """Deterministic policy whose errors cannot be predicted from an earlier state."""

    @property
    def policy(self) -> Actor:
        """The network that acts."""
        return cast(Actor, self.active_nets["policy"])

    def _create_networks(self) -> None:
        config = self.config
        encoder = self._create_encoder()
        mlp = MLP(encoder.output_dim, config.actor_layer_dims)
        head = DeterministicHead(mlp.output_dim, self.ac_dim)
        self.nets = nn.ModuleDict(
            {
                "policy": Actor(encoder, mlp, head),
                "discriminator": ErrorPredictor(
                    self._create_encoder(), config.discriminator_layer_dims, self.ac_dim
                ),
            }
        )

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the last action of the window, its observation, and the observation ``instrument_lag`` steps before.

        ``weight`` (B,) is 0 if the demo ended in between.
        """
        frames, lag = self.frame_stack, self.config.instrument_lag
        now = frames - 1 + lag
        weight, mask = batch.get("weight"), batch.get("pad_mask")
        real = torch.ones_like(batch["actions"][:, now, 0]) if mask is None else mask[:, now]

        def observation(first: int) -> Batch:
            steps = slice(first, first + frames) if frames > 1 else first
            return {key: value[:, steps] for key, value in batch["obs"].items()}

        return {
            "obs": observation(lag),
            "earlier_obs": observation(0),
            "goal_obs": batch.get("goal_obs"),
            "actions": batch["actions"][:, now],
            "weight": real.float() if weight is None else real * weight[:, now],
        }

    def _error(self, batch: Batch) -> Tensor:
        """Return demonstrated actions minus the policy's actions, (B, A)."""
        with self.autocast():
            features, _ = self.policy(batch["obs"], batch["goal_obs"])
        error: Tensor = batch["actions"] - self.policy.head(features.float()).mean
        return error

    def _predicted_error(self, batch: Batch) -> Tensor:
        """Return the errors (B, A) that the discriminator predicts."""
        with self.autocast():
            predicted = self.nets["discriminator"](batch["earlier_obs"], batch["goal_obs"])
        return cast(Tensor, predicted.float())

    def _discriminator_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        with torch.no_grad():
            error = self._error(batch)
        predicted, weight = self._predicted_error(batch), batch["weight"]
        value = masked_mean((2.0 * error * predicted - predicted.square()).mean(-1), weight)
        real = predicted * (weight > 0).unsqueeze(-1)
        # the gradient of vector_norm is 0 at 0, where the gradient of a square root would be infinite
        size = torch.linalg.vector_norm(real) / predicted.numel() ** 0.5
        loss = self.config.norm_weight * size - value
        return loss, {"Discriminator_Loss": loss, "Residual_Predictability": value}

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        with torch.no_grad():
            predicted = self._predicted_error(batch)
        error, weight = self._error(batch), batch["weight"]
        distance = masked_mean(error.square().mean(-1), weight)
        game = masked_mean((2.0 * error * predicted).mean(-1), weight)
        loss = game + self.config.bc_weight * distance
        return loss, {"Loss": loss, "BC_Distance": distance}

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update the discriminator, then the policy."""
        with torch.set_grad_enabled(not validate):
            loss, info = self._discriminator_loss(batch)
        if not validate:
            info["Discriminator_Grad_Norms"] = self._gradient_step("discriminator", loss)
        return {
            **{name: value.detach() for name, value in info.items()},
            **super().train_on_batch(batch, epoch, validate),
        }

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute error of the policy's actions in normalized units, including the demonstrator's noise."""
        return {"Action_Error": masked_mean(self._error(batch).abs().mean(-1), batch["weight"])}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        features, _ = self.policy(obs, goal)
        return PolicyStep(self.policy.head.act(features, explore, generator), state, {})
