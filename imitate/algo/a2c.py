"""Advantage actor-critic: one update of policy and value after each short rollout of several environments.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", ICML 2016 (arXiv:1602.01783), collected
synchronously by default. With generalized advantages A and their returns R = A + V:

    L = -E[ A log pi(a | s) ] + value_weight E[ (V(s) - R)^2 ] - entropy_weight E[ H(pi(. | s)) ]      -> A2C._loss

With ``algo.vtrace``, before each pass over a rollout, returns and advantages are computed by V-trace (Espeholt et al.
2018, arXiv:1802.01561), which corrects them for the change of the policy since the rollout was collected, by earlier
passes or, with ``train.online.max_staleness``, by the updates that were made meanwhile:

    R = v, A = min(1, pi / pi_old) (r + g (V' + trace (v' - V')) - V)  -> functional.policy_gradient.vtrace

Departures: Adam instead of RMSprop. With ``trace`` 1, returns are the paper's, over up to
``train.online.collect_steps`` steps.
"""

from typing import cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.on_policy import OnPolicy, Rewards
from imitate.algo.base.on_policy_sections import OnPolicyConfig
from imitate.algo.base.rows import by_parts
from imitate.config import BaseConfig
from imitate.functional.policy_gradient import explained_variance, vtrace
from imitate.models.actor import Obs


class A2CConfig(OnPolicyConfig):
    """Options of algorithm ``a2c``, under ``algo``."""

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
        description="lambda of generalized advantage estimation: 0 uses one-step TD errors, 1 whole returns",
    )
    normalize_advantages: bool = Field(
        False,
        description="normalize the advantages of each minibatch to mean 0 and standard deviation 1",
    )

    vtrace: bool = Field(
        False,
        description="compute returns and advantages by V-trace before each pass over a rollout, because the policy "
        "has changed since the rollout was collected; useful with rollout_epochs above 1 or train.online.max_staleness",
    )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        found = {
            "algo.rnn.enabled is true, and stored states come from the old policy": self.rnn.enabled,
            f"algo.popart is {self.popart}, which updates its scale once per rollout": self.popart,
            "algo.rewards have one return each": self.rewards,
        }
        problems = [
            f"algo.vtrace is true, but {words}: set it to false"
            for words, holds in found.items()
            if self.vtrace and holds
        ]
        return super().conflicts(config) + problems


@register("a2c", A2CConfig)
class A2C(OnPolicy[A2CConfig]):
    """Policy gradient with a value function as baseline."""

    takes_old = True

    @property
    def prepares_each_pass(self) -> bool:
        """True with ``algo.vtrace``, which computes advantages anew before each pass over a rollout."""
        return self.config.vtrace

    def _advantages_of(
        self, rollout: Batch, obs: Obs, values: Rewards, next_values: Rewards
    ) -> tuple[Rewards, Rewards]:
        config = self.config
        if not config.vtrace:
            return super()._advantages_of(rollout, obs, values, next_values)
        taken = torch.from_numpy(rollout["policy_action"]).flatten(0, 1).to(self.device)

        def log_prob(part: Batch) -> Tensor:
            policy = self.action_mask.policy(self.net.actor(part["obs"]), part["obs"])
            return policy.log_prob(part["actions"])

        now = cast(Tensor, by_parts(log_prob, {"obs": obs, "actions": taken})).cpu().numpy()
        ratios = np.exp(now.reshape(rollout["log_prob"].shape) - rollout["log_prob"])
        ends = rollout["terminals"], rollout["timeouts"]
        numbers = (rollout["rewards"], values, next_values, ratios)
        returns, advantages = vtrace(*numbers, *ends, config.discount, config.trace)
        return advantages, returns

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
