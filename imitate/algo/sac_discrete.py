"""Soft actor-critic for choices: what SAC estimates from samples of the policy is worked out exactly.

Christodoulou, "Soft Actor-Critic for Discrete Action Settings" (arXiv:1910.07207). The critics give a value for each
choice, the policy pi a probability. With targets Q' and the discount g:

    V(s) = sum_a pi(a | s) (min_e Q'_e(s, a) - alpha log pi(a | s))
    target = r + g V(s'), r alone after a terminal                                     -> DiscreteSAC._target
    critic: mean over the batch, sum over e, of (Q_e(s, a) - target)^2                 -> DiscreteSAC._critic_loss
    actor:  sum_a pi(a | s) (alpha log pi(a | s) - min_e Q_e(s, a))                    -> DiscreteSAC._actor_loss
    alpha:  as in ``sac``, from the entropy -sum_a pi(a | s) log pi(a | s)

Departure: the entropy is tuned to half of log(choices) (``temperature.choice_entropy``) rather than to 0.98 of it,
which leaves a policy of two choices all but a coin.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from imitate.algo.algo import Batch, Info
from imitate.algo.rl_sections import ActorConfig
from imitate.algo.sac import SAC
from imitate.errors import ConfigError
from imitate.functional.losses import masked_mean
from imitate.models.categorical import Categorical, CategoricalHead


class DiscreteSAC(SAC):
    """One of A choices, one-hot."""

    def _create_networks(self) -> None:
        if self._num_choices != self.ac_dim:
            raise ConfigError(
                f"algo.num_choices is {self._num_choices}, but actions have {self.ac_dim} numbers: set it to that, or "
                "algo.num_continuous to what lies beside the choice"
            )
        super()._create_networks()

    @property
    def _num_choices(self) -> int:
        number: int = self.algo_config.num_choices
        return number

    def _create_head(self, input_dim: int, config: ActorConfig) -> CategoricalHead:
        return CategoricalHead(input_dim, self.ac_dim)

    def _wanted_entropy(self) -> Tensor:
        """The temperature's."""
        share: float = self.algo_config.temperature.choice_entropy
        return torch.tensor(share * math.log(self._num_choices))

    # ---- losses --------------------------------------------------------------------------------------------------

    def _choices(self, obs: Batch, goal: Batch | None) -> Categorical:
        """pi(. | s)."""
        features, _ = self.actor(obs, goal)
        return cast(Categorical, self.actor.head(features))

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """(B,) what the critics are to say of the choice that was taken."""
        policy = self._choices(batch["next_obs"], batch["goal_obs"])
        values = self._critic("critic_target")(batch["next_obs"], None, batch["goal_obs"])
        soft = self._ensemble_value(values) - self._alpha * policy.logits
        value = (policy.probabilities * soft).sum(-1)
        return cast(Tensor, batch["rewards"] + batch["discounts"] * value)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        values = self._critic("critic")(batch["obs"], None, batch["goal_obs"])
        taken = (values * batch["actions"]).sum(-1)
        loss = self._td_loss(taken, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": taken.mean(), "Q_Targets": target.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        policy = self._choices(batch["obs"], batch["goal_obs"])
        with torch.no_grad():
            values = self._critic("critic")(batch["obs"], None, batch["goal_obs"])
            liked = self._ensemble_value(values)
        losses = (policy.probabilities * (self._alpha * policy.logits - liked)).sum(-1)
        loss = masked_mean(losses, batch["weight"])
        entropy = masked_mean(policy.entropy().detach(), batch["weight"])
        return loss, {"Actor_Loss": loss, "Entropy": entropy, "Temperature": self._alpha}

    def _validation_info(self, batch: Batch) -> Info:
        """How often the likeliest choice is another than the data's."""
        best = self._choices(batch["obs"], batch["goal_obs"]).logits.argmax(-1)
        return {"Action_Error": (best != batch["actions"].argmax(-1)).float().mean()}
