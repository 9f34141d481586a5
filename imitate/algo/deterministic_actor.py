"""A deterministic actor beside critics, with targets of both, that practises with noise. No losses.

in practice a = clip(pi(s) + noise, -1, 1)                               -> DeterministicActor._act
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from imitate.algo.actor_critic import ActorCritic
from imitate.algo.algo import Batch, PolicyStep
from imitate.algo.exploration import next_noise
from imitate.algo.policy_state import PolicyState
from imitate.models.actor import Actor


class DeterministicActor(ActorCritic):
    """Networks and acting; a subclass has the losses. Its section has ``actor``, ``critic`` and ``exploration``."""

    targets = {"critic_target": "critic", "actor_target": "actor"}
    _progress = 0.0

    def set_progress(self, progress: float) -> None:
        """Noise falls."""
        self._progress = progress

    def _create_networks(self) -> None:
        config = self.algo_config
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic),
            }
        )
        self._add_targets()

    @torch.no_grad()
    def _target_actions(self, batch: Batch) -> Tensor:
        """What the target actor would do in the next states, (B, A)."""
        target = cast(Actor, self.nets["actor_target"])
        features, _ = target(batch["next_obs"], batch["goal_obs"])
        return cast(Tensor, target.head(features).mean)

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
        exploration = self.algo_config.exploration
        noise = next_noise(state["noise"], exploration, self._progress, generator)
        return PolicyStep((action + noise).clamp(-1.0, 1.0), {"noise": noise}, {})
