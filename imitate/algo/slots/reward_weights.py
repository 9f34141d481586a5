"""Slot of algorithms that learn from rewards: several named rewards, with constraints on some of them.

    "algo": {"rewards": {"task": {"source": "reward"}, "cost": {"source": "info:cost", "weight": 0, "at_most": 0.25}}}

Chen Tessler, Daniel J. Mankowitz, Shie Mannor, "Reward Constrained Policy Optimization", ICLR 2019 (arXiv:1805.11074).
With named rewards s_k, their fixed weights w_k, and a multiplier m_c >= 0 per constraint c:

    reward      r = (sum_k w_k s_k - sum_c sign_c m_c s_c) / (1 + sum_c m_c)            -> RewardWeights.combined
                sign_c is 1 for "at most" and -1 for "at least"
    multiplier  rises while the mean of s_c per step violates its bound, else falls:
                it follows the gradient of -m_c sign_c (mean(s_c) - bound_c)             -> RewardWeights.loss

The means are moving means over collected steps, including steps of earlier policies. ``ppo``, ``a2c``, ``sac``,
``tqc``, ``td3``, ``ddpg``, ``dqn`` and ``rlpd`` learn one value per named reward, and one of all additions (entropy,
bonuses); these values remain correct when a multiplier changes:

    value       Q = sum_k v_k Q_k + Q_added, v_k the weight of s_k in r                 -> RewardWeights.total
    pessimism   of several critics, the least Q_k where v_k > 0, the greatest where not -> RewardWeights.pessimistic

Other algorithms learn one value of r, computed with the current multipliers. Departures: the divisor, which keeps the
values' scale while multipliers grow; a multiplier is the softplus of a learned parameter, so that it is positive
without a projection; it follows the mean per step in place of the expected return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn

from imitate.config import OptimizerConfig, Section
from imitate.config.base_config import BaseConfig
from imitate.config.optimizer import adam
from imitate.config.schedule import has_schedule, schedule_of
from imitate.errors import ConfigError
from imitate.system.ranks import ALONE, Ranks
from imitate.system.text import INFO, PART, SIGNALS

NETWORK = "reward_weights"
"""Name of the slot's network."""


class NamedReward(Section):
    """Options of one named reward, an entry of ``algo.rewards``."""

    source: str = Field(
        "reward",
        pattern=rf"^(reward|{PART}[0-9]+|{INFO}.+)$",
        description="source of the reward. 'reward': the environment's reward; 'reward:0', 'reward:1', ...: one "
        "number of a reward vector; 'info:KEY': a number in the info of each step",
    )
    weight: float = Field(
        1.0, description="weight of this reward in the weighted sum that is maximized"
    )
    at_least: float | None = Field(
        None, description="lower bound of the mean of this reward per step; null: no bound"
    )
    at_most: float | None = Field(
        None, description="upper bound of the mean of this reward per step; null: no bound"
    )
    discount: float | None = Field(
        None, ge=0, lt=1, description="discount per step of this reward; null: algo.discount"
    )

    @property
    def is_bounded(self) -> bool:
        """True if the mean of this reward has a bound."""
        return self.at_least is not None or self.at_most is not None

    @model_validator(mode="after")
    def _one_bound(self) -> NamedReward:
        if self.at_least is not None and self.at_most is not None:
            raise ValueError(
                "at_least and at_most are both given: keep one of them, or use two names with the same source"
            )
        return self


class RewardsConfig(Section):
    """Named rewards, under names that the user chooses."""

    model_config = ConfigDict(extra="allow")
    entry_type: ClassVar[type[Section] | None] = NamedReward

    __pydantic_extra__: dict[str, NamedReward] = Field(init=False)


class RewardWeightsConfig(Section):
    """Learning of the multipliers of constraints, the bounds of named rewards."""

    initial: float = Field(1.0, gt=0, description="initial value of each multiplier")
    memory_steps: float = Field(
        200.0, ge=1, description="time constant of the moving means, in steps of all environments"
    )
    optimizer: OptimizerConfig = Field(adam(2e-4), description="optimizer of the multipliers")


class RewardWeights(nn.Module):
    """Weights of S named rewards, of which C have a bound.

    Args:
        rewards: section ``algo.rewards``.
        config: section ``algo.reward_weights``.

    Attributes:
        names: names of the rewards.
        discounts: (S,) discount of each reward; None for the algorithm's discount.
        mean: (S,) moving mean of each reward per step.
        fixed: (S,) weights of the rewards without multipliers, saved in checkpoints. A weight with a schedule is taken
            from the schedule instead.
    """

    mean: Tensor
    fixed: Tensor
    steps: Tensor
    _bounds: Tensor
    _signs: Tensor

    def __init__(self, rewards: RewardsConfig, config: RewardWeightsConfig) -> None:
        super().__init__()
        self.config = config
        named: dict[str, NamedReward] = dict(rewards.items())
        self.names = tuple(named)
        self.discounts = tuple(reward.discount for reward in named.values())
        bounded = {
            name: (1.0, reward.at_most) if reward.at_most is not None else (-1.0, reward.at_least)
            for name, reward in named.items()
            if reward.is_bounded
        }
        self._rows = [self.names.index(name) for name in bounded]
        raw = torch.full((len(bounded),), float(config.initial)).expm1().log()
        self.raw = nn.Parameter(raw)
        self._scheduled = [
            (row, reward)
            for row, reward in enumerate(named.values())
            if has_schedule(reward, "weight")
        ]
        weights = [schedule_of(reward, "weight").at(0.0) for reward in named.values()]
        self.register_buffer("fixed", torch.tensor(weights, dtype=torch.float32))
        for name, values in {
            "_signs": [sign for sign, _ in bounded.values()],
            "_bounds": [bound for _, bound in bounded.values()],
        }.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)
        self.register_buffer("mean", torch.zeros(len(named)))
        self.register_buffer("steps", torch.zeros((), dtype=torch.float64))

    @property
    def multipliers(self) -> Tensor:
        """(C,) multipliers of the constraints."""
        return nn.functional.softplus(self.raw)

    def weights(self) -> Tensor:
        """Return the weights (S,) of the rewards, without gradient."""
        multipliers = self.multipliers.detach()
        total = self.fixed.clone()
        for row, reward in self._scheduled:
            total[row] = reward.weight
        total[self._rows] -= self._signs * multipliers
        return total / (1.0 + multipliers.sum())

    def combined(self, signals: Tensor) -> Tensor:
        """Return the reward (*B,) of named rewards (*B, S)."""
        return signals @ self.weights()

    def total(self, values: Tensor) -> Tensor:
        """Return the weighted sum (*B,) of values (*B, S + 1): of named rewards, and last of additions (weight 1)."""
        return values[..., :-1] @ self.weights() + values[..., -1]

    def total_distance(self, distances: Tensor) -> Tensor:
        """Return the sum (*B,) of nonnegative distances (*B, S + 1), with the absolute weights of the rewards."""
        return distances[..., :-1] @ self.weights().abs() + distances[..., -1]

    def signs(self) -> Tensor:
        """Return (S + 1,): 1 for each value with a positive weight in the total, -1 for each with a negative weight."""
        weights = self.weights()
        return torch.where(torch.cat([weights, weights.new_ones(1)]) < 0, -1.0, 1.0)

    def pessimistic(self, values: Tensor, weight: float = 1.0) -> Tensor:
        """Return the worst values (*B, S + 1) over the members of an ensemble (E, *B, S + 1).

        Args:
            values: values of each member.
            weight: weight of the worst value; the best value has the weight 1 - ``weight``.
        """
        signs = self.signs()
        signed = values * signs
        worst = signed.amin(0)
        if weight != 1.0:
            worst = weight * worst + (1.0 - weight) * signed.amax(0)
        return worst * signs

    def observe(self, signals: NDArray[np.float32], ranks: Ranks = ALONE) -> None:
        """Update the moving means with named rewards (n, S) of n steps on each rank; means stay equal on all ranks."""
        sums = ranks.table([len(signals), *signals.sum(0, dtype=np.float64)]).sum(0)
        count = int(sums[0])
        if not count:
            return
        before, memory = float(self.steps), float(self.config.memory_steps)
        self.steps += count
        # The first steps have equal weights, because a moving mean that starts at 0 would at first seem to keep all
        # upper bounds.
        is_young = before + count <= memory
        kept = before / (before + count) if is_young else (1.0 - 1.0 / memory) ** count
        now = torch.as_tensor(sums[1:] / count, dtype=torch.float32, device=self.mean.device)
        self.mean.lerp_(now, 1.0 - kept)

    def breaks(self) -> Tensor:
        """Return (C,): by how much each mean violates its bound; negative where the bound is kept."""
        return self._signs * (self.mean[self._rows] - self._bounds)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss that trains the multipliers, and scalars to log."""
        info = {
            f"Rewards/{name}": mean
            for name, mean in zip(self.names, self.mean.clone(), strict=True)
        }
        for row, value in zip(self._rows, self.multipliers.detach(), strict=True):
            info[f"Rewards/{self.names[row]}_Multiplier"] = value
        return -(self.multipliers * self.breaks()).sum(), info


def add_reward_weights(nets: nn.ModuleDict, config: Any) -> None:
    """Add the network of the reward weights to ``nets``, if the section names rewards."""
    if config.rewards:
        nets[NETWORK] = RewardWeights(config.rewards, config.reward_weights)


def reward_weights_in(nets: nn.ModuleDict) -> RewardWeights | None:
    """Return the network of the reward weights; None if the algorithm's section names no rewards."""
    return cast(RewardWeights, nets[NETWORK]) if NETWORK in nets else None


def set_reward_weights(nets: nn.ModuleDict, weights: Sequence[float] | Tensor) -> None:
    """Set the weights (S,) of an algorithm's named rewards, without the multipliers of constraints.

    Raises:
        ConfigError: the algorithm has no named rewards, or their number is not the number of weights.
    """
    found, new = reward_weights_in(nets), torch.as_tensor(weights, dtype=torch.float32)
    names = () if found is None else found.names
    if found is None or new.shape != found.fixed.shape:
        raise ConfigError(
            f"algo.rewards has {len(names)} names ({', '.join(names)}), but the weights have shape "
            f"{tuple(new.shape)}: give one weight per name"
        )
    found.fixed.copy_(new)


def added(values: Tensor, more: Tensor) -> Tensor:
    """Add ``more`` (*B,), such as an entropy, to the last of values (*B, S + 1), which is for additions."""
    return torch.cat([values[..., :-1], values[..., -1:] + more.unsqueeze(-1)], dim=-1)


def num_values(config: Any) -> int:
    """Return the number of values S + 1 if the algorithm learns one value per named reward, else 0."""
    return len(config.rewards) + 1 if config.rewards and config.value_per_reward else 0


def refusals(config: Any, whole: BaseConfig) -> list[str]:
    """Return messages for settings that cannot be combined with the named rewards of the section ``config``."""
    if not config.rewards:
        return []
    online, reward, rnn = whole.train.online, whole.train.reward, config.get("rnn", None)
    replays = config.data_needs(whole).transitions is not None
    critic, has_values = config.get("critic", None), config.value_per_reward
    bounds = None if critic is None else critic.get("value_bounds", None)
    own_discount = any(entry.discount is not None for _, entry in config.rewards.items())
    bounds_of = [name for name, entry in config.rewards.items() if entry.is_bounded]
    transformed = reward != type(reward)()
    own = getattr(config, "reward_free", False) or getattr(config, "reward_source", None)
    found = {
        f"multipliers of bounds ({', '.join(bounds_of)}) follow the steps of the policy, but "
        "train.online.enabled is false: give weights alone, or train in an environment": bool(
            bounds_of
        )
        and not online.enabled,
        "hindsight computes a single reward: set train.online.hindsight.enabled to false": online.hindsight.enabled,
        "train.reward transforms a single reward: leave it out, and set weights": transformed
        and (replays or has_values),
        "a repeated action sums a single reward: leave 'repeated' out of train.online.wrappers": bool(
            online.repeats
        ),
        "a learned model predicts a single reward: leave algo.dynamics out": has_values
        and config.get("dynamics", None) is not None,
        "algo.critic.value_bounds bounds a single value: set it to null": has_values
        and bounds is not None,
        f"{whole.algo_name} learns one value of all rewards: leave out discounts of single rewards": not has_values
        and own_discount,
        "sequences have no named rewards: set algo.rnn.enabled to false": replays
        and rnn is not None
        and rnn.enabled,
        f"{whole.algo_name} computes its own rewards: leave it out": bool(own),
    }
    return [f"algo.rewards: {words}" for words, holds in found.items() if holds]


def sources_of(config: Any) -> tuple[str, ...]:
    """Return the sources of the named rewards of an algorithm's section; an empty tuple if it names no rewards."""
    return tuple(reward.source for _, reward in (config.get("rewards", None) or {}).items())


def array_of(source: str) -> str:
    """Return the name of the array in a demo that contains the rewards of a source."""
    return "rewards" if source == "reward" else SIGNALS + source.removeprefix(INFO)
