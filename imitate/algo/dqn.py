"""Deep Q-learning with double targets, for discrete actions.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt, Guez, Silver, "Deep
Reinforcement Learning with Double Q-learning" (arXiv:1509.06461). With targets Q' and the discount g:

    target = r + g Q'(s', a*), a* = argmax_a Q(s', a) [double] or argmax_a Q'(s', a), r after a terminal  -> DQN._target
    L = E[ huber(target - Q(s, a)) ]                                                              -> DQN._critic_loss

With ``critic.num_quantiles`` above 1 the network predicts that number of quantiles of each choice's return; Q is their
mean, and target and loss use the quantiles (Dabney, Rowland, Bellemare, Munos, "Distributional Reinforcement Learning
with Quantile Regression", AAAI 2018, arXiv:1710.10044).

With named rewards, Q is the weighted sum of one value per reward.

If choices are masked, best and random choices are taken only from the allowed choices.

Rollouts take a random action with probability epsilon, which has a schedule. Every ``target_update_freq`` updates, the
target network is copied from the online network if ``target_tau`` is 1, else it moves by the fraction ``target_tau``
towards it.
"""

import math
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info, PolicyStep
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.rl_sections import ActorCriticConfig
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.reward_weights import NETWORK as REWARD_WEIGHTS
from imitate.algo.slots.reward_weights import num_values
from imitate.config import BaseConfig, Section
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean, quantile_regression_loss
from imitate.functional.sampling import fill_uniform
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.categorical import masked, one_hot, uniform_choice
from imitate.models.mlp import MLP, FullPrecisionLinear


class DQNCriticConfig(Section):
    """Network that predicts the value of each choice, and its loss."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")
    num_quantiles: int = Field(
        1,
        ge=1,
        description="number of quantiles of each choice's return, 200 in the paper; 1: predict the mean",
    )
    use_huber: bool = Field(
        True,
        description="use the smooth L1 error instead of the squared error, or with quantiles "
        "instead of the absolute error",
    )
    max_gradient_norm: float | None = Field(
        10.0, gt=0, description="gradients are scaled down to this norm; null: train.max_grad_norm"
    )


class DQNConfig(ActorCriticConfig):
    """Options of algorithm ``dqn``, under ``algo``."""

    value_per_reward = True
    tree_defaults = {
        "train": {"batch_size": 64, "online": {"enabled": True}},
        "algo": {"epsilon": {"schedule": [[0, 1.0], [0.1, 0.05]]}},
    }

    optim_params: Networks = networks("DQNOptimParams", "The optimizer.", critic=1e-4)
    num_choices: int | None = Field(
        None, ge=0, description="number of discrete actions; null: as in the environment"
    )
    critic: DQNCriticConfig = Field(DQNCriticConfig())
    double: bool = Field(
        True,
        description="choose the next action in targets by the online network; false: by the target network",
    )
    epsilon: float = Field(
        0.05,
        ge=0,
        le=1,
        description="probability of a random action in rollouts; by default, a schedule from 1 to 0.05 in the first "
        "tenth of the training",
    )
    target_tau: float = Field(
        1.0, gt=0, le=1, description="Polyak rate of the target network; 1: copy the online network"
    )
    target_update_freq: int = Field(
        1000, ge=1, description="number of updates between two updates of the target"
    )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        if self.num_choices == 0:
            problems.append(
                "dqn chooses among discrete actions, but the actions are continuous (algo.num_choices is 0): take sac "
                "or td3, as in --config sac/sac_pendulum"
            )
        return problems


class ChoiceValues(nn.Module):
    """Network that predicts quantiles of each choice's return; with named rewards, of V returns per choice."""

    def __init__(
        self, encoder: GroupEncoder, config: DQNCriticConfig, num_choices: int, num_values: int = 0
    ) -> None:
        super().__init__()
        self._shape = (num_choices, config.num_quantiles, *([num_values] if num_values else []))
        self.encoder = encoder
        self.mlp = MLP(encoder.output_dim, config.layer_dims)
        self.head = FullPrecisionLinear(self.mlp.output_dim, math.prod(self._shape))

    def forward(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Return values (B, A) or (B, A, V), the means of the quantiles."""
        return self.quantiles(obs, goal).mean(2)

    def quantiles(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Return quantiles (B, A, N) or (B, A, N, V)."""
        said: Tensor = self.head(self.mlp(self.encoder(obs, goal)))
        return said.reshape(len(said), *self._shape)


@register("dqn", DQNConfig)
class DQN(ActorCritic[DQNConfig]):
    """Deep Q-learning: values of discrete choices, of which the most valuable is executed."""

    main_net = "critic"

    def _create_networks(self) -> None:
        values = num_values(self.config)
        critic = ChoiceValues(self._create_encoder(), self.config.critic, self.ac_dim, values)
        if values:
            self.acting_nets = (*self.acting_nets, REWARD_WEIGHTS)
        self.nets = nn.ModuleDict({"critic": critic})
        self._add_targets()
        self.counters["updates"] = 0

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Return the TD target (B, N) of each quantile, without gradient; (B, N, V) with named rewards."""
        after = self._values("critic_target").quantiles(batch["next_obs"], batch["goal_obs"])
        chooser = (
            self.nets["critic"](batch["next_obs"], batch["goal_obs"])
            if self.config.double
            else after.mean(2)
        )
        chosen = self.action_mask.scores(self._total(chooser), batch["next_obs"]).argmax(-1)
        best = after[torch.arange(len(after), device=after.device), chosen]
        target: Tensor = batch["rewards"].unsqueeze(1) + batch["discounts"].unsqueeze(1) * best
        return target

    def _values(self, name: str) -> ChoiceValues:
        return cast(ChoiceValues, self.nets[name])

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        quantiles = self._values("critic").quantiles(batch["obs"], batch["goal_obs"])
        choice = batch["actions"].reshape(*quantiles.shape[:2], *[1] * (quantiles.dim() - 2))
        chosen = (quantiles * choice).sum(1)
        values, wanted, weight = chosen.mean(1), target.mean(1), batch["weight"]
        if chosen.shape[1] == 1:
            loss = self._td_loss(chosen.transpose(0, 1), target[:, 0], weight)
        else:
            many, huber = self.value_weights is not None, self.config.critic.use_huber
            each, samples = (x.transpose(1, 2) if many else x for x in (chosen, target))
            errors = quantile_regression_loss(each, samples, huber=huber)
            loss = masked_mean(errors.sum(-1) if many else errors, weight)
            if self.keeps_errors:
                self.sample_errors = self._distance((values.detach() - wanted).abs())
        info = {"Q": self._total(values).mean(), "Q_Targets": self._total(wanted).mean()}
        return loss, {"Critic_Loss": loss, **info}

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the values; every ``target_update_freq`` updates also the target."""
        update.step("critic", self._critic_loss(batch))
        if update.turn("updates", self.config.target_update_freq) and update.learn:
            self._follow()

    def _validation_info(self, batch: Batch) -> Info:
        """Return the fraction of states in which the most valuable choice differs from the data's choice."""
        values = self._total(self.nets["critic"](batch["obs"], batch["goal_obs"]))
        best = self.action_mask.scores(values, batch["obs"]).argmax(-1)
        return {"Action_Error": (best != batch["actions"].argmax(-1)).float().mean()}

    # ---- test time -----------------------------------------------------------------------------------------------

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        values = self._total(self.active_nets["critic"](obs, goal))
        mask = self.action_mask.to_act(obs)
        choice = masked(values, mask).argmax(-1)
        if explore:
            chance = fill_uniform(torch.empty(choice.shape, device=self.device), generator)
            drawn = fill_uniform(torch.empty_like(chance), generator)
            other = uniform_choice(drawn, mask, self.ac_dim)
            choice = torch.where(chance < self.config.epsilon, other, choice)
        return PolicyStep(one_hot(choice, values), state, {})
