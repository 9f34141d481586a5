"""Exploration in rollouts: noise for deterministic actors, optimism for Gaussian actors.

Optimism: Ciosek, Vuong, Loftin, Hofmann, "Better Exploration with Optimistic Actor Critic", NeurIPS 2019
(arXiv:1910.12807). Before the tanh, the mean m of the policy N(m, S) in state s becomes

    m + sqrt(2 delta) S g / sqrt(g' S g),   g = gradient of Q_ub(s, tanh m) with respect to m,
    Q_ub = mean of the critics + beta (largest - smallest) / 2

with the same covariance S, so that the divergence from the policy is delta in each state.
"""

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.base.policy_state import InnerState
from imitate.config import Section
from imitate.functional.sampling import fill_normal, fill_uniform
from imitate.models.heads import Gaussian


class ActionNoiseConfig(Section):
    """Noise added to the actions of rollouts in online RL, in normalized units."""

    std: float = Field(0.1, ge=0, description="standard deviation of the noise added in each step")
    damping: float = Field(
        1.0,
        gt=0,
        le=1,
        description="damping of an Ornstein-Uhlenbeck process: each step keeps the fraction 1 - damping of the "
        "previous noise; 1: noise is independent between steps",
    )
    random_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability with which the action is replaced by a uniformly random one",
    )


class OptimismConfig(Section):
    """Shift of the mean of rollouts' actions towards high upper bounds of the values (OAC)."""

    shift: float = Field(
        6.86,
        ge=0,
        description="length of the shift, in standard deviations of the policy: the paper's sqrt(2 delta)",
    )
    beta: float = Field(
        4.66,
        description="the upper bound of a value is the mean of the critics plus beta times half the difference between "
        "the largest and the smallest",
    )


def optimistic(policy: Gaussian, upper: Callable[[Tensor], Tensor], shift: float) -> Gaussian:
    """Return the policy with its means shifted towards actions of a higher upper bound, in each state separately.

    Args:
        policy: (B,) distribution before the tanh.
        upper: upper bounds (B,) of the values of actions (B, A).
        shift: length of the shift in standard deviations.
    """
    with torch.inference_mode(False), torch.enable_grad():
        mean = policy.mean.clone().detach().requires_grad_()
        (slope,) = torch.autograd.grad(upper(mean.tanh()).sum(), mean)
    spread = policy.stds * slope
    length = torch.linalg.vector_norm(spread, dim=-1, keepdim=True)
    unit = spread / length.clamp(min=torch.finfo(length.dtype).tiny)
    return Gaussian(policy.mean + shift * policy.stds * unit, policy.stds)


class ActionNoise:
    """Noise process of a deterministic actor; the latest noise is part of the policy's state, under ``noise``.

    ``noise <- (1 - damping) noise + std * normal`` (Uhlenbeck & Ornstein 1930; as in DDPG, arXiv:1509.02971).
    """

    def __init__(self, config: ActionNoiseConfig) -> None:
        self.config = config

    def initial_state(self, batch_size: int, ac_dim: int, device: torch.device) -> InnerState:
        """Return the noise before the first step of an episode: zeros (B, A)."""
        return {"noise": torch.zeros(batch_size, ac_dim, device=device)}

    def add_to(
        self, action: Tensor, state: InnerState, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the action (B, A) plus the next noise, clipped to [-1, 1], and that noise (B, A)."""
        fresh = fill_normal(torch.empty_like(action), generator)
        kept = state["noise"] * (1.0 - self.config.damping)
        noise = kept + self.config.std * fresh
        chosen = (action + noise).clamp(-1.0, 1.0)
        if self.config.random_share:
            anything = fill_uniform(torch.empty_like(action), generator) * 2.0 - 1.0
            drawn = fill_uniform(torch.empty_like(action[:, :1]), generator)
            chosen = torch.where(drawn < self.config.random_share, anything, chosen)
        return chosen, noise
