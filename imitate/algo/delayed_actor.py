"""What TD3 brought: an actor that follows more slowly than its critics, and smoothed target actions. No losses.

Fujimoto, van Hoof, Meger, "Addressing Function Approximation Error in Actor-Critic Methods", ICML 2018
(arXiv:1802.09477). With the target actor pi':

    a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)                           -> DelayedActor._target_actions
    in practice a = clip(pi(s) + noise, -1, 1)                               -> DelayedActor._act

The actor and all targets follow every ``actor.update_freq``-th update of the critics, whose number is saved, so that a
resumed training goes on exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.actor_critic import ActorCritic
from imitate.algo.algo import Batch, Info, PolicyState, PolicyStep
from imitate.algo.exploration import next_noise
from imitate.algo.rl_sections import ActorConfig
from imitate.algo.sections import LayerDims
from imitate.models.actor import Actor


class DelayedActorConfig(ActorConfig):
    """A deterministic actor, and the noise of target actions."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")
    update_freq: int = Field(
        2, ge=1, description="the actor and all targets follow every so many updates of the critics"
    )
    noise_std: float = Field(0.2, ge=0, description="noise of target actions, normalized units")
    noise_clip: float = Field(0.5, ge=0, description="bound of that noise")


class DelayedActor(ActorCritic):
    """Deterministic actor with a delay, critics with smoothed targets; a subclass has the losses."""

    targets = {"critic_target": "critic", "actor_target": "actor"}

    def _create_networks(self) -> None:
        config = self.algo_config
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic),
            }
        )
        self._add_targets()
        self._critic_updates = 0

    @torch.no_grad()
    def _target_actions(self, batch: Batch) -> Tensor:
        """What the target actor would do in the next states, with clipped noise."""
        config = self.algo_config.actor
        target = cast(Actor, self.nets["actor_target"])
        features, _ = target(batch["next_obs"], batch["goal_obs"])
        actions = target.head(features).mean
        noise = torch.randn_like(actions) * config.noise_std
        noise = noise.clamp(-config.noise_clip, config.noise_clip)
        smoothed: Tensor = (actions + noise).clamp(-1.0, 1.0)
        return smoothed

    @abstractmethod
    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Loss of the critics. Changes nothing."""

    @abstractmethod
    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Loss of the actor. Changes nothing."""

    def _update(self, batch: Batch, epoch: int, learn: bool) -> Info:
        """Critics; every few updates the actor and the targets."""
        info = self._step("critic", self._critic_loss(batch), epoch, learn)
        self._critic_updates += learn
        if learn and self._critic_updates % self.algo_config.actor.update_freq:
            return info
        info |= self._step("actor", self._actor_loss(batch), epoch, learn)
        if learn:
            self._follow()
        return info

    # ---- test time -----------------------------------------------------------------------------------------------

    def _initial_policy_state(self, batch_size: int) -> PolicyState:
        return {"noise": torch.zeros(batch_size, self.ac_dim, device=self.device)}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        features, _ = self.actor(obs, goal)
        action = self.actor.head.act(features)
        if not explore:
            return PolicyStep(action, state, {})
        noise = next_noise(state["noise"], self.algo_config.exploration, generator)
        return PolicyStep((action + noise).clamp(-1.0, 1.0), {"noise": noise}, {})

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """With the number of updates, on which the actor's turn depends."""
        return {**super().serialize(), "critic_updates": self._critic_updates}

    def deserialize(self, model_dict: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """As in the base class."""
        super().deserialize(model_dict, load_optimizers)
        if load_optimizers:
            self._critic_updates = int(model_dict["critic_updates"])
