"""Slot ``entropy`` of algorithms with rollouts: the weight of the policy's entropy follows the entropy.

The rules of ALF's ``entropy_target_algorithm`` (github.com/HorizonRobotics/alf), with the weight alpha, the mean
entropy H of the last two minibatches, the target H* and the signs below, above (H against H*), falling, rising (H
against the one before):

    sgd       log alpha <- log alpha - rate (H - H*), with H of the minibatch, as in SAC (arXiv:1812.05905)
    stages    1. until H < min(0.8 H_0, H_0 / 0.8): log alpha <- log alpha + 0.001 (0.5 if falling, else -1)
              2. until H < H*: alpha stays
              3. log alpha <- log alpha + r ((below + 0.5 above) falling - (above + 0.5 below) rising)

r begins with log 2; it is multiplied by 0.9 whenever H crosses H*, but at least 0.01, and is log 2 again where the
minibatch has less than half of H*, twice H* if that is negative. So alpha also falls while H rises from below, before
it is too large. H_0 is measured on the first two minibatches.

Departures: alpha changes after an update instead of before it. All ranks use their mean entropy.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.config import Section

NETWORK = "entropy_rule"
"""Name of the rule among the networks."""
FIRST, INITIAL, FREE, BELOW, ABOVE = -4, -2, -1, 0, 1
"""Stages; until the initial one, the first two minibatches are measured."""
FAST, SLOW, VERY_SLOW = math.log(2.0), 0.01, 0.001
"""Rates at which the logarithm of alpha changes."""


class EntropyRuleConfig(Section):
    """Rule of the weight of the policy's entropy."""

    rule: Literal["fixed", "sgd", "stages"] = Field(
        "fixed",
        description="fixed: entropy_weight; sgd: it rises while the entropy is below its target, and falls above it; "
        "stages: it stays until the entropy has fallen to the target, and then keeps it there",
    )
    initial: float = Field(0.1, gt=0, description="initial weight")
    minimum: float = Field(1e-4, gt=0, description="smallest weight")
    target: float | None = Field(
        None,
        description="target entropy in nats; null: -(numbers of an action), or half of log(choices)",
    )
    rate: float = Field(
        0.01, gt=0, description="sgd: change of the logarithm per nat from the target"
    )


class EntropyRule(nn.Module):
    """Weight of the entropy and what its rule remembers, all of which is saved.

    Args:
        config: section ``algo.entropy``.
        target: H*.
    """

    log_weight: Tensor
    stage: Tensor
    rate: Tensor
    start: Tensor
    recent: Tensor

    def __init__(self, config: EntropyRuleConfig, target: float) -> None:
        super().__init__()
        self.config, self.target = config, target
        self._lowest = 0.5 * target if target > 0 else 2.0 * target
        self.register_buffer("log_weight", torch.tensor(math.log(config.initial)))
        self.register_buffer("stage", torch.tensor(FIRST))
        self.register_buffer("rate", torch.tensor(FAST))
        self.register_buffer("start", torch.tensor(0.0))
        self.register_buffer("recent", torch.zeros(2))

    @property
    def weight(self) -> Tensor:
        """Alpha, ()."""
        return self.log_weight.exp()

    @torch.no_grad()
    def follow(self, entropy: Tensor) -> None:
        """Change alpha after an update on a minibatch of this mean entropy ()."""
        above, rate = entropy - self.target, self.config.rate
        change = -rate * above if self.config.rule == "sgd" else self._of_stages(entropy)
        self.log_weight.add_(change).clamp_(min=math.log(self.config.minimum))

    def _of_stages(self, entropy: Tensor) -> Tensor:
        """Return the change of log alpha, and move on the stages."""
        seen = self.stage - FIRST  # entropies so far; means are over the last two at most
        before = self.recent.sum() / seen.clamp(1, 2)
        self.recent.copy_(torch.stack([self.recent[1], entropy]))
        mean = self.recent.sum() / (seen + 1).clamp(max=2)
        falling, above = (mean < before).float(), mean > self.target
        measures = self.stage < INITIAL
        self.start.copy_(torch.where(measures, torch.minimum(0.8 * mean, mean / 0.8), self.start))
        self.stage += measures.long()
        begins = self.stage == INITIAL
        change = torch.where(begins, VERY_SLOW * (1.5 * falling - 1.0), 0.0)
        self.stage += (begins & (mean < self.start)).long()
        self.stage += ((self.stage == FREE) & (mean < self.target)).long()
        adjusts = self.stage >= BELOW
        crossed = adjusts & (above != (self.stage == ABOVE))
        rate = torch.where(crossed, 0.9 * self.rate, self.rate).clamp(min=SLOW)
        rate = torch.where(entropy < self._lowest, FAST, rate)
        self.rate.copy_(torch.where(adjusts, rate, self.rate))
        up, down = torch.where(above, 0.5, 1.0), torch.where(above, 1.0, 0.5)
        change = change + torch.where(adjusts, rate * (up * falling - down * (1.0 - falling)), 0.0)
        self.stage.copy_(torch.where(adjusts, above.long(), self.stage))
        return change
