"""Phasic policy gradient: PPO with auxiliary phases, in which the policy's features also learn the value.

Cobbe, Hilton, Klimov, Schulman, "Phasic Policy Gradient", ICML 2021 (arXiv:2009.04416). The policy has a second head,
V_aux, on its last hidden layer. After each rollout, as in PPO, with rho = pi(a | s) / pi_old(a | s):

    L = -E[ min(rho A, clip(rho, 1 - c, 1 + c) A) ] - entropy_weight E[ H(pi(. | s)) ]  -> PPG._loss, Policy_Loss
        + value_weight E[ (V(s) - R)^2 ]                                                -> Value_Loss

After every ``interval`` rollouts, for ``auxiliary_epochs`` passes over all of them, with the policy pi_phase before the
first of these passes:

    L = 1/2 E[ (V_aux(s) - R)^2 ] + clone_weight E[ KL(pi_phase(. | s) || pi(. | s)) ]  -> PPG._joint_loss
        + 1/2 E[ (V(s) - R)^2 ]

V has its own hidden layers. It reads the shared encoder of observations without gradient except in these phases, as
in the paper's variant with one network; vectors have no encoder to share. Departure: V_aux also learns between the
phases, without gradient for the policy's layers.
"""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.on_policy import OnPolicy
from imitate.algo.base.on_policy_sections import PPOConfig
from imitate.algo.base.rows import by_parts
from imitate.algo.slots.reward_weights import num_values
from imitate.config import BaseConfig
from imitate.functional.losses import categorical_kl, gaussian_kl
from imitate.functional.policy_gradient import (
    clipped_surrogate,
    clipped_value_error,
    surrogate_figures,
)
from imitate.models.actor import Obs, StochasticPolicy
from imitate.models.categorical import Categorical
from imitate.models.mlp import FullPrecisionLinear

AUXILIARY = "auxiliary_head"
"""Name of the policy's second head, V_aux, which predicts values."""


class PPGConfig(PPOConfig):
    """Options of algorithm ``ppg``, under ``algo``."""

    supports_memory: ClassVar[bool] = False
    supports_popart: ClassVar[bool] = False

    rollout_epochs: int = Field(1, ge=1, description="number of passes over each rollout")
    interval: int = Field(32, ge=1, description="number of rollouts before each auxiliary phase")
    auxiliary_epochs: int = Field(
        6,
        ge=1,
        description="number of passes of an auxiliary phase over all rollouts since the previous phase",
    )
    clone_weight: float = Field(
        1.0,
        ge=0,
        description="weight of the divergence of the policy from the policy before the auxiliary phase",
    )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        if config.train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {config.train.frame_stack}, but ppg keeps single observations for its auxiliary "
                "phases: set it to 1"
            )
        return problems


@register("ppg", PPGConfig)
class PPG(OnPolicy[PPGConfig]):
    """PPO whose policy learns the value as an auxiliary task."""

    def _create_networks(self) -> None:
        super()._create_networks()
        size = self.net.policy.output_dim
        head = FullPrecisionLinear(size, max(1, num_values(self.config)))
        self.net.add_module(AUXILIARY, head)

    # ---- losses --------------------------------------------------------------------------------------------------

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        if "phase_policy" in batch:
            return self._joint_loss(batch)
        config, features = self.config, self.net.encoder(batch["obs"])
        hidden = self.net.policy(features)
        policy = self.action_mask.policy(self.net.head(hidden), batch["obs"])
        log_ratio = policy.log_prob(batch["actions"]) - batch["log_prob"]
        policy_loss = clipped_surrogate(log_ratio, self._advantages(batch), config.clip).mean()
        values = self.net.values_of(features.detach(), batch["obs"])
        value_loss = clipped_value_error(
            values, batch["returns"], batch["values"], config.value_clip
        ).mean()
        auxiliary = self._auxiliary_error(hidden.detach(), batch["returns"])
        loss = policy_loss + config.value_weight * value_loss + auxiliary
        loss, entropy = self._with_entropy(loss, policy)
        figures = surrogate_figures(log_ratio, config.clip, batch["values"], batch["returns"])
        return loss, {
            "Loss": loss,
            "Policy_Loss": policy_loss,
            "Value_Loss": value_loss,
            "Entropy": entropy,
            **figures,
        }

    def _auxiliary_error(self, hidden: Tensor, returns: Tensor) -> Tensor:
        """Return half of the mean squared error () of V_aux, from the policy's last hidden layer (B, D)."""
        values: Tensor = self.net.get_submodule(AUXILIARY)(hidden)
        return 0.5 * (values.reshape(returns.shape) - returns).square().mean()

    def _joint_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of a minibatch of an auxiliary phase."""
        returns, features = batch["returns"], self.net.encoder(batch["obs"])
        hidden = self.net.policy(features)
        policy = self.action_mask.policy(self.net.head(hidden), batch["obs"])
        divergence = divergence_from(batch["phase_policy"], policy).mean()
        auxiliary = self._auxiliary_error(hidden, returns)
        value_loss = 0.5 * (self.net.values_of(features, batch["obs"]) - returns).square().mean()
        loss = auxiliary + self.config.clone_weight * divergence + value_loss
        info = {"Phase_KL": divergence, "Phase_Auxiliary_Loss": auxiliary}
        return loss, {"Loss": loss, **info, "Phase_Value_Loss": value_loss}

    # ---- phases --------------------------------------------------------------------------------------------------

    def after_rollout(self, rollout: Batch, batch: Batch, batch_size: int) -> Iterator[Batch]:
        """Keep the rollout; after every ``interval`` rollouts, yield the minibatches of an auxiliary phase."""
        rows = torch.from_numpy(np.flatnonzero(rollout["mask"]))
        seen = {
            key: torch.from_numpy(x.reshape(-1, *x.shape[2:]))[rows]
            for key, x in rollout["obs"].items()
        }
        self.kept.append({"obs": seen, "returns": batch["returns"].cpu()})
        if len(self.kept) < self.config.interval:
            return
        obs = {key: torch.cat([each["obs"][key] for each in self.kept]) for key in seen}
        returns = torch.cat([each["returns"] for each in self.kept])
        self.kept.clear()
        with torch.no_grad():
            phase_policy = by_parts(lambda part: self._numbers(part["obs"]), {"obs": obs})
        assert phase_policy is not None
        parts = int(self.ranks.table(max(1, round(len(returns) / batch_size))).min())
        for _ in range(self.config.auxiliary_epochs):
            for chosen in torch.randperm(len(returns)).tensor_split(parts):
                yield {
                    "obs": self._prepared({key: x[chosen] for key, x in obs.items()}),
                    "returns": returns[chosen].to(self.device),
                    "phase_policy": phase_policy[chosen.to(self.device)],
                }

    def _prepared(self, obs: Batch) -> Obs:
        return self.preprocess.prepare_obs(obs, tuple(self.encoding.in_batches["obs"]))

    def _numbers(self, obs: Batch) -> Tensor:
        """Return the parameters of the policy's distribution (:func:`numbers_of`) for raw observations (B, ...)."""
        prepared = self._prepared(obs)
        return numbers_of(self.action_mask.policy(self.net.actor(prepared), prepared))

    def leaves_rollout(self, info: Info) -> bool:
        """Return true if the KL divergence from the policy that collected the rollout exceeds 1.5 ``target_kl``.

        The result is always false in an auxiliary phase.
        """
        return "KL" in info and super().leaves_rollout(info)


def numbers_of(policy: StochasticPolicy) -> Tensor:
    """Return the parameters of a distribution: logits (B, A), or means and log variances (B, 2 A)."""
    if isinstance(policy, Categorical):
        return policy.logits
    return torch.cat([policy.mean, 2.0 * policy.stds.log()], dim=-1)


def divergence_from(numbers: Tensor, policy: StochasticPolicy) -> Tensor:
    """Return KL(old || policy) (B,), where the old distribution is given by ``numbers`` of :func:`numbers_of`."""
    if isinstance(policy, Categorical):
        return categorical_kl(numbers, policy.logits)
    mean, log_var = numbers.chunk(2, dim=-1)
    return gaussian_kl(mean, log_var, policy.mean, 2.0 * policy.stds.log())
