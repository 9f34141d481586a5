"""Conservative Q-learning: a soft actor-critic that does not overestimate actions outside the data; also ``cal_ql``.

Kumar, Zhou, Tucker & Levine, "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020
(arXiv:2006.04779), the form CQL(H), on Haarnoja et al., "Soft Actor-Critic Algorithms and Applications"
(arXiv:1812.05905).
With Q_e an ensemble, pi a tanh-Gaussian policy, w = ``min_q_weight``:

    gap_e  = log integral of exp Q_e(s, a) over a - Q_e(s, a_data), from N samples each of a uniform distribution, pi(s)
             and pi(s')                                                              -> CQL._gap
    target = r + discount min_e Q'_e(s', a'), a' ~ pi(s') [- entropy weight log pi(a' | s')]  -> CQL._target
    critic: sum_e mean (Q_e(s, a) - target)^2 + weight (w gap_e - target_q_gap)               -> CQL._critic_loss
    weight: rises while w gap > target_q_gap, falls while it is less; or it is fixed          -> CQL._cql_weight_loss
    actor:  entropy weight log pi(a | s) - min_e Q_e(s, a), a ~ pi(s); for the first
            ``bc_start_steps`` updates the likelihood of the data instead of Q                -> CQL._actor_loss
    entropy weight: rises while the entropy is below ``target_entropy``                       -> CQL._entropy_loss

As in the paper, the critic is updated before the actor (in robomimic after it). In three points this file follows the
published code, for which the published weights and thresholds were tuned, instead of the paper: the squared error is
not halved, actions of pi(s') are among the samples, and ``target_q_gap`` refers to the sum of the samples instead of
their mean, so that it includes log 3N. Departures from robomimic: log-densities are computed before the tanh,
transitions of a timeout are bootstrapped, and the count of updates behind ``bc_start_steps`` is saved.

Cal-QL: Nakamoto, Zhai, Singh et al., "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning",
NeurIPS 2023 (arXiv:2303.05479). Values stay on the scale of returns, so that online fine-tuning does not begin with a
drop. The method is as above, except that values of the policy's actions are not pushed below V, the value of the policy
that collected the data:

    in the conservative term Q(s, a) of a ~ pi(s), pi(s') counts as max(Q(s, a), V(s))                -> CQL._counted
    V(s_t) = the discounted rewards from t to the end of the demo                     -> imitate.data.batches.rewards

If a demo ends without a terminal, its last reward is assumed to continue for ever (``continue_truncated``). The
published code does so for failed episodes of tasks with sparse rewards, and it is consistent with bootstrapping at
timeouts. Set ``continue_truncated`` to false for dense rewards, whose last value does not predict later rewards.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import (
    ActorCriticConfig,
    ActorNetConfig,
    CriticConfig,
    StochasticActorConfig,
)
from imitate.config import BaseConfig, DataNeeds, Returns
from imitate.config.optimizer import Networks, networks, staged
from imitate.functional.losses import masked_mean
from imitate.models.heads import Gaussian, TanhDistribution


def uniform_log_density(action_dim: int) -> float:
    """Log-density of the uniform distribution over [-1, 1]^A."""
    return -action_dim * math.log(2.0)


def sampled_logsumexp(q: Tensor, log_density: Tensor) -> Tensor:
    """Estimate of ``log of the integral of exp(Q(s, a)) over a`` by importance samples.

    The samples may come from several distributions, with equal numbers of samples; the estimates of all distributions
    are averaged.

    Args:
        q: (*E, B, N) values of N sampled actions.
        log_density: (B, N) log-density of each sample under the distribution from which the sample was drawn.

    Returns:
        (*E, B).
    """
    return torch.logsumexp(q - log_density, dim=-1) - math.log(q.shape[-1])


def calibrated(q: Tensor, reference: Tensor) -> Tensor:
    """Return values that are at least those of a reference policy, and are not pushed below them (Cal-QL).

    Nakamoto et al., NeurIPS 2023 (arXiv:2303.05479). A value below the reference has no gradient.

    Args:
        q: (*E, B, N) values of N actions of the policy.
        reference: (B,) values of the reference policy in the same states.

    Returns:
        (*E, B, N) ``max(q, reference)``.
    """
    return torch.maximum(q, reference.unsqueeze(-1))


class CQLActorConfig(StochasticActorConfig):
    """Gaussian policy, its warm start, and the weight of its entropy."""

    bc_start_steps: int = Field(
        0, ge=0, description="number of updates at the start in which the actor imitates the data"
    )
    target_entropy: float | Literal["default"] | None = Field(
        "default",
        description="target entropy in nats, to which the entropy weight is tuned; default: -(action dimensions); "
        "null: the weight is constant",
    )
    initial_entropy_weight: float = Field(
        1.0, gt=0, description="initial weight of the entropy; choose it small if returns are small"
    )
    net: ActorNetConfig = Field(
        ActorNetConfig.model_validate({"common": {"std_activation": "exp", "use_tanh": True}})
    )


class CQLCriticConfig(CriticConfig):
    """Critics, and the conservative term of their loss."""

    num_action_samples: int = Field(
        1,
        ge=1,
        description="number of sampled next actions per transition; the target uses the largest of their values",
    )
    deterministic_backup: bool = Field(
        True,
        description="leave the entropy of the next action out of TD targets; false requires num_action_samples 1",
    )
    cql_weight: float = Field(
        1.0,
        gt=0,
        description="weight of the conservative term, or its initial weight if target_q_gap is given",
    )
    min_q_weight: float = Field(
        1.0,
        gt=0,
        description="factor on the gap between sampled and data actions in the conservative term",
    )
    target_q_gap: float | None = Field(
        5.0,
        description="gap between values of sampled and data actions to which the weight is tuned; null or negative: "
        "the weight is fixed",
    )
    num_random_actions: int = Field(
        10,
        ge=1,
        description="N: number of actions drawn for the conservative term from each of three distributions: uniform, "
        "the policy, and the policy in the next state",
    )

    @property
    def tuned_gap(self) -> float | None:
        """``target_q_gap`` if the conservative weight is tuned; None if the weight is fixed."""
        fixed = self.target_q_gap is None or self.target_q_gap < 0
        return None if fixed else self.target_q_gap


class CQLConfig(ActorCriticConfig):
    """Options of algorithm ``cql``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 1024}}
    calibrated: ClassVar[bool] = False
    """True for Cal-QL: the conservative term does not push values below the return of the demonstration."""

    optim_params: Networks = networks(
        "CQLOptimParams",
        "Optimizers by network. Entropy weight and conservative weight use the learning rates of actor and critic.",
        critic=1e-3,
        actor=3e-4,
    )
    actor: CQLActorConfig = Field(CQLActorConfig())
    critic: CQLCriticConfig = Field(CQLCriticConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        if self.actor.net.type != "gaussian":
            problems.append(
                f"algo.actor.net.type is '{self.actor.net.type}', but the actor of {config.algo_name} learns through "
                "its samples: set it to 'gaussian'"
            )
        if not self.critic.deterministic_backup and self.critic.num_action_samples > 1:
            problems.append(
                f"algo.critic.deterministic_backup is false, but the best of algo.critic.num_action_samples "
                f"{self.critic.num_action_samples} actions has no entropy: set num_action_samples to 1"
            )
        return problems


class CalQLCriticConfig(CQLCriticConfig):
    """The critics; the conservative weight is fixed unless ``target_q_gap`` is given."""

    cql_weight: float = Field(
        5.0,
        gt=0,
        description="weight of the conservative term, or its initial weight if target_q_gap is given",
    )
    target_q_gap: float | None = Field(
        None,
        description="gap between values of sampled and data actions to which the weight is tuned; null or negative: "
        "the weight is fixed",
    )


class CalQLConfig(CQLConfig):
    """Options of algorithm ``cal_ql``, under ``algo``."""

    calibrated: ClassVar[bool] = True

    critic: CalQLCriticConfig = Field(CalQLCriticConfig())
    continue_truncated: bool = Field(
        True,
        description="in returns of demonstrations without a terminal, assume that the last reward "
        "continues for ever; false: assume no more rewards",
    )

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request the data of ``cql`` and, in addition, discounted returns of the scaled rewards."""
        returns = Returns(discount=self.discount, continue_truncated=self.continue_truncated)
        return replace(super().data_needs(config), returns=returns)

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        if self.infinite_horizon:
            problems.append(
                "algo.infinite_horizon is true, but cal_ql computes returns of the unchanged rewards: set it to false"
            )
        return problems


class Weight(nn.Module):
    """A learned positive number, stored as its logarithm."""

    def __init__(self, initial: float = 1.0) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """Return the number, which is at most 1e6."""
        return self.log.exp().clamp(max=1e6)


@register("cal_ql", CalQLConfig)
@register("cql", CQLConfig)
class CQL(ActorCritic[CQLConfig]):
    """Conservative Q-learning, or Cal-QL if the section is ``calibrated``."""

    def _create_networks(self) -> None:
        config = self.config
        # Counts the updates of the warm start (bc_start_steps). A new training from loaded weights repeats the warm
        # start.
        self.counters["updates"] = 0
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic),
            }
        )
        self._add_targets()
        if config.actor.target_entropy is not None:
            self.nets["entropy_weight"] = Weight(config.actor.initial_entropy_weight)
        if config.critic.tuned_gap is not None:
            self.nets["cql_weight"] = Weight(config.critic.cql_weight)

    def _optim_params(self) -> dict[str, Any]:
        params = super()._optim_params()
        for name, like in (("entropy_weight", "actor"), ("cql_weight", "critic")):
            if name in self.nets:
                params[name] = staged(params[like].learning_rate.initial)
        return params

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the transition; for Cal-QL also the return (B,) from its step on."""
        selected = super()._select_batch(batch)
        if self.config.calibrated:
            selected["returns"] = batch["returns"][:, self.frame_stack - 1]
        return selected

    # ---- losses --------------------------------------------------------------------------------------------------

    def _policy(self, obs: Batch, goal: Batch | None) -> Gaussian | TanhDistribution:
        """Return pi(. | s)."""
        features, _ = self.actor(obs, goal)
        return cast(Gaussian | TanhDistribution, self.actor.head(features))

    def _weight(self, name: str, fixed: float) -> Tensor:
        """Return the value of a learned weight without gradient, or ``fixed`` if the weight is not learned."""
        if name not in self.nets:
            return torch.full((), fixed, device=self.device)
        return cast(Tensor, self.nets[name]()).detach()

    @property
    def _entropy_weight(self) -> Tensor:
        return self._weight("entropy_weight", self.config.actor.initial_entropy_weight)

    @property
    def _cql_weight(self) -> Tensor:
        return self._weight("cql_weight", self.config.critic.cql_weight)

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Return the TD target (B,) for the critics, without gradient."""
        config = self.config.critic
        next_policy = self._policy(batch["next_obs"], batch["goal_obs"])
        actions, log_prob = next_policy.draw(config.num_action_samples)
        values = self.nets["critic_target"](batch["next_obs"], actions, batch["goal_obs"])
        value = self._ensemble_value(values.amax(-1))
        if not config.deterministic_backup:
            value = value - self._entropy_weight * log_prob[:, 0]
        return cast(Tensor, batch["rewards"] + batch["discounts"] * value)

    @torch.no_grad()
    def _sampled_actions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return actions (B, 3N, A), N each of a uniform distribution, pi(s) and pi(s'), and log-densities (B, 3N)."""
        number, goal = self.config.critic.num_random_actions, batch["goal_obs"]
        here, here_density = self._policy(batch["obs"], goal).draw(number)
        there, there_density = self._policy(batch["next_obs"], goal).draw(number)
        random = torch.empty_like(here).uniform_(-1.0, 1.0)
        density = torch.full_like(here_density, uniform_log_density(self.ac_dim))
        actions = torch.cat([random, here, there], dim=1)
        return actions, torch.cat([density, here_density, there_density], dim=1)

    def _counted(self, values: Tensor, batch: Batch) -> Tensor:
        """Return the values (E, B, 3N) of the sampled actions as the conservative term uses them.

        For Cal-QL, values of the policy's actions are raised to the return; values of random actions are not changed.
        """
        if not self.config.calibrated:
            return values
        number = self.config.critic.num_random_actions
        of_policy = calibrated(values[..., number:], batch["returns"])
        return torch.cat([values[..., :number], of_policy], dim=-1)

    def _gap(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the gap (E, B) between values of sampled and data actions, and the values (E, B) of data actions."""
        actions, density = self._sampled_actions(batch)
        with_data = torch.cat([batch["actions"].unsqueeze(1), actions], dim=1)
        values = self.nets["critic"](batch["obs"], with_data, batch["goal_obs"])
        of_data, sampled = values[..., 0], self._counted(values[..., 1:], batch)
        return sampled_logsumexp(sampled, density) - of_data, of_data

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of network ``critic``."""
        config = self.config.critic
        target = self._target(batch)
        gap, values = self._gap(batch)
        td_error = self._td_loss(values, target, batch["weight"])
        mean_gap = masked_mean(gap.mean(0), batch["weight"])
        excess = config.min_q_weight * mean_gap
        if config.tuned_gap is not None:
            summed = mean_gap + math.log(3 * config.num_random_actions)
            excess = config.min_q_weight * summed - config.tuned_gap
        loss = td_error + self._cql_weight * excess * len(gap)
        return loss, {
            "Critic_Loss": loss,
            "TD_Error": td_error,
            "Q_Gap": mean_gap,
            "Q_Gap_Excess": excess,
            "Q_Data": values.mean(),
            "Q_Targets": target.mean(),
            "CQL_Weight": self._cql_weight,
        }

    def _cql_weight_loss(self, excess: Tensor) -> Tensor:
        """Return the loss of network ``cql_weight``."""
        return -self.nets["cql_weight"]() * excess.detach()  # type: ignore[no-any-return]

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        policy = self._policy(batch["obs"], batch["goal_obs"])
        actions, log_prob = (x[:, 0] for x in policy.draw(1))
        if self.counters["updates"] < self.config.actor.bc_start_steps:
            liked = policy.log_prob(batch["actions"])
        else:
            liked = self.nets["critic"](batch["obs"], actions, batch["goal_obs"]).amin(0)
        loss = masked_mean(self._entropy_weight * log_prob - liked, batch["weight"])
        return loss, {
            "Actor_Loss": loss,
            "Entropy": -masked_mean(log_prob, batch["weight"]),
            "Entropy_Weight": self._entropy_weight,
        }

    def _entropy_weight_loss(self, entropy: Tensor) -> Tensor:
        """Return the loss of network ``entropy_weight``."""
        wanted = self.config.actor.target_entropy
        target = wanted if isinstance(wanted, float) else -float(self.ac_dim)
        return cast(Weight, self.nets["entropy_weight"]).log * (entropy.detach() - target)

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critics, conservative weight, target networks, actor and entropy weight, in this order."""
        update.step("critic", self._critic_loss(batch))
        if update.learns("critic"):
            self._follow()
            if "cql_weight" in self.nets:
                excess = update.info["Q_Gap_Excess"]
                self._gradient_step("cql_weight", self._cql_weight_loss(excess))
        update.step("actor", self._actor_loss(batch))
        if update.learns("actor"):
            self.counters["updates"] += 1
            if "entropy_weight" in self.nets:
                entropy = update.info["Entropy"]
                self._gradient_step("entropy_weight", self._entropy_weight_loss(entropy))
