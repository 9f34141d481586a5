"""PPO that is held near an imitation policy, ever more loosely.

Schmitt et al., "Kickstarting Deep Reinforcement Learning" (arXiv:1803.03835), with a schedule as in Rajeswaran et al.,
"Learning Complex Dexterous Manipulation with Deep Reinforcement Learning and Demonstrations", RSS 2018
(arXiv:1709.10087). To the loss of :mod:`imitate.algo.ppo` is added, with the frozen imitation policy b and the number n
of rollouts before this one:

    w d^n E[ |mean of pi(. | s) - b(s)|^2 / 2 ], or -log pi(b(s) | s) for choices            -> PPOBC._imitation_loss

The imitation policy acts beside the policy in its rollouts, in the policy's own states, with a memory of its own.
Unlike a likelihood of continuous actions, the distance leaves the noise of exploration alone.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.frozen import FrozenPolicy, FrozenPolicyConfig
from imitate.algo.policy_state import PolicyState, newest_frame
from imitate.algo.ppo import PPO, PPOConfig
from imitate.config import Section
from imitate.models.categorical import Categorical


class ImitationConfig(Section):
    """How near the policy is held."""

    weight: float = Field(
        1.0,
        ge=0,
        description="weight of the distance from the imitation policy in the first rollout",
    )
    decay: float = Field(
        0.95, ge=0, le=1, description="from rollout to rollout the weight is multiplied by this"
    )


class PPOBCConfig(PPOConfig):
    """Section ``algo`` of algorithm ``ppo_bc``."""

    may_remember: ClassVar[bool] = False

    base: FrozenPolicyConfig = Field(FrozenPolicyConfig())
    imitation: ImitationConfig = Field(ImitationConfig())


@register_algo_factory_func("ppo_bc", section=PPOBCConfig)
def algo_config_to_class(algo_config: PPOBCConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return PPOBC, {}


class PPOBC(PPO):
    """PPO beside an imitation policy."""

    acting_nets = ("base",)

    def _create_networks(self) -> None:
        super()._create_networks()
        self.nets["base"] = FrozenPolicy(self.ac_dim)
        self.counters["rollouts"] = 0

    @property
    def base(self) -> FrozenPolicy:
        """The imitation policy."""
        return cast(FrozenPolicy, self.nets["base"])

    def _initial_policy_state(self, batch_size: int) -> PolicyState:
        base = self.base.initial_state(batch_size)
        return {**super()._initial_policy_state(batch_size), "base": base}

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """As in the base class, and the frozen policy's plan."""
        return self.base.cut_within(super().cut_plan(state))

    @property
    def imitation_weight(self) -> float:
        """How much the distance counts in the present rollout."""
        config = self.algo_config.imitation
        return float(config.weight * config.decay ** max(self.counters["rollouts"] - 1, 0))

    # ---- rollouts ------------------------------------------------------------------------------------------------

    def prepare_rollout(self, rollout: Batch) -> Batch:
        """See the base class; with ``base_actions`` (B, A)."""
        batch = super().prepare_rollout(rollout)
        self.counters["rollouts"] += 1
        kept = np.flatnonzero(rollout["mask"].reshape(-1))
        base = rollout["base_action"].reshape(-1, self.ac_dim)[kept]
        return {**batch, "base_actions": torch.from_numpy(base).to(self.device)}

    def _select_batch(self, batch: Batch) -> Batch:
        """Of a dataset's windows; the imitation policy is asked about them afresh."""
        selected = super()._select_batch(batch)
        base = self.base.act_afresh(selected["obs"], self.preprocess, 1)
        return {**selected, "base_actions": base}

    # ---- losses --------------------------------------------------------------------------------------------------

    def _imitation_loss(self, batch: Batch) -> Tensor:
        """Mean distance from the imitation policy's actions."""
        policy = self.net.actor(batch["obs"])
        base = batch["base_actions"]
        if isinstance(policy, Categorical):
            return -policy.log_prob(base).mean()
        distance: Tensor = 0.5 * (policy.mean - base).square().sum(-1).mean()
        return distance

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        loss, info = super()._loss(batch)
        distance, weight = self._imitation_loss(batch), self.imitation_weight
        loss = loss + weight * distance
        weighed = torch.full((), weight, device=self.device)
        return loss, {
            **info,
            "Loss": loss,
            "Imitation_Loss": distance,
            "Imitation_Weight": weighed,
        }

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
        step = super()._act(obs, state, goal, explore=explore, generator=generator)
        if not explore:
            return step
        newest = newest_frame(obs, self.frame_stack)
        imitated, base = self.base.act(newest, state["base"], self.preprocess, generator)
        extras = {**step.extras, "base_action": imitated}
        return PolicyStep(step.action, {**step.state, "base": base}, extras)
