"""Truncated quantile critics (TQC): soft values from the pooled quantiles of several critics without the highest ones.

Kuznetsov, Shvechikov, Grishin, Vetrov, "Controlling Overestimation Bias with Truncated Mixture of Continuous
Distributional Quantile Critics", ICML 2020 (arXiv:2005.04269), on Haarnoja et al., "Soft Actor-Critic Algorithms and
Applications" (arXiv:1812.05905). Each of E critics Z_e gives M quantiles (atoms) of the return. With targets Z', the
discount g and a tanh-Gaussian policy pi:

    a' ~ pi(s'); z_1 <= ... <= z_EM: atoms of all Z'_e(s', a'), without the last E d   -> lowest_atoms
    y_i = r + g (z_i - alpha log pi(a' | s')), r alone after a terminal                -> TQC._target
    critic: sum over e of mean_m mean_i |t_m - [y_i < Z_em]| huber(y_i - Z_em),
            t_m = (m - 1/2) / M                                                        -> TQC._critic_loss
    actor:  alpha log pi(a | s) - mean of all atoms of Z_e(s, a), a ~ pi(s)            -> TQC._actor_loss
    alpha:  rises while the entropy is below its target, falls while it is above       -> EntropyWeight.loss

With ``critic.ensemble.rule`` ``least_mean`` the algorithm is QR-SAC (Wurman et al., "Outracing champion Gran Turismo
drivers with deep reinforcement learning", Nature 602, 2022), whose targets are all atoms of one critic, and d is 0:

    z_i: atoms of the Z'_e(s', a') with the least mean                                 -> TQC._least
    actor: alpha log pi(a | s) - min_e mean_m Z_em(s, a)                               -> TQC._actor_loss

With named rewards, each reward has its own atoms, and the dropped atoms are those that raise the weighted total most.

``critic.num_dropped`` d balances over- and underestimation: in the paper 2 for most tasks, 5 for Hopper, 0 for
HalfCheetah. Departure: hidden layers are 256 by 256 as in ``sac``; the paper's critics have three of 512. With
``algo.rnn`` all networks share a recurrent encoder (:mod:`imitate.algo.slots.memory`).
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.entropy import (
    EntropyWeight,
    SoftActorCriticConfig,
    SoftCriticConfig,
    prior_field,
    sampled_actions,
)
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import CriticEnsembleConfig
from imitate.algo.slots.memory import ReplayedMemoryConfig
from imitate.algo.slots.prior import PriorConfig
from imitate.config import BaseConfig
from imitate.functional.losses import lowest_atoms, masked_mean, quantile_regression_loss


class QuantileEnsembleConfig(CriticEnsembleConfig):
    """Number of quantile critics, and the rule by which a target combines them."""

    n: int = Field(5, ge=1, description="number of critics")
    rule: Literal["truncated", "least_mean"] = Field(
        "truncated",
        description="truncated: targets are the lowest atoms of all critics; least_mean: all atoms of the critic with "
        "the least mean, and the actor maximizes the least mean (QR-SAC)",
    )


class TQCCriticConfig(SoftCriticConfig):
    """Critics that predict quantiles of the return."""

    ensemble: QuantileEnsembleConfig = Field(QuantileEnsembleConfig())
    use_huber: bool = Field(
        True, description="use the Huber error of quantiles instead of the absolute error"
    )
    num_quantiles: int = Field(25, ge=2, description="number of quantiles (atoms) of each critic")
    num_dropped: int = Field(
        2,
        ge=0,
        description="number of highest atoms per critic that targets drop from the pool of all "
        "critics; increase it if values are too high",
    )


class TQCConfig(SoftActorCriticConfig):
    """Options of algorithm ``tqc``, under ``algo``."""

    value_per_reward = True
    critic: TQCCriticConfig = Field(TQCCriticConfig())
    rnn: ReplayedMemoryConfig = Field(ReplayedMemoryConfig())
    prior: PriorConfig | None = prior_field()

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems, critic = super().conflicts(config), self.critic
        if critic.num_dropped >= critic.num_quantiles:
            problems.append(
                f"algo.critic.num_dropped is {critic.num_dropped}, which leaves none of the {critic.num_quantiles} "
                "atoms of algo.critic.num_quantiles: lower it"
            )
        if critic.num_dropped and critic.ensemble.rule == "least_mean":
            problems.append(
                f"algo.critic.num_dropped is {critic.num_dropped}, but with algo.critic.ensemble.rule 'least_mean' all "
                "atoms of a critic count: set it to 0"
            )
        if critic.ensemble.weight != 1.0:
            problems.append(
                f"algo.critic.ensemble.weight is {critic.ensemble.weight:g}, but targets of tqc are the lowest atoms "
                "of all critics: set it to 1"
            )
        if critic.value_bounds is not None:
            problems.append(
                f"algo.critic.value_bounds is {list(critic.value_bounds)}, but atoms of tqc are unbounded: set it to "
                "null"
            )
        return problems


@register("tqc", TQCConfig)
class TQC(ActorCritic[TQCConfig]):
    """Tanh-Gaussian actor and quantile critics."""

    def _create_networks(self) -> None:
        config = self.config
        num_atoms = config.critic.num_quantiles
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic, num_atoms=num_atoms),
            }
        )
        self._add_targets()
        target = torch.tensor(config.target_entropy(self.ac_dim), device=self.device)
        self.entropy = EntropyWeight(config.temperature, target)
        if self.entropy.net is not None:
            self.nets["temperature"] = self.entropy.net

    def _max_grad_norm(self, name: str) -> float | None:
        return None if name == "temperature" else super()._max_grad_norm(name)

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Return TD targets (B, E (M - d)) of the atoms, without gradient; (B, E (M - d), V) of named rewards."""
        next_obs, goal = batch["next_obs"], batch["goal_obs"]
        actions, log_prob = sampled_actions(self.actor, next_obs, goal, self.log_prior)
        atoms = self._critic("critic_target")(next_obs, actions, goal)
        soft = self._plus(self._lowest(atoms), -(self.entropy.value * log_prob).unsqueeze(1))
        target: Tensor = batch["rewards"].unsqueeze(1) + batch["discounts"].unsqueeze(1) * soft
        return target

    def _lowest(self, atoms: Tensor) -> Tensor:
        """Select the atoms that targets use: (E, B, M) to (B, E (M - d)), or (E, B, M, V) to (B, E (M - d), V)."""
        if self._takes_least:
            return self._least(atoms)
        dropped = self.config.critic.num_dropped
        if self.value_weights is None:
            return lowest_atoms(atoms, dropped)
        signs = self.value_weights.signs()
        return lowest_atoms((atoms * signs).movedim(-1, 1), dropped).movedim(0, -1) * signs

    @property
    def _takes_least(self) -> bool:
        """True if targets use only the critic with the least mean (``ensemble.rule`` ``least_mean``)."""
        return self.config.critic.ensemble.rule == "least_mean"

    def _least(self, atoms: Tensor) -> Tensor:
        """Select the atoms of the critic with the least mean: (E, B, M) to (B, M), or (E, B, M, V) to (B, M, V)."""
        least = self._total(atoms.mean(2)).argmin(0)
        return atoms[least, torch.arange(len(least), device=least.device)]

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config, target = self.config.critic, self._target(batch)
        atoms = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        if self.value_weights is None:
            each, samples = atoms, target.expand(len(atoms), *target.shape)
        else:
            each = atoms.movedim(-1, 1).flatten(0, 1)
            samples = target.movedim(-1, 0).repeat(len(atoms), 1, 1)
        errors = quantile_regression_loss(each, samples, huber=config.use_huber)
        loss = masked_mean(errors.sum(0) / config.num_quantiles, batch["weight"])
        values, wanted = atoms.mean(2), target.mean(1)
        if self.keeps_errors:
            self.sample_errors = self._distance((values.detach() - wanted).abs().mean(0))
        info = {"Q": self._total(values).mean(), "Q_Targets": self._total(wanted).mean()}
        return loss, {"Critic_Loss": loss, **info}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        obs, goal, weight = batch["obs"], batch["goal_obs"], batch["weight"]
        actions, log_prob = sampled_actions(self.actor, obs, goal, self.log_prior)
        means = self._critic("critic")(obs, actions, goal).mean(2)
        values = self._total(means).amin(0) if self._takes_least else self._total(means.mean(0))
        alpha = self.entropy.value
        loss = masked_mean(alpha * log_prob - values, weight)
        entropy = -masked_mean(log_prob.detach(), weight)
        return loss, {"Actor_Loss": loss, "Entropy": entropy, "Temperature": alpha}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critics, actor, temperature and target networks, in this order."""
        update.step("critic", self._critic_loss(batch))
        update.step("actor", self._actor_loss(batch))
        if self.entropy.net is not None and update.learns("actor"):
            self._gradient_step("temperature", self.entropy.loss(update.info["Entropy"]))
        if update.learns("critic"):
            self._follow()
