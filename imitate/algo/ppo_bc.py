"""PPO that is kept near an imitation policy, with a weight that decays.

Schmitt et al., "Kickstarting Deep Reinforcement Learning" (arXiv:1803.03835), with a schedule as in Rajeswaran et al.,
"Learning Complex Dexterous Manipulation with Deep Reinforcement Learning and Demonstrations", RSS 2018
(arXiv:1709.10087). With the ratio rho = pi(a | s) / pi_old(a | s), generalized advantages A, their returns
R = A + V_old, the frozen imitation policy b and the number n of rollouts before this one:

    L = -E[ min(rho A, clip(rho, 1 - c, 1 + c) A) ]                    -> PPOBC._loss, Policy_Loss
        + value_weight E[ (V(s) - R)^2 ]                               -> Value_Loss
        - entropy_weight E[ H(pi(. | s)) ]                             -> Entropy
        + w d^n E[ |mean of pi(. | s) - b(s)|^2 / 2 ]                  -> PPOBC._imitation_loss
          or, for choices, w d^n E[ -log pi(b(s) | s) ]
        + w_kl d^n E[ H(b(. | s), pi(. | s)) ]                         -> PPOBC.cross_entropy, Imitation_KL

In rollouts, the imitation policy computes actions in the policy's states, and keeps its own memory. Unlike a likelihood
of continuous actions, the distance does not affect the exploration noise. The cross-entropy of Kickstarting does. It is
the divergence KL(b | pi) plus the entropy of b, which is constant. For continuous actions it depends only on the mean
and the variance of b, even if b is a mixture. In this term, b sees only the observations of a step, without a memory.
"""

import math
from typing import ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.base.algo import Batch, Info, PolicyStep
from imitate.algo.base.factory import register
from imitate.algo.base.on_policy import OnPolicy
from imitate.algo.base.on_policy_sections import PPOConfig
from imitate.algo.base.policy_state import InnerState, PolicyState, newest_frame
from imitate.algo.base.rows import CHUNK, num_rows, select_rows
from imitate.algo.slots.density import moments_of
from imitate.algo.slots.frozen import FrozenPolicy, FrozenPolicyConfig
from imitate.config import Section
from imitate.functional.policy_gradient import (
    clipped_surrogate,
    clipped_value_error,
    surrogate_figures,
)
from imitate.models.actor import StochasticPolicy
from imitate.models.categorical import Categorical


class ImitationConfig(Section):
    """Weight of the distance from the imitation policy, and its decay."""

    weight: float = Field(
        1.0,
        ge=0,
        description="weight of the distance from the imitation policy in the first rollout",
    )
    kl_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the divergence from the imitation policy, which also affects the exploration noise; "
        "the imitation policy must have a density (bc with gaussian or gmm)",
    )
    decay: float = Field(
        0.95,
        ge=0,
        le=1,
        description="factor by which both weights shrink from one rollout to the next",
    )


class PPOBCConfig(PPOConfig):
    """Options of algorithm ``ppo_bc``, under ``algo``."""

    supports_memory: ClassVar[bool] = False
    supports_rules: ClassVar[bool] = False

    base: FrozenPolicyConfig = Field(FrozenPolicyConfig())
    imitation: ImitationConfig = Field(ImitationConfig())


@register("ppo_bc", PPOBCConfig)
class PPOBC(OnPolicy[PPOBCConfig]):
    """PPO with an imitation policy."""

    acting_nets = ("base",)

    def _create_networks(self) -> None:
        super()._create_networks()
        self.nets["base"] = FrozenPolicy(
            self.ac_dim,
            self.config.base.checkpoint,
            needs_density=self.config.imitation.kl_weight > 0,
        )
        self.counters["rollouts"] = 0

    @property
    def base(self) -> FrozenPolicy:
        """The imitation policy."""
        return cast(FrozenPolicy, self.nets["base"])

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        base = self.base.initial_state(batch_size)
        return {**super()._initial_policy_state(batch_size), "base": base}

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """Discard the planned actions, including the frozen policy's plan."""
        return self.base.cut_within(super().cut_plan(state))

    @property
    def imitation_decay(self) -> float:
        """Decayed factor of ``weight`` and ``kl_weight`` in the current rollout."""
        return float(self.config.imitation.decay ** max(self.counters["rollouts"] - 1, 0))

    # ---- rollouts ------------------------------------------------------------------------------------------------

    def prepare_rollout(self, rollout: Batch) -> Batch:
        """Prepare a raw rollout, and add the imitation policy's actions ``base_actions`` (B, A)."""
        batch = super().prepare_rollout(rollout)
        self.counters["rollouts"] += 1
        kept = np.flatnonzero(rollout["mask"].reshape(-1))
        base = rollout["base_action"].reshape(-1, self.ac_dim)[kept]
        batch = {**batch, "base_actions": torch.from_numpy(base).to(self.device)}
        return {**batch, **self._moments(batch["obs"])}

    def _moments(self, obs: Batch) -> Batch:
        """Return the mean and variance (B, A) of the imitation policy, if the loss needs them.

        For choices the mean is the probabilities, and the variance is 0.
        """
        if self.config.imitation.kl_weight == 0:
            return {}
        size = num_rows(obs)
        parts = [
            self.base.distribution(select_rows(obs, slice(start, start + CHUNK)), self.preprocess)
            for start in range(0, size, CHUNK)
        ]
        moments = [moments_of(part) for part in parts if part is not None]
        if not moments:
            return {}
        means, variances = zip(*moments, strict=True)
        return {"base_mean": torch.cat(means), "base_variance": torch.cat(variances)}

    def _select_batch(self, batch: Batch) -> Batch:
        """Select a batch with ``base_actions``, which are computed here for windows of a dataset."""
        selected = super()._select_batch(batch)
        base = self.base.act_afresh(selected["obs"], self.preprocess, 1)
        return {**selected, "base_actions": base, **self._moments(selected["obs"])}

    # ---- losses --------------------------------------------------------------------------------------------------

    def _imitation_loss(self, policy: StochasticPolicy, base: Tensor) -> Tensor:
        """Return the mean distance () of the policy from the imitation policy's actions ``base`` (B, A)."""
        if isinstance(policy, Categorical):
            return -policy.log_prob(base).mean()
        return 0.5 * (policy.mean - base).square().sum(-1).mean()

    def cross_entropy(self, policy: StochasticPolicy, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the mean () of -log pi over actions of the imitation policy, given its mean and variance (B, A)."""
        if isinstance(policy, Categorical):
            return -(mean * policy.logits).sum(-1).mean()
        stds = policy.stds
        errors = (variance + (mean - policy.mean).square()) / (2.0 * stds.square())
        return (errors + stds.log() + 0.5 * math.log(2.0 * math.pi)).sum(-1).mean()

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config, weight = self.config, self.config.imitation.weight * self.imitation_decay
        policy, values = self._decide(batch)
        log_ratio = policy.log_prob(batch["actions"]) - batch["log_prob"]
        policy_loss = clipped_surrogate(log_ratio, self._advantages(batch), config.clip).mean()
        errors = clipped_value_error(values, batch["returns"], batch["values"], config.value_clip)
        value_loss, entropy = self._mean_error(errors), policy.entropy().mean()
        distance = self._imitation_loss(policy, batch["base_actions"])
        loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
        loss, more = loss + weight * distance, dict[str, Tensor]()
        if "base_mean" in batch:
            found = self.cross_entropy(policy, batch["base_mean"], batch["base_variance"])
            loss = loss + config.imitation.kl_weight * self.imitation_decay * found
            more["Imitation_KL"] = found
        figures = surrogate_figures(log_ratio, config.clip, batch["values"], batch["returns"])
        return loss, {
            "Loss": loss,
            "Policy_Loss": policy_loss,
            "Value_Loss": value_loss,
            "Entropy": entropy,
            **figures,
            "Imitation_Loss": distance,
            "Imitation_Weight": torch.full((), weight, device=self.device),
            **more,
        }

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
        step = super()._act(obs, state, goal, explore=explore, generator=generator)
        if not explore:
            return step
        newest = newest_frame(obs, self.frame_stack)
        imitated, base = self.base.act(newest, state["base"], self.preprocess, generator)
        extras = {**step.extras, "base_action": imitated}
        return PolicyStep(step.action, {**step.state, "base": base}, extras)
