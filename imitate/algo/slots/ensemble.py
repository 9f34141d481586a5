"""Bootstrapped ensemble of networks that predict the change of the state, the reward and the end (PETS).

Chua, Calandra, McAllister, Levine, "Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics
Models", NeurIPS 2018 (arXiv:1805.12114). With y = (s' - s, r), inputs and y standardized by their running moments, and
w_m(i) the number of times that transition i is in the bootstrap of member m:

    deterministic  mean_i w_m(i) |f_m(s, a) - y|^2 / 2, mean over dimensions                      -> Ensemble.loss
    gaussian       mean_i w_m(i) [(mu_m - y)^2 exp(-l_m) + l_m], + 0.01 sum(l_max - l_min)        -> Ensemble.loss
                   log variances l within learned softplus bounds (appendix A.1)                  -> Ensemble._bounded
    ends           mean_i w_m(i) binary cross-entropy of terminals                                -> Ensemble.loss

summed over the members, which share no weights. Departures: w_m(i) ~ Poisson(1) is a fixed function of the
transition's storage number, so that members keep different bootstraps while data are added (Oza and Russell, "Online
Bagging and Boosting", 2001); the reward is not a known function, but predicted as one more dimension (Janner et al.
2019, arXiv:1906.08253); targets are standardized.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from imitate.algo.slots.dynamics import Batch, Dynamics, DynamicsConfig, PredictedStep, register
from imitate.config.section import Section
from imitate.functional.losses import masked_mean
from imitate.functional.sampling import bootstrap_counts
from imitate.models.critics import EnsembleLinear
from imitate.models.moments import RowMoments

FIRST_END_LOGIT = -5.0
"""Initial logit of an episode end: a probability of 0.7 %."""
FIRST_BOUNDS = (-10.0, 0.5)
"""Lower and upper bound of predicted log variances before training."""


class EnsembleConfig(DynamicsConfig):
    """Options of a learned model of type ``ensemble``."""

    model_config = {**Section.model_config}

    members: int = Field(5, ge=1, description="M, number of networks in the ensemble")
    layer_dims: tuple[PositiveInt, ...] = Field(
        (200, 200, 200), description="widths of the hidden layers of each network"
    )
    distribution: Literal["deterministic", "gaussian"] = Field(
        "deterministic",
        description="deterministic: members predict the mean; gaussian: members predict a diagonal Gaussian, from "
        "which predictions are sampled",
    )
    ends: bool = Field(
        True, description="predict terminal steps; false: assume that no step is terminal"
    )


@register("ensemble", EnsembleConfig)
class Ensemble(Dynamics):
    """M fully connected networks with SiLU activations, computed as one batched module."""

    def __init__(
        self, config: EnsembleConfig, obs_shapes: Mapping[str, tuple[int, ...]], ac_dim: int
    ) -> None:
        super().__init__(config, obs_shapes, ac_dim)
        self.members = config.members
        self.outputs = self.state_dim + 1
        self.is_gaussian = config.distribution == "gaussian"
        widths = [self.state_dim + ac_dim, *config.layer_dims]
        self.layers = nn.ModuleList(
            EnsembleLinear(self.members, n, m) for n, m in zip(widths[:-1], widths[1:], strict=True)
        )
        self.head = EnsembleLinear(
            self.members, widths[-1], self.outputs * (1 + self.is_gaussian) + config.ends
        )
        if config.ends:
            nn.init.constant_(self.head.bias[:, -1], FIRST_END_LOGIT)
        if self.is_gaussian:
            low, high = (torch.full((self.outputs,), bound) for bound in FIRST_BOUNDS)
            self.min_log_var, self.max_log_var = nn.Parameter(low), nn.Parameter(high)
        self.inputs, self.targets = RowMoments(widths[0]), RowMoments(self.outputs)

    @property
    def scale(self) -> Tensor:
        """Standard deviations (D,) of the changes of states in the data."""
        return self.targets.std[:-1]

    def _predicted(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return standardized means (M, N, D + 1) and log variances; logits (M, N, 1) of ends, or an empty tensor."""
        x = torch.cat([states, actions], dim=-1)
        x = (x - self.inputs.mean) / self.inputs.std
        for layer in self.layers:
            x = F.silu(layer(x))
        spread = self.outputs if self.is_gaussian else 0
        mean, log_var, end = self.head(x).split(
            [self.outputs, spread, int(self.config.ends)], dim=-1
        )
        return mean, self._bounded(log_var) if self.is_gaussian else log_var, end

    def _bounded(self, log_var: Tensor) -> Tensor:
        """Limit log variances softly to the learned bounds."""
        log_var = self.max_log_var - F.softplus(self.max_log_var - log_var)
        return self.min_log_var + F.softplus(log_var - self.min_log_var)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum over the members of the mean loss over their bootstraps."""
        states, wanted = self._sample(batch)
        wanted = (wanted - self.targets.mean) / self.targets.std
        size = (self.members, -1, -1)
        mean, log_var, end = self._predicted(states.expand(size), batch["actions"].expand(size))
        squares = (mean - wanted).square()
        errors = squares * torch.exp(-log_var) + log_var if self.is_gaussian else 0.5 * squares
        errors = errors.mean(-1)
        if self.config.ends:
            ended = (batch["discounts"] == 0).to(end).expand(self.members, -1)
            errors = errors + F.binary_cross_entropy_with_logits(
                end.squeeze(-1), ended, reduction="none"
            )
        counts = bootstrap_counts(batch["index"], self.members).to(errors)
        loss = masked_mean((counts * errors).sum(0), batch["weight"])
        if self.is_gaussian:
            loss = loss + 0.01 * (self.max_log_var - self.min_log_var).sum()
        return loss, {
            "Dynamics_Loss": loss,
            "Dynamics_Error": squares.mean(),
            "Dynamics_Disagreement": mean.std(0, correction=0).mean(),
        }

    def _sample(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return states (B, D) and targets (B, D + 1): the change of state, then the reward."""
        states = self.state_of(batch["obs"])
        change = self.state_of(batch["next_obs"]) - states
        return states, torch.cat([change, batch["rewards"].unsqueeze(-1)], dim=-1)

    @torch.no_grad()
    def follow(self, batch: Batch) -> None:
        """Update the running moments of inputs and targets."""
        states, wanted = self._sample(batch)
        self.inputs.add(torch.cat([states, batch["actions"]], dim=-1))
        self.targets.add(wanted)

    def step(
        self, states: Tensor, actions: Tensor, generator: torch.Generator | None = None
    ) -> PredictedStep:
        """Return each member's mean, or a sample of its Gaussian."""
        predicted, log_var, end = self._predicted(states, actions)
        spread = None
        if self.is_gaussian:
            noise = torch.empty_like(predicted).normal_(generator=generator)
            std = (0.5 * log_var).exp()
            predicted, spread = predicted + std * noise, std.norm(dim=-1)
        predicted = predicted * self.targets.std + self.targets.mean
        change, rewards = predicted[..., :-1], predicted[..., -1]
        ends = end.squeeze(-1).sigmoid() if self.config.ends else torch.zeros_like(rewards)
        return PredictedStep(states + change, rewards, ends, spread)
