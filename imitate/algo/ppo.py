"""Proximal policy optimization: several passes over each rollout, with a limited change of the policy.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv:1707.06347). With the ratio
rho = pi(a | s) / pi_old(a | s), generalized advantages A and their returns R = A + V_old:

    L = -E[ min(rho A, clip(rho, 1 - c, 1 + c) A) ]                    -> PPO._loss, Policy_Loss
        + value_weight E[ (V(s) - R)^2 ]                               -> Value_Loss
        - entropy_weight E[ H(pi(. | s)) ]                             -> Entropy

Values and advantages are computed once per rollout, from the value before its first update. Advantages are
normalized per minibatch; values are clipped only with ``value_clip``.
"""

from torch import Tensor

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.on_policy import OnPolicy
from imitate.algo.base.on_policy_sections import PPOConfig
from imitate.functional.policy_gradient import (
    clipped_surrogate,
    clipped_value_error,
    surrogate_figures,
)


@register("ppo", PPOConfig)
class PPO(OnPolicy[PPOConfig]):
    """Policy and value trained with the clipped surrogate loss."""

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config = self.config
        policy, values = self._decide(batch)
        log_ratio = policy.log_prob(batch["actions"]) - batch["log_prob"]
        policy_loss = clipped_surrogate(log_ratio, self._advantages(batch), config.clip).mean()
        errors = clipped_value_error(values, batch["returns"], batch["values"], config.value_clip)
        value_loss = self._mean_error(errors)
        loss, entropy = self._with_entropy(policy_loss + config.value_weight * value_loss, policy)
        figures = surrogate_figures(log_ratio, config.clip, batch["values"], batch["returns"])
        return loss, {
            "Loss": loss,
            "Policy_Loss": policy_loss,
            "Value_Loss": value_loss,
            "Entropy": entropy,
            **figures,
        }
