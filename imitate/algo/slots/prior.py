"""Slot of soft actor-critics: a prior policy, in place of the uniform one, towards which the policy is regularized.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905), rewards the entropy of the policy,
which is minus its divergence from a uniform policy. With a prior pi_0 (Galashov et al., "Information Asymmetry in
KL-regularized RL", ICLR 2019, arXiv:1905.01240), whose density replaces the uniform one,

    log pi(a | s) -> log pi(a | s) - log pi_0(a | s)                                       -> Prior.log_prob
    alpha rises while KL(pi | pi_0) is above target_kld_per_dim A, and falls below it      -> PriorConfig.target

There are three types of priors:

    checkpoint    a frozen policy with a density, such as a clone of demonstrations, with two limits:
                  standard deviations of at least ``min_std``, because the divergence from a narrow policy explodes, and
                  log-densities of at least ``floor`` A, because those of a mixture have no lower limit;
                  until its weights are loaded it is uniform
    uniform       1 / 2^A, or 1 / C for C choices
    same_action   0.1 TruncN(0, 2) + 0.9 TruncN(previous action, 0.2) for each number, within [-1, 1]; TruncN(0, 2) at
                  an episode's start (actor_prior_algorithm.SameActionPriorActor of ALF)

Departure: below the floor, the density keeps its gradient, so that a policy far from the prior still moves towards it.
"""

import math
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from imitate.algo.slots.frozen import FrozenPolicy, FrozenPolicyConfig
from imitate.config import BaseConfig
from imitate.models.actor import Obs
from imitate.models.categorical import Categorical
from imitate.models.heads import ActionDistribution, Gaussian, GaussianMixture, TanhDistribution
from imitate.models.preprocess import Preprocess
from imitate.system.text import PREVIOUS_ACTION

_LOG_TWO = math.log(2.0)


class PriorConfig(FrozenPolicyConfig):
    """Policy towards which a soft actor-critic is regularized."""

    type: Literal["checkpoint", "uniform", "same_action"] = Field(
        "checkpoint",
        description="the prior. checkpoint: a frozen policy with a density (bc with gaussian or gmm, sac, ppo); "
        "uniform: all actions are equally likely; same_action: the previous action, which must be the observation "
        f"{PREVIOUS_ACTION}, is likely",
    )
    target_kld_per_dim: float = Field(
        3.0,
        gt=0,
        description="target divergence from the prior, in nats per action dimension, to which the temperature is "
        "tuned; replaces temperature.target_entropy",
    )
    min_std: float = Field(
        0.05,
        gt=0,
        description="smallest standard deviation of a prior of type checkpoint, whose actions are within -1 and 1",
    )
    floor: float = Field(
        -10.0,
        lt=0,
        description="smallest log-density of a prior of type checkpoint, per action dimension",
    )

    @model_validator(mode="after")
    def _only_a_checkpoint_has_a_file(self) -> Self:
        if self.checkpoint is not None and self.type != "checkpoint":
            raise ValueError(
                f"type '{self.type}' reads no checkpoint: leave checkpoint out, or set type to 'checkpoint'"
            )
        return self

    def target(self, size: int) -> float:
        """Return the target of the entropy relative to the prior, for actions of ``size`` numbers."""
        return -self.target_kld_per_dim * size

    def problems(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = []
        if config.algo["temperature"].target_entropy is not None:
            problems.append(
                "algo.temperature.target_entropy: with algo.prior the target is algo.prior.target_kld_per_dim: set it "
                "to null"
            )
        rnn = config.algo.get("rnn", None)
        if self.type != "uniform" and rnn is not None and rnn.enabled:
            problems.append(
                f"algo.prior.type is '{self.type}', which sees observations, but with algo.rnn.enabled batches hold "
                "recurrent features: disable one of them"
            )
        if config.algo.get("num_choices", 0) and config.algo.get("num_continuous", 0):
            problems.append(
                "algo.prior is for continuous actions or for a discrete choice, but actions have both: set it to null"
            )
        if config.algo.get("num_choices", 0) and self.type == "same_action":
            problems.append(
                "algo.prior.type is 'same_action', but actions are choices: set it to 'uniform' or 'checkpoint'"
            )
        if self.type == "same_action" and PREVIOUS_ACTION not in config.all_obs_keys:
            problems.append(
                f"algo.prior.type is 'same_action', but observation.modalities lacks {PREVIOUS_ACTION}: list it there, "
                'and wrap the environment: train.online.wrappers [{"type": "previous_action"}]'
            )
        return problems


class Prior(nn.Module):
    """Log-densities of a prior, which is one of the algorithm's networks, so that checkpoints contain it.

    Args:
        config: section ``algo.prior``.
        ac_dim: A, action dimensions, or number of choices.
    """

    def __init__(self, config: PriorConfig, ac_dim: int) -> None:
        super().__init__()
        self.config, self._ac_dim = config, ac_dim
        self.policy: FrozenPolicy | None = None
        if config.type == "checkpoint":
            self.policy = FrozenPolicy(
                ac_dim, config.checkpoint, key="algo.prior", needs_density=True
            )

    def log_prob(self, obs: Obs, actions: Tensor, around: Preprocess) -> Tensor:
        """Return log pi_0(a | s) (B,), with gradient for the actions.

        Args:
            obs: (B, ...), or (B, F, ...) with stacked frames, prepared by ``around``.
            actions: (B, A) in the algorithm's units, within -1 and 1.
            around: the algorithm's preprocessing.
        """
        if self.config.type == "same_action":
            # this observation is the previous action followed by 1; at the start of an episode it is all zeros
            before = around.unnormalize_obs(PREVIOUS_ACTION, obs[PREVIOUS_ACTION])
            before = before[:, -1] if before.dim() == 3 else before
            return same_action_log_prob(
                actions, around.normalize_actions(before[:, :-1], obs), before[:, -1] > 0.5
            )
        found = None if self.policy is None else self.policy.distribution(obs, around)
        if found is None:
            return torch.full_like(actions[..., 0], -self._ac_dim * _LOG_TWO)
        log_prob = widened(found, self.config.min_std).log_prob(actions)
        least = self.config.floor * self._ac_dim
        return log_prob + (log_prob.clamp(min=least) - log_prob).detach()

    def logits(self, obs: Obs, around: Preprocess) -> Tensor:
        """Return the log-probabilities (B, C) of the choices."""
        found = None if self.policy is None else self.policy.distribution(obs, around)
        if found is None:
            size = (len(next(iter(obs.values()))), self._ac_dim)
            return torch.full(size, -math.log(self._ac_dim), device=around.action_offset.device)
        assert isinstance(found, Categorical), "choices have a prior of choices"
        return found.logits.clamp(min=self.config.floor)


def widened(policy: ActionDistribution, min_std: float) -> ActionDistribution:
    """Return a Gaussian or mixture with standard deviations of at least ``min_std``; keep other distributions."""
    if isinstance(policy, TanhDistribution):
        base = widened(policy.base, min_std)
        assert isinstance(base, Gaussian | GaussianMixture)
        return TanhDistribution(base)
    if isinstance(policy, Gaussian):
        return Gaussian(policy.mean, policy.stds.clamp(min=min_std))
    if isinstance(policy, GaussianMixture):
        return GaussianMixture(policy.means, policy.stds.clamp(min=min_std), policy.logits)
    return policy


def same_action_log_prob(actions: Tensor, previous: Tensor, known: Tensor) -> Tensor:
    """Return the log-density (B,) of actions under a prior that favours the previous ones.

    Args:
        actions: (B, A) within -1 and 1.
        previous: (B, A) previous actions.
        known: (B,) bool, false at an episode's start.
    """
    flat = _truncated_normal(actions, torch.zeros_like(actions), 2.0)
    near = _truncated_normal(actions, previous.clamp(-1.0, 1.0), 0.2)
    both = torch.logaddexp(flat + math.log(0.1), near + math.log(0.9))
    return torch.where(known.unsqueeze(-1), both, flat).sum(-1)


def _truncated_normal(x: Tensor, mean: Tensor, std: float) -> Tensor:
    """Return log-densities of a normal distribution that is truncated to [-1, 1]."""
    inside = torch.special.ndtr((1.0 - mean) / std) - torch.special.ndtr((-1.0 - mean) / std)
    scale = math.log(std * math.sqrt(2.0 * math.pi))
    density: Tensor = -0.5 * ((x - mean) / std).square() - scale - inside.log()
    return density
