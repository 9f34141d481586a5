"""Deep Q-learning with double targets, for discrete actions.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt, Guez, Silver, "Deep
Reinforcement Learning with Double Q-learning" (arXiv:1509.06461). With targets Q' and the discount g:

    target = r + g Q'(s', a*), a* = argmax_a Q(s', a) [double] or argmax_a Q'(s', a), r after a terminal  -> DQN._target
    L = E[ huber(target - Q(s, a)) ]                                                                     -> DQN._loss

In practice a random action is taken with probability epsilon, which falls linearly. Targets are copied every
``target_update_freq`` updates where ``target_tau`` is 1, or follow slowly where it is less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.actor_critic import ActorCritic
from imitate.algo.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.policy_state import PolicyState
from imitate.algo.rl_sections import ActorCriticConfig, StagedOptimizerConfig, optimizer
from imitate.algo.sections import LayerDims
from imitate.config import Section
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.categorical import one_hot
from imitate.models.mlp import MLP, FullPrecisionLinear


class DQNOptimParams(Section):
    """The optimizer."""

    critic: StagedOptimizerConfig = Field(optimizer(1e-4))


class DQNCriticConfig(Section):
    """The network of values."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")
    use_huber: bool = Field(True, description="smooth L1 rather than squared error")
    max_gradient_norm: float | None = Field(
        10.0, gt=0, description="gradients are scaled down to this norm; null: train.max_grad_norm"
    )


class EpsilonConfig(Section):
    """How often actions are random in practice."""

    start: float = Field(1.0, ge=0, le=1, description="at the start")
    end: float = Field(0.05, ge=0, le=1, description="at last")
    part: float = Field(0.1, gt=0, le=1, description="part of the training in which it falls")


class DQNConfig(ActorCriticConfig):
    """Section ``algo`` of algorithm ``dqn``."""

    tree_defaults = {"train": {"batch_size": 64, "online": {"enabled": True}}}

    optim_params: DQNOptimParams = Field(DQNOptimParams())
    num_choices: int | None = Field(
        None, ge=0, description="choices of an action; null: as the environment says"
    )
    critic: DQNCriticConfig = Field(DQNCriticConfig())
    double: bool = Field(True, description="the network, not its target, chooses the next action")
    epsilon: EpsilonConfig = Field(EpsilonConfig())
    target_tau: float = Field(1.0, gt=0, le=1, description="targets move this fraction at a time")
    target_update_freq: int = Field(1000, ge=1, description="updates between two moves of targets")

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        problems = super().conflicts(config)
        if self.num_choices == 0:
            problems.append(
                "algo.num_choices is 0, but dqn chooses among discrete actions: take sac or td3"
            )
        return problems


@register_algo_factory_func("dqn", section=DQNConfig)
def algo_config_to_class(algo_config: DQNConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return DQN, {}


class ChoiceValues(nn.Module):
    """The value of each choice."""

    def __init__(self, encoder: GroupEncoder, layer_dims: LayerDims, num_choices: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(encoder.output_dim, layer_dims)
        self.head = FullPrecisionLinear(self.mlp.output_dim, num_choices)

    def forward(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """(B, A)."""
        values: Tensor = self.head(self.mlp(self.encoder(obs, goal)))
        return values


class DQN(ActorCritic):
    """Values of choices; the best one is taken."""

    main_net = "critic"

    def _create_networks(self) -> None:
        self.nets = nn.ModuleDict(
            {
                "critic": ChoiceValues(
                    self._create_encoder(), self.algo_config.critic.layer_dims, self.ac_dim
                )
            }
        )
        self._add_targets()
        self._updates = 0
        self._epsilon = self.algo_config.epsilon.start

    def set_progress(self, progress: float) -> None:
        """Epsilon falls."""
        epsilon = self.algo_config.epsilon
        done = min(progress / epsilon.part, 1.0)
        self._epsilon = epsilon.start + done * (epsilon.end - epsilon.start)

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """(B,) what the network is to say."""
        after = self.nets["critic_target"](batch["next_obs"], batch["goal_obs"])
        chooser = (
            self.nets["critic"](batch["next_obs"], batch["goal_obs"])
            if self.algo_config.double
            else after
        )
        best = after.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)
        return cast(Tensor, batch["rewards"] + batch["discounts"] * best)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        values = (self.nets["critic"](batch["obs"], batch["goal_obs"]) * batch["actions"]).sum(-1)
        loss = self._td_loss(values.unsqueeze(0), target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def _update(self, batch: Batch, epoch: int, learn: bool) -> Info:
        """Values, now and then targets."""
        info = self._step("critic", self._critic_loss(batch), epoch, learn)
        self._updates += learn
        if learn and self._updates % self.algo_config.target_update_freq == 0:
            self._follow()
        return info

    def _validation_info(self, batch: Batch) -> Info:
        """How often the best choice is another than the data's."""
        best = self.nets["critic"](batch["obs"], batch["goal_obs"]).argmax(-1)
        return {"Action_Error": (best != batch["actions"].argmax(-1)).float().mean()}

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """With the number of updates, on which the targets' turn depends."""
        return {**super().serialize(), "updates": self._updates}

    def deserialize(self, model_dict: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """As in the base class."""
        super().deserialize(model_dict, load_optimizers)
        if load_optimizers:
            self._updates = int(model_dict["updates"])

    # ---- test time -----------------------------------------------------------------------------------------------

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        values = self.active_nets["critic"](obs, goal)
        choice = values.argmax(-1)
        if explore:
            draws = torch.rand(2, len(choice), generator=generator, device=self.device)
            other = (draws[1] * self.ac_dim).long().clamp(max=self.ac_dim - 1)
            choice = torch.where(draws[0] < self._epsilon, other, choice)
        return PolicyStep(one_hot(choice, values), state, {})
