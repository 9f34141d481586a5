"""Advantage actor-critic: one update of policy and value after each short rollout of several environments.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", ICML 2016 (arXiv:1602.01783), collected
synchronously. With generalized advantages A and their returns R = A + V:

    L = -E[ A log pi(a | s) ] + value_weight E[ (V(s) - R)^2 ] - entropy_weight E[ H(pi(. | s)) ]      -> A2C._loss

Departures: Adam instead of RMSprop. With ``trace`` 1, returns are the paper's, over up to
``train.online.collect_steps`` steps.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.on_policy import OnPolicy
from imitate.algo.base.on_policy_sections import OnPolicyConfig
from imitate.functional.policy_gradient import explained_variance


class A2CConfig(OnPolicyConfig):
    """Section ``algo`` of algorithm ``a2c``."""

    tree_defaults = {
        "train": {
            "batch_size": 64,
            "max_grad_norm": 0.5,
            "online": {
                "enabled": True,
                "num_envs": 8,
                "collect_steps": 8,
                "warmup_steps": 0,
            },
        }
    }

    trace: float = Field(
        1.0,
        ge=0,
        le=1,
        description="lambda of the advantages: 0 for one step, 1 for the whole return",
    )
    normalize_advantages: bool = Field(
        False,
        description="normalize the advantages of a minibatch to mean 0 and standard deviation 1",
    )


@register("a2c", A2CConfig)
class A2C(OnPolicy[A2CConfig]):
    """Policy gradient with a value function as baseline."""

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config = self.config
        policy, values = self._decide(batch)
        policy_loss = -(self._advantages(batch) * policy.log_prob(batch["actions"])).mean()
        value_loss = self._mean_error((values - batch["returns"]).square())
        loss, entropy = self._with_entropy(policy_loss + config.value_weight * value_loss, policy)
        return loss, {
            "Loss": loss,
            "Policy_Loss": policy_loss,
            "Value_Loss": value_loss,
            "Entropy": entropy,
            "Explained_Variance": explained_variance(batch["values"], batch["returns"]),
        }
