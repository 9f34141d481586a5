"""Base class of the reward sources of gail, airl and dac: a discriminator between expert and policy transitions.

Ho & Ermon, "Generative Adversarial Imitation Learning", NeurIPS 2016 (arXiv:1606.03476), with the absorbing states of
Kostrikov et al., "Discriminator-Actor-Critic", ICLR 2019 (arXiv:1809.02925). With the logit l(s, a) of the probability
D that a transition is the expert's, the logit L of the absorbing state after a terminal, and the discount g:

    discriminator: mean of softplus(-l) over the expert's steps and of softplus(l) over the policy's, each terminal
                   counting as one more step, in the absorbing state                      -> discriminator_loss
                   + weight * mean of (|gradient| - 1)^2, at random inputs between both   -> gradient_penalty
    reward:        r(l) at each step, and after a terminal g / (1 - g) r(L) more          -> with_absorbing_state

So the length of an episode alone is neither rewarded nor punished. A subclass defines r.

The logit is l = log D - log(1 - D). The absorbing state is never left. Without absorbing states, rewards that are never
negative would favour long episodes, and rewards that are never positive would favour short episodes.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.on_policy_sections import PPOConfig
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.reward_source import MakeEncoder, RewardSource
from imitate.config import BaseConfig, Section
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.mlp import MLP, FullPrecisionLinear


def discriminator_loss(
    logits: Tensor, absorbing: Tensor, expert: Tensor, terminals: Tensor
) -> Tensor:
    """Cross-entropy: mean of -log D over the expert's transitions plus mean of -log(1 - D) over the policy's.

    Each terminal counts as one more step, in the absorbing state.

    Args:
        logits: (B,) l.
        absorbing: () logit of the absorbing state.
        expert: (B,) 1 for the expert's transitions, 0 for the policy's.
        terminals: (B,) 1 or 0.

    Returns:
        () loss.
    """
    each = torch.cat([logits, absorbing.expand_as(logits)])
    of_expert = torch.cat([expert, expert * terminals])
    of_policy = torch.cat([1.0 - expert, (1.0 - expert) * terminals])
    return masked_mean(softplus(-each), of_expert) + masked_mean(softplus(each), of_policy)


def with_absorbing_state(
    rewards: Tensor, absorbing: Tensor, terminals: Tensor, discount: float
) -> Tensor:
    """Add the absorbing state's return, discount / (1 - discount) times ``absorbing``, to the rewards of terminals.

    Args:
        rewards: (B,) rewards of the transitions.
        absorbing: () reward of a step in the absorbing state.
        terminals: (B,) 1 or 0.
        discount: in [0, 1]; the factor is limited to 1000, since otherwise the absorbing state would dominate.

    Returns:
        (B,) rewards.
    """
    steps = discount / max(1.0 - discount, 1e-3)
    return rewards + steps * absorbing * terminals


class Discriminator(nn.Module):
    """Network that returns a logit for each transition, or for each state.

    The last input is 1 in the absorbing state after a terminal, in which all other inputs are 0; otherwise it is 0.

    Args:
        encoder: encoder of observations.
        ac_dim: A, or 0 if the logit depends only on the state.
        layer_dims: widths of the hidden layers.
    """

    def __init__(self, encoder: GroupEncoder, ac_dim: int, layer_dims: Sequence[int]) -> None:
        super().__init__()
        self.encoder, self.ac_dim = encoder, ac_dim
        self.mlp = MLP(encoder.output_dim + ac_dim + 1, layer_dims, torch.tanh)
        self.last = FullPrecisionLinear(self.mlp.output_dim, 1)

    def inputs(self, obs: Obs, actions: Tensor) -> Tensor:
        """Concatenate the features of the observations, actions (B, A), and 0 to inputs (B, D)."""
        features = self.encoder(obs)
        parts = [features, actions] if self.ac_dim else [features]
        return torch.cat([*parts, torch.zeros_like(features[:, :1])], dim=-1)

    def absorbing(self) -> Tensor:
        """Return the input (1, D) of the absorbing state."""
        row = self.last.weight.new_zeros(1, self.encoder.output_dim + self.ac_dim + 1)
        row[:, -1] = 1.0
        return row

    def at_absorbing(self) -> Tensor:
        """Return the logit () of the absorbing state."""
        logit: Tensor = self(self.absorbing())[0]
        return logit

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B,) of inputs (B, D)."""
        logits: Tensor = self.last(self.mlp(inputs))
        return logits.squeeze(-1)


def gradient_penalty(discriminator: Discriminator, first: Tensor, second: Tensor) -> Tensor:
    """Compute the mean of (|gradient| - 1)^2 at random points between two sets of inputs, (B, D) each.

    The two sets may have different sizes.

    Gulrajani et al., "Improved Training of Wasserstein GANs" (arXiv:1704.00028).
    """
    count = min(len(first), len(second))
    share = torch.rand(count, 1, device=first.device)
    between = share * first[:count].detach() + (1.0 - share) * second[:count].detach()
    between.requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(discriminator(between).sum(), between, create_graph=True)
    penalty: Tensor = (gradient.norm(dim=-1) - 1.0).square().mean()
    return penalty


class AdversarialRewards(RewardSource):
    """Discriminator of transitions. The section ``algo.discriminator`` is a :class:`DiscriminatorConfig`."""

    def __init__(self, config: Any, make_encoder: MakeEncoder, ac_dim: int) -> None:
        super().__init__(config, make_encoder, ac_dim)
        seen = ac_dim if config.discriminator.sees_actions else 0
        self.discriminator = Discriminator(make_encoder(), seen, config.discriminator.layer_dims)
        self.net: nn.Module = self.discriminator

    @abstractmethod
    def reward_of(self, logits: Tensor) -> Tensor:
        """Return rewards r(l), elementwise."""

    def logits(self, inputs: Tensor, batch: Batch) -> Tensor:
        """Return the logits l (B,) of transitions, whose :meth:`Discriminator.inputs` are ``inputs`` (B, D)."""
        logits: Tensor = self.discriminator(inputs)
        return logits

    def absorbing_logit(self) -> Tensor:
        """Return the logit of a step in the absorbing state, a tensor without dimensions."""
        return self.discriminator.at_absorbing()

    @property
    def passes(self) -> int:
        """Number of first passes over each rollout in which the discriminator learns: ``algo.discriminator.passes``."""
        return int(self.config.discriminator.passes)

    def loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the cross-entropy between demonstrations and the policy's steps, plus the gradient penalty."""
        inputs = self.discriminator.inputs(batch["obs"], batch["actions"])
        logits, absorbing, expert = (
            self.logits(inputs, batch),
            self.absorbing_logit(),
            batch["expert"],
        )
        loss = discriminator_loss(logits, absorbing, expert, batch["terminals"])
        info = {
            "Discriminator_Loss": loss,
            "Expert_Accuracy": masked_mean((logits > 0).float(), expert),
            "Policy_Accuracy": masked_mean((logits < 0).float(), 1.0 - expert),
            "Absorbing_Logit": absorbing,
        }
        weight = self.config.discriminator.gradient_penalty
        if weight > 0:
            # Sort the policy's steps before the expert's, keeping the order within each group. Only the number of the
            # policy's steps is copied from the device.
            ordered = inputs[expert.argsort(stable=True)]
            of_policy, of_expert = ordered.tensor_split([int((expert == 0).sum())])
            if len(of_expert) and len(of_policy):
                penalty = gradient_penalty(self.discriminator, of_expert, of_policy)
                loss = loss + weight * penalty
        return loss, info

    @torch.no_grad()
    def rewards(self, batch: Batch) -> Tensor:
        """Return rewards r(l) (B,), plus the absorbing state's rewards after terminals."""
        inputs = self.discriminator.inputs(batch["obs"], batch["actions"])
        rewards = self.reward_of(self.logits(inputs, batch))
        absorbing = self.reward_of(self.absorbing_logit())
        return with_absorbing_state(rewards, absorbing, batch["terminals"], self.config.discount)


class DiscriminatorConfig(Section):
    """Network that distinguishes the expert's transitions from the policy's."""

    layer_dims: LayerDims = Field((64, 64), description="widths of the hidden layers")
    sees_actions: bool = Field(
        True,
        description="the discriminator sees observations and actions; false: observations alone",
    )
    gradient_penalty: float = Field(
        1.0, ge=0, description="weight of the discriminator's gradient penalty (|gradient| - 1)^2"
    )


class RolloutDiscriminatorConfig(DiscriminatorConfig):
    """Discriminator that learns from rollouts."""

    passes: int = Field(
        20,
        ge=1,
        description="number of first passes over each rollout in which the discriminator learns; later passes train "
        "only the policy",
    )


class AdversarialConfig(PPOConfig):
    """Base class of the sections of gail and airl, which are trained like ``ppo``."""

    supports_memory: ClassVar[bool] = False

    optim_params: Networks = networks(
        "AdversarialOptimParams",
        "The policy's optimizer and the discriminator's.",
        policy=3e-4,
        discriminator=1e-3,
    )
    discriminator: RolloutDiscriminatorConfig = Field(RolloutDiscriminatorConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        if config.train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {config.train.frame_stack}, but the discriminator of {config.algo_name} sees "
                "single observations: set it to 1"
            )
        return problems
