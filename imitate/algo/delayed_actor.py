"""What TD3 brought: an actor that follows more slowly than its critics, and smoothed target actions. No losses.

Fujimoto, van Hoof, Meger, "Addressing Function Approximation Error in Actor-Critic Methods", ICML 2018
(arXiv:1802.09477). With the target actor pi':

    a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)                           -> DelayedActor._target_actions

The actor and all targets follow every ``actor.update_freq``-th update of the critics, whose number is saved, so that a
resumed training goes on exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.algo import Batch, Info
from imitate.algo.deterministic_actor import DeterministicActor
from imitate.algo.rl_sections import ActorConfig
from imitate.algo.sections import LayerDims


class DelayedActorConfig(ActorConfig):
    """A deterministic actor, and the noise of target actions."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")
    update_freq: int = Field(
        2, ge=1, description="the actor and all targets follow every so many updates of the critics"
    )
    noise_std: float = Field(0.2, ge=0, description="noise of target actions, normalized units")
    noise_clip: float = Field(0.5, ge=0, description="bound of that noise")


class DelayedActor(DeterministicActor):
    """Deterministic actor with a delay, critics with smoothed targets; a subclass has the losses."""

    def _create_networks(self) -> None:
        super()._create_networks()
        self._critic_updates = 0

    @torch.no_grad()
    def _target_actions(self, batch: Batch) -> Tensor:
        """What the target actor would do in the next states, with clipped noise."""
        config = self.algo_config.actor
        actions = super()._target_actions(batch)
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

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """With the number of updates, on which the actor's turn depends."""
        return {**super().serialize(), "critic_updates": self._critic_updates}

    def deserialize(self, model_dict: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """As in the base class."""
        super().deserialize(model_dict, load_optimizers)
        if load_optimizers:
            self._critic_updates = int(model_dict["critic_updates"])
