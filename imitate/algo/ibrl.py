"""Imitation bootstrapped reinforcement learning: a frozen imitation policy proposes, and the critics choose.

Hu, Mirchandani, Sadigh, "Imitation Bootstrapped Reinforcement Learning", RSS 2024 (arXiv:2311.02198). With the
imitation policy b, the learned one pi, targets Q' and pi':

    acting:  of b(s) and pi(s) + noise the one whose least Q' is greater                     -> IBRL._act
    target = r + g max over a' in {b(s'), clip(pi'(s') + clipped noise)}
                   of min over Z random critics of Q'_e(s', a')                              -> IBRL._target
    soft (``beta``): both instead draw one of the two, with probability in proportion to
             exp(beta least Q')                                                              -> IBRL._imitates
    critics: mean over the batch, sum over e, of (Q_e(s, a) - target)^2                      -> IBRL._critic_loss
    actor:   -mean over e of Q_e(s, pi(s)), with dropout in the actor                        -> IBRL._actor_loss

Critics begin at 0 and ties go to the imitation policy, so that it acts alone until something has been learned. The
published settings for states are the soft choice with beta 10, which goes on trying both where their values hardly
differ, and draws at test time too; as published, critics have layer normalization.

Departures: acting asks all critics, not a random few. In updates an imitation policy with a memory decides as at an
episode's start, from no more than ``train.frame_stack`` observations.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.delayed_actor import DelayedActorConfig
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.frozen import FrozenPolicy, FrozenPolicyConfig, UponFrozenPolicy
from imitate.algo.policy_state import PolicyState
from imitate.algo.rl_sections import EnsembleConfig, wants_practice
from imitate.algo.td3 import TD3, TD3Config, TD3CriticConfig
from imitate.functional.losses import masked_mean


class IBRLActorConfig(DelayedActorConfig):
    """A deterministic actor with dropout."""

    dropout: float = Field(0.5, ge=0, lt=1, description="dropout after each hidden layer")


class IBRLCriticConfig(TD3CriticConfig):
    """Several critics, of which few are asked at a time."""

    layer_norm: bool = Field(True, description="layer normalization after each ReLU")
    ensemble: EnsembleConfig = Field(EnsembleConfig(n=5))
    subset: int = Field(
        2, ge=1, description="critics, drawn anew for each update, of which targets are the least"
    )


class IBRLConfig(TD3Config):
    """Section ``algo`` of algorithm ``ibrl``."""

    tree_defaults = {
        "train": {"batch_size": 256, "online": {"enabled": True, "warmup_policy": "policy"}}
    }

    base: FrozenPolicyConfig = Field(FrozenPolicyConfig())
    beta: float | None = Field(
        None,
        gt=0,
        description="proposals are drawn in proportion to exp(beta value), published with 10; null: the better one",
    )
    actor: IBRLActorConfig = Field(IBRLActorConfig())
    critic: IBRLCriticConfig = Field(IBRLCriticConfig())

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        problems = super().conflicts(config) + wants_practice(config)
        if self.critic.subset > self.critic.ensemble.n:
            problems.append(
                f"algo.critic.subset is {self.critic.subset}, but there are {self.critic.ensemble.n} critics: lower it "
                "or raise algo.critic.ensemble.n"
            )
        return problems


@register_algo_factory_func("ibrl", section=IBRLConfig)
def algo_config_to_class(algo_config: IBRLConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return IBRL, {}


class IBRL(UponFrozenPolicy, TD3):
    """TD3 whose critics choose between its actor and an imitation policy."""

    acting_nets = ("critic_target", "base")

    def _create_networks(self) -> None:
        super()._create_networks()
        for name in ("critic", "critic_target"):
            head = self._critic(name).head
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.nets["base"] = FrozenPolicy(self.ac_dim)

    def _proposals_values(
        self, obs: Batch, goal: Batch | None, imitated: Tensor, learned: Tensor
    ) -> Tensor:
        """Q' (E, B, 2) of what the imitation policy and the actor propose, (B, A) each."""
        proposals = torch.stack([imitated, learned], dim=1)
        return cast(Tensor, self._critic("critic_target")(obs, proposals, goal))

    def _imitates(self, least: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B,) whether the imitation policy's proposal is taken, from the values (B, 2) of both."""
        imitated, learned = least.unbind(-1)
        if self.algo_config.beta is None:
            return imitated >= learned
        share = torch.sigmoid(self.algo_config.beta * (imitated - learned))
        return (torch.empty_like(share).uniform_(generator=generator) < share) | (
            imitated == learned
        )

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B,) what the critics are to say, and (B,) whether it is for the imitation policy's proposal."""
        obs = batch["next_obs"]
        imitated = self.base.act_afresh(obs, self.preprocess, self.frame_stack)
        learned = self._target_actions(batch)
        values = self._proposals_values(obs, batch["goal_obs"], imitated, learned)
        asked = torch.randperm(len(values), device=values.device)[: self.algo_config.critic.subset]
        least = values[asked].amin(0)
        imitates = self._imitates(least)
        following = torch.where(imitates, least[:, 0], least[:, 1])
        return batch["rewards"] + batch["discounts"] * following, imitates

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target, imitates = self._target(batch)
        values = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {
            "Critic_Loss": loss,
            "Q": values.mean(),
            "Q_Targets": target.mean(),
            "Imitation_Share": imitates.float().mean(),
        }

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions = self._policy_actions(batch)
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"]).mean(0)
        loss = -masked_mean(values, batch["weight"])
        return loss, {"Actor_Loss": loss}

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
        imitated, base = self._base_step(obs, state, generator)
        own = super()._act(obs, state, goal, explore=explore, generator=generator)
        least = self._proposals_values(obs, goal, imitated, own.action).amin(0)
        imitates = self._imitates(least, generator).unsqueeze(-1)
        action = torch.where(imitates, imitated, own.action)
        return PolicyStep(action, {"noise": own.state["noise"], "base": base}, {})
