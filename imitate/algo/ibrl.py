"""Imitation bootstrapped RL: a frozen imitation policy proposes actions, and the critics choose.

Hu, Mirchandani, Sadigh, "Imitation Bootstrapped Reinforcement Learning", RSS 2024 (arXiv:2311.02198). With the
imitation policy b, the learned policy pi, targets Q' and pi':

    acting: b(s) or pi(s) + noise, the one with the larger minimal Q'                     -> IBRL._act
    target = r + g max over a' in {b(s'), clip(pi'(s') + clipped noise)}
                   of min over Z random critics of Q'_e(s', a')                              -> IBRL._target
    soft (``beta``): acting and target draw one of the two actions, with probability in proportion to
            exp(beta min Q'), instead of taking the better one                               -> IBRL._imitates
    critics: mean over the batch, sum over e, of (Q_e(s, a) - target)^2                      -> IBRL._critic_loss
    actor:   -mean over e of Q_e(s, pi(s)), with dropout in the actor                        -> IBRL._actor_loss

Critics are initialized to 0, and at equal values the imitation policy's action is taken, so that the imitation policy
acts alone until the critics have learned something. The published settings for states are the soft choice with beta 10,
which keeps trying both if their values hardly differ, and also draws at test time. Critics have layer normalization, as
published.

Departures: acting uses all critics instead of a few random critics. In updates, an imitation policy with a memory acts
as at the start of an episode, from at most ``train.frame_stack`` observations.
"""

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info, PolicyStep
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState, PolicyState, newest_frame
from imitate.algo.base.rl_sections import (
    ActorCriticConfig,
    CriticConfig,
    CriticEnsembleConfig,
    DelayedActorConfig,
    wants_online,
)
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.exploration import ActionNoiseConfig
from imitate.algo.slots.frozen import FrozenPolicy, FrozenPolicyConfig
from imitate.config import BaseConfig
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.functional.sampling import fill_uniform, smoothed_actions


class IBRLActorConfig(DelayedActorConfig):
    """A deterministic actor with dropout."""

    dropout: float = Field(0.5, ge=0, lt=1, description="dropout after each hidden layer")


class IBRLCriticConfig(CriticConfig):
    """Several critics; a few of them, drawn at random, compute each target."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")
    layer_norm: bool = Field(True, description="layer normalization after each ReLU")
    ensemble: CriticEnsembleConfig = Field(CriticEnsembleConfig(n=5))
    subset: int = Field(
        2,
        ge=1,
        description="number of critics drawn at random for each update; the target uses their smallest value",
    )


class IBRLConfig(ActorCriticConfig):
    """Options of algorithm ``ibrl``, under ``algo``."""

    tree_defaults = {
        "train": {"batch_size": 256, "online": {"enabled": True, "warmup_policy": "policy"}}
    }

    optim_params: Networks = networks("IBRLOptimParams", critic=1e-3, actor=1e-3)
    base: FrozenPolicyConfig = Field(FrozenPolicyConfig())
    beta: float | None = Field(
        None,
        gt=0,
        description="draw one of the two proposed actions with probability in proportion to exp(beta value), 10 in "
        "the paper; null: take the better one",
    )
    actor: IBRLActorConfig = Field(IBRLActorConfig())
    critic: IBRLCriticConfig = Field(IBRLCriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config) + wants_online(config)
        if self.critic.subset > self.critic.ensemble.n:
            problems.append(
                f"algo.critic.subset is {self.critic.subset}, but there are {self.critic.ensemble.n} critics: lower it "
                "or raise algo.critic.ensemble.n"
            )
        return problems


@register("ibrl", IBRLConfig)
class IBRL(ActorCritic[IBRLConfig]):
    """Critics that choose between the actions of a deterministic actor and of an imitation policy."""

    targets = {"critic_target": "critic", "actor_target": "actor"}
    acting_nets = ("critic_target", "base")

    def _create_networks(self) -> None:
        self.counters["critic_updates"] = 0
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(self.config.actor),
                "critic": self._create_critic(self.config.critic),
            }
        )
        self._add_targets()
        for name in ("critic", "critic_target"):
            head = self._critic(name).head
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.nets["base"] = FrozenPolicy(self.ac_dim, self.config.base.checkpoint)

    @property
    def base(self) -> FrozenPolicy:
        """The imitation policy."""
        return cast(FrozenPolicy, self.nets["base"])

    def _proposals_values(
        self, obs: Batch, goal: Batch | None, imitated: Tensor, learned: Tensor
    ) -> Tensor:
        """Return Q' (E, B, 2) of the proposals of the imitation policy and the actor, (B, A) each."""
        proposals = torch.stack([imitated, learned], dim=1)
        return cast(Tensor, self._critic("critic_target")(obs, proposals, goal))

    def _imitates(self, least: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return true (B,) if the imitation policy's proposal is chosen, from the values (B, 2) of both."""
        imitated, learned = least.unbind(-1)
        if self.config.beta is None:
            return imitated >= learned
        share = torch.sigmoid(self.config.beta * (imitated - learned))
        return (fill_uniform(torch.empty_like(share), generator) < share) | (imitated == learned)

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the TD target (B,), and true (B,) if it uses the imitation policy's proposal."""
        obs = batch["next_obs"]
        imitated = self.base.act_afresh(obs, self.preprocess, self.frame_stack)
        noise = self.config.actor
        learned = smoothed_actions(self._target_actions(batch), noise.noise_std, noise.noise_clip)
        values = self._proposals_values(obs, batch["goal_obs"], imitated, learned)
        drawn = torch.randperm(len(values), device=values.device)[: self.config.critic.subset]
        least = values[drawn].amin(0)
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

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the critics; every ``actor.update_freq`` updates also the actor and the target networks."""
        update.step("critic", self._critic_loss(batch))
        if update.turn("critic_updates", self.config.actor.update_freq):
            update.step("actor", self._actor_loss(batch))
            if update.learn:
                self._follow()

    # ---- test time -----------------------------------------------------------------------------------------------

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        base = self.base.initial_state(batch_size)
        return {**super()._initial_policy_state(batch_size), "base": base}

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """Discard the planned actions, including the frozen policy's plan."""
        return self.base.cut_within(super().cut_plan(state))

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        newest = newest_frame(obs, self.frame_stack)
        imitated, base = self.base.act(newest, state["base"], self.preprocess, generator)
        own = super()._act(obs, state, goal, explore=explore, generator=generator)
        least = self._proposals_values(obs, goal, imitated, own.action).amin(0)
        imitates = self._imitates(least, generator).unsqueeze(-1)
        action = torch.where(imitates, imitated, own.action)
        return PolicyStep(action, {"noise": own.state["noise"], "base": base}, {})
