"""Soft actor-critic: values that count the policy's entropy, and a policy that is as random as the task allows.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905). With targets Q', discount g and a
tanh-Gaussian policy pi:

    target = r + g (min_e Q'_e(s', a') - alpha log pi(a' | s')), a' ~ pi(s'), r alone after a terminal  -> SAC._target
    critic: mean over the batch, sum over e, of (Q_e(s, a) - target)^2                             -> SAC._critic_loss
    actor:  alpha log pi(a | s) - min_e Q_e(s, a), a ~ pi(s)                                        -> SAC._actor_loss
    alpha:  rises where the entropy is below ``target_entropy``, falls where it is above     -> SAC._temperature_loss

The target entropy is -(action dimensions) by default, as in the paper. Departures: errors are summed over the critics
and not halved; alpha is moved by its logarithm, as in the authors' code. Choices, alone and with numbers beside them:
``sac_discrete.py``, ``sac_mixed.py``. With a memory: ``sac_recurrent.py``.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.actor_critic import ActorCritic, Update
from imitate.algo.algo import Algo, Batch, Info
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.recurrence import ReplayedMemoryConfig
from imitate.algo.rl_sections import (
    ActorCriticConfig,
    ActorNetConfig,
    CriticConfig,
    StagedOptimizerConfig,
    StochasticActorConfig,
    optimizer,
)
from imitate.algo.sections import LayerDims
from imitate.config import Section
from imitate.functional.losses import masked_mean
from imitate.models.heads import TanhDistribution


class SACOptimParams(Section):
    """Optimizers by network."""

    critic: StagedOptimizerConfig = Field(optimizer(3e-4))
    actor: StagedOptimizerConfig = Field(optimizer(3e-4))
    temperature: StagedOptimizerConfig = Field(optimizer(3e-4))


class SACActorConfig(StochasticActorConfig):
    """A tanh-Gaussian policy, with log standard deviations between -20 and 2."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")
    net: ActorNetConfig = Field(
        ActorNetConfig.model_validate(
            {
                "common": {"std_activation": "exp", "use_tanh": True},
                "gaussian": {
                    "init_last_fc_weight": None,
                    "min_std": math.exp(-20.0),
                    "max_std": math.exp(2.0),
                },
            }
        )
    )


class SACCriticConfig(CriticConfig):
    """Critics of 256 by 256."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")


class TemperatureConfig(Section):
    """The weight of the entropy, alpha."""

    initial: float = Field(1.0, gt=0, description="where it begins")
    tuned: bool = Field(True, description="whether it is learned")
    target_entropy: float | None = Field(
        None, description="entropy that it is tuned to; null: -(action dimensions)"
    )
    choice_entropy: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="entropy of choices that it is tuned to, as a share of log(choices)",
    )


class SACConfig(ActorCriticConfig):
    """What the sections of ``sac`` and of those built upon it have."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True}}}

    optim_params: SACOptimParams = Field(SACOptimParams())
    actor: SACActorConfig = Field(SACActorConfig())
    critic: SACCriticConfig = Field(SACCriticConfig())
    temperature: TemperatureConfig = Field(TemperatureConfig())

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        problems = super().conflicts(config)
        net = self.actor.net
        if net.type != "gaussian" or not net.common.use_tanh:
            problems.append(
                f"algo.actor.net: the actor of {config.algo_name} learns through its samples: set type to 'gaussian' "
                "and common.use_tanh to true"
            )
        return problems


class SACOfAnyActionsConfig(SACConfig):
    """Section ``algo`` of algorithm ``sac``."""

    num_choices: int | None = Field(
        None,
        ge=0,
        description="choices of a discrete action; 0: none; null: as the environment says, else none",
    )
    num_continuous: int | None = Field(
        None,
        ge=0,
        description="continuous numbers of an action; null: as the environment says, else none beside choices",
    )
    rnn: ReplayedMemoryConfig = Field(ReplayedMemoryConfig())

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        return [*super().conflicts(config), *self.rnn.problems(config)]


@register_algo_factory_func("sac", section=SACOfAnyActionsConfig)
def algo_config_to_class(algo_config: SACOfAnyActionsConfig) -> tuple[type[Algo], dict[str, Any]]:
    """By the kind of actions, with a memory or without."""
    from imitate.algo import sac_recurrent
    from imitate.algo.sac_discrete import DiscreteSAC
    from imitate.algo.sac_mixed import MixedSAC

    kinds: tuple[type[Algo], type[Algo]] = (SAC, sac_recurrent.RecurrentSAC)
    if algo_config.num_choices and algo_config.num_continuous:
        kinds = (MixedSAC, sac_recurrent.RecurrentMixedSAC)
    elif algo_config.num_choices:
        kinds = (DiscreteSAC, sac_recurrent.RecurrentDiscreteSAC)
    return kinds[algo_config.rnn.enabled], {}


class Temperature(nn.Module):
    """Learned positive numbers, of the shape of ``initial``."""

    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.log = nn.Parameter(initial.log())


class SAC(ActorCritic):
    """Continuous actions."""

    def _create_networks(self) -> None:
        config = self.algo_config
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic, num_choices=self._num_choices),
            }
        )
        self._add_targets()
        self._target_entropy = self._wanted_entropy().to(self.device)
        self._first_alpha = torch.full_like(self._target_entropy, config.temperature.initial)
        if config.temperature.tuned:
            self.nets["temperature"] = Temperature(self._first_alpha)

    @property
    def _num_choices(self) -> int:
        """The critics give a value for each of so many choices; 0: one."""
        return 0

    def _wanted_entropy(self) -> Tensor:
        """Entropies that the temperatures are tuned to, as many as there are temperatures."""
        wanted = self.algo_config.temperature.target_entropy
        return torch.tensor(-float(self.ac_dim) if wanted is None else wanted)

    def _max_grad_norm(self, name: str) -> float | None:
        return None if name == "temperature" else super()._max_grad_norm(name)

    # ---- losses --------------------------------------------------------------------------------------------------

    def _policy(self, obs: Batch, goal: Batch | None) -> TanhDistribution:
        """pi(. | s)."""
        features, _ = self.actor(obs, goal)
        return cast(TanhDistribution, self.actor.head(features))

    def _drawn(self, obs: Batch, goal: Batch | None) -> tuple[Tensor, Tensor]:
        """One action (B, A) of the policy in each state, with gradient, and its log-density (B,)."""
        actions, log_prob = self._policy(obs, goal).draw(1)
        return actions[:, 0], log_prob[:, 0]

    @property
    def _alpha(self) -> Tensor:
        """The weight of the entropy, a constant for the other losses."""
        if "temperature" not in self.nets:
            return self._first_alpha
        return cast(Temperature, self.nets["temperature"]).log.detach().exp()

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """(B,) what the critics are to say."""
        actions, log_prob = self._drawn(batch["next_obs"], batch["goal_obs"])
        values = self._critic("critic_target")(batch["next_obs"], actions, batch["goal_obs"])
        soft = self._ensemble_value(values) - self._alpha * log_prob
        return cast(Tensor, batch["rewards"] + batch["discounts"] * soft)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        values = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions, log_prob = self._drawn(batch["obs"], batch["goal_obs"])
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"])
        liked = self._ensemble_value(values)
        loss = masked_mean(self._alpha * log_prob - liked, batch["weight"])
        entropy = -masked_mean(log_prob.detach(), batch["weight"])
        return loss, {"Actor_Loss": loss, "Entropy": entropy, "Temperature": self._alpha}

    def _temperature_loss(self, info: Info) -> Tensor:
        """From what the actor's loss said."""
        log = cast(Temperature, self.nets["temperature"]).log
        return log * (info["Entropy"] - self._target_entropy)

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Critics, actor, temperature, targets."""
        update.step("critic", self._critic_loss(batch))
        update.step("actor", self._actor_loss(batch))
        if "temperature" in self.nets and update.learns("actor"):
            self._gradient_step("temperature", self._temperature_loss(update.info))
        if update.learns("critic"):
            self._follow()
