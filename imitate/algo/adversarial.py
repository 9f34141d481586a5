"""What gail and airl share: a discriminator between the expert's transitions and the policy's gives the rewards.

A policy that lives longer must not be better off for that alone, nor worse. So whatever follows a terminal is an
absorbing state that is judged like any other, for ever (Kostrikov et al., "Discriminator-Actor-Critic", ICLR 2019,
arXiv:1809.02925). With the logit l = log D / (1 - D), D the probability that it was the expert:

    discriminator: mean of softplus(-l) over the expert's steps and of softplus(l) over the policy's; each terminal
                   counts as one more step, in the absorbing state                         -> Adversarial._judge_loss
    reward:        r(l) at each step, and at a terminal also g / (1 - g) r(l_absorbing)      -> rollout_rewards

The policy learns from these rewards as in ``ppo``. Batches have, beside those of ``on_policy.py``: ``executed`` (B, A),
the actions as the environment took them, ``next_obs``, ``terminals`` (B,), and under ``expert`` the same of the
demonstrations, in those minibatches in which the discriminator learns.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from imitate.algo.algo import Batch, Info
from imitate.algo.on_policy import OnPolicyOptimParams, by_parts, select_rows
from imitate.algo.ppo import PPO, PPOConfig
from imitate.algo.rl_sections import StagedOptimizerConfig, optimizer
from imitate.algo.sections import LayerDims
from imitate.config import BaseConfig, Section
from imitate.functional.losses import masked_mean
from imitate.models.discriminator import Judge


class AdversarialOptimParams(OnPolicyOptimParams):
    """The policy's optimizer and the discriminator's."""

    discriminator: StagedOptimizerConfig = Field(optimizer(1e-3))


class DiscriminatorConfig(Section):
    """The network that tells the expert from the policy."""

    layer_dims: LayerDims = Field((64, 64), description="hidden layers")
    sees_actions: bool = Field(True, description="judge actions too; false: observations alone")
    passes: int = Field(
        20, ge=1, description="it learns in so many of the passes over a rollout, the first ones"
    )
    gradient_penalty: float = Field(1.0, ge=0, description="weight of (|gradient| - 1)^2")


class AdversarialConfig(PPOConfig):
    """What the sections of gail and airl have."""

    may_remember: ClassVar[bool] = False

    optim_params: AdversarialOptimParams = Field(AdversarialOptimParams())
    discriminator: DiscriminatorConfig = Field(DiscriminatorConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Combinations that cannot be trained."""
        problems = super().conflicts(config)
        if config.train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {config.train.frame_stack}, but {config.algo_name} judges single observations: "
                "set it to 1"
            )
        return problems


class Adversarial(PPO):
    """PPO on the opinion of a discriminator."""

    def _create_networks(self) -> None:
        super()._create_networks()
        self.nets["discriminator"] = self._create_discriminator()

    def _create_discriminator(self) -> nn.Module:
        return self._create_judge(self.ac_dim if self.algo_config.discriminator.sees_actions else 0)

    def _create_judge(self, ac_dim: int) -> Judge:
        return Judge(self._create_encoder(), ac_dim, self.algo_config.discriminator.layer_dims)

    @property
    def expert_passes(self) -> int:
        """Passes over a rollout in which the discriminator learns."""
        passes: int = self.algo_config.discriminator.passes
        return passes

    # ---- opinions --------------------------------------------------------------------------------

    @abstractmethod
    def _logits(self, batch: Batch) -> Tensor:
        """(B,) l of transitions."""

    @abstractmethod
    def _absorbing_logit(self) -> Tensor:
        """Of a step in the absorbing state."""

    @abstractmethod
    def _penalty(self, expert: Batch, policy: Batch) -> Tensor:
        """The gradient penalty."""

    @abstractmethod
    def _reward(self, logits: Tensor) -> Tensor:
        """r(l)."""

    @torch.no_grad()
    def rollout_rewards(self, rollout: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(T, N) the discriminator's rewards of a raw rollout, see :meth:`OnPolicy.prepare_rollout`."""
        batch = self._transitions(rollout)
        logits = by_parts(batch, self._logits)
        assert logits is not None
        discount = self.algo_config.discount
        # Beyond a discount of 0.999 the absorbing state would be all that counts.
        horizon = discount / max(1.0 - discount, 1e-3)
        after = horizon * self._reward(self._absorbing_logit())
        reward = self._reward(logits) + after * batch["terminals"]
        opinions: np.ndarray[Any, np.dtype[np.float32]] = reward.float().cpu().numpy()
        return opinions.reshape(rollout["terminals"].shape)

    # ---- batches ---------------------------------------------------------------------------------

    def prepare_rollout(self, rollout: Batch) -> Batch:
        """See the base class; with transitions for the discriminator."""
        batch = super().prepare_rollout(rollout)
        transitions = self._transitions(rollout)
        kept = torch.from_numpy(np.flatnonzero(rollout["mask"].reshape(-1))).to(self.device)
        return {**select_rows(transitions, kept), **batch}

    def _select_batch(self, batch: Batch) -> Batch:
        """Demonstrations as transitions; a dataset's minibatch with its own steps also under ``expert``."""
        expert = {
            "obs": {key: value[:, 0] for key, value in batch["obs"].items()},
            "next_obs": {key: value[:, 0] for key, value in batch["next_obs"].items()},
            "executed": batch["actions"][:, 0],
            "terminals": batch["dones"][:, 0],
        }
        if "log_prob" not in batch:
            return expert
        return {**expert, **super()._select_batch(batch), "expert": expert}

    # ---- update ----------------------------------------------------------------------------------

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """The policy's update, then the discriminator's where there are demonstrations to compare with."""
        info = super().train_on_batch(batch, epoch, validate)
        if "expert" not in batch:
            return info
        with torch.set_grad_enabled(not validate):
            loss, judged = self._judge_loss(batch["expert"], batch)
        if not validate:
            judged["Discriminator_Grad_Norms"] = self._gradient_step("discriminator", loss)
        return {**info, **{name: value.detach() for name, value in judged.items()}}

    def _judge_loss(self, expert: Batch, policy: Batch) -> tuple[Tensor, Info]:
        absorbing = self._absorbing_logit()
        of_expert, of_policy = self._logits(expert), self._logits(policy)
        loss = _mean_with_ends(softplus(-of_expert), softplus(-absorbing), expert["terminals"])
        loss = loss + _mean_with_ends(softplus(of_policy), softplus(absorbing), policy["terminals"])
        info = {
            "Discriminator_Loss": loss,
            "Expert_Accuracy": (of_expert > 0).float().mean(),
            "Policy_Accuracy": (of_policy < 0).float().mean(),
            "Absorbing_Logit": absorbing,
        }
        weight = self.algo_config.discriminator.gradient_penalty
        if weight > 0:
            loss = loss + weight * self._penalty(expert, policy)
        return loss, info


def _mean_with_ends(values: Tensor, absorbing: Tensor, terminals: Tensor) -> Tensor:
    """The mean of ``values`` (B,) and, once for each of the ``terminals`` (B,), of ``absorbing``."""
    counts = torch.cat([torch.ones_like(values), terminals])
    return masked_mean(torch.cat([values, absorbing.expand_as(terminals)]), counts)
