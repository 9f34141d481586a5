"""Proximal policy optimization: several passes over each rollout, held near the policy that collected it.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv:1707.06347). With the ratio
rho = pi(a | s) / pi_old(a | s), generalized advantages A and their returns R = A + V_old:

    L = -E[ min(rho A, clip(rho, 1 - c, 1 + c) A) ]                    -> PPO._loss, Policy_Loss
        + value_weight E[ (V(s) - R)^2 ]                               -> Value_Loss
        - entropy_weight E[ H(pi(. | s)) ]                             -> Entropy

Values and advantages are worked out once per rollout, from the value before its first update. Advantages are
normalized per minibatch; values are clipped only if asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.algo import Algo, Batch, Info
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.on_policy import OnPolicy, OnPolicyConfig
from imitate.algo.recurrent_rollouts import RecurrentOnPolicy


class PPOConfig(OnPolicyConfig):
    """Section ``algo`` of algorithm ``ppo``."""

    tree_defaults = {
        "train": {
            "batch_size": 64,
            "max_grad_norm": 0.5,
            "online": {"enabled": True, "collect_steps": 2048, "warmup_steps": 0},
        }
    }

    rollout_epochs: int = Field(10, ge=1, description="passes over each rollout")
    clip: float = Field(0.2, gt=0, description="how far probability ratios count, 1 +- clip")
    value_clip: float | None = Field(
        None, gt=0, description="values count as no further than this from those before; null: any"
    )
    target_kl: float | None = Field(
        None,
        gt=0,
        description="leave a rollout when the policy is this far from the one that collected it",
    )


@register_algo_factory_func("ppo", section=PPOConfig)
def algo_config_to_class(algo_config: PPOConfig) -> tuple[type[Algo], dict[str, Any]]:
    """With a memory or without."""
    return (RecurrentPPO if algo_config.rnn.enabled else PPO), {}


class PPO(OnPolicy):
    """Clipped ratios."""

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config = self.algo_config
        policy, values = self._decide(batch)
        advantages = self._advantages(batch)
        log_ratio = policy.log_prob(batch["actions"]) - batch["log_prob"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
        policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        value_loss = self._value_errors(values, batch).mean()
        entropy = policy.entropy().mean()
        loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
        with torch.no_grad():
            # Schulman's estimate of the divergence, which is never negative.
            divergence = (ratio - 1.0 - log_ratio).mean()
            clip_fraction = ((ratio - 1.0).abs() > config.clip).float().mean()
        return loss, {
            "Loss": loss,
            "Policy_Loss": policy_loss,
            "Value_Loss": value_loss,
            "Entropy": entropy,
            "KL": divergence,
            "Clip_Fraction": clip_fraction,
        }

    def _value_errors(self, values: Tensor, batch: Batch) -> Tensor:
        """(B,) squared errors; with ``value_clip`` the larger one of the value and of the clipped value."""
        errors: Tensor = (values - batch["returns"]).square()
        limit = self.algo_config.value_clip
        if limit is None:
            return errors
        moved = batch["values"] + (values - batch["values"]).clamp(-limit, limit)
        return torch.maximum(errors, (moved - batch["returns"]).square())

    def leaves_rollout(self, info: Info) -> bool:
        """Whether the policy has moved far enough."""
        target = self.algo_config.target_kl
        return target is not None and float(info["KL"]) > 1.5 * target


class RecurrentPPO(PPO, RecurrentOnPolicy):
    """With a memory."""
