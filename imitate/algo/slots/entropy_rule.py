"""Slot ``entropy`` of algorithms with rollouts: a rule that adapts the weight of the policy's entropy.

The rules of ALF's ``entropy_target_algorithm`` (github.com/HorizonRobotics/alf), with the weight alpha, the mean
entropy H of the last two minibatches, the target H*, and the indicators (0 or 1) below and above, which compare H with
H*, falling and rising, which compare H with the previous H:

    sgd       log alpha <- log alpha - rate (H - H*), with H of the minibatch, as in SAC (arXiv:1812.05905)
    stages    1. until H < min(0.8 H_0, H_0 / 0.8): log alpha <- log alpha + 0.001 (0.5 if falling, else -1)
              2. until H < H*: alpha stays
              3. log alpha <- log alpha + r ((below + 0.5 above) falling - (above + 0.5 below) rising)

r begins with log 2 and is multiplied by 0.9 whenever H crosses H*, down to 0.01. It is reset to log 2 when the entropy
of a minibatch is below H* / 2, or below 2 H* if H* is negative. So alpha also falls while H still rises from below,
before H is too large. H_0 is measured on the first two minibatches.

Departures: alpha changes after an update instead of before it. All ranks use the mean entropy over the ranks.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.config import Section

NETWORK = "entropy_rule"
"""Name of the rule's module among the networks."""
FIRST, INITIAL, FREE, BELOW, ABOVE = -4, -2, -1, 0, 1
"""Stages of the rule ``stages``. Before ``INITIAL``, the entropies of the first two minibatches are measured."""
FAST, SLOW, VERY_SLOW = math.log(2.0), 0.01, 0.001
"""Changes of the logarithm of alpha per update: largest, smallest, and in the initial stage."""


class EntropyRuleConfig(Section):
    """Rule that adapts the weight of the policy's entropy."""

    rule: Literal["fixed", "sgd", "stages"] = Field(
        "fixed",
        description="weight of the entropy. fixed: always entropy_weight; sgd: rises while the entropy is below its "
        "target and falls while it is above; stages: stays nearly constant until the entropy has fallen to the "
        "target, then keeps the entropy there",
    )
    initial: float = Field(0.1, gt=0, description="initial weight of the entropy")
    minimum: float = Field(1e-4, gt=0, description="smallest weight of the entropy")
    target: float | None = Field(
        None,
        description="target entropy in nats; null: minus the number of action dimensions, or half of log(number of "
        "choices)",
    )
    rate: float = Field(
        0.01,
        gt=0,
        description="for sgd: change of the logarithm of the weight per update and per nat of distance from the target",
    )


class EntropyRule(nn.Module):
    """Weight of the entropy and the state of its rule, which checkpoints contain.

    Args:
        config: section ``algo.entropy``.
        target: H*, the target entropy in nats.
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
        """Alpha, the weight of the entropy, a scalar tensor."""
        return self.log_weight.exp()

    @torch.no_grad()
    def follow(self, entropy: Tensor) -> None:
        """Adapt alpha after an update, given the mean entropy () of the minibatch."""
        above, rate = entropy - self.target, self.config.rate
        change = -rate * above if self.config.rule == "sgd" else self._of_stages(entropy)
        self.log_weight.add_(change).clamp_(min=math.log(self.config.minimum))

    def _of_stages(self, entropy: Tensor) -> Tensor:
        """Return the change of log alpha by the rule ``stages``, and advance the stage."""
        # number of entropies so far; the following means are over at most the last two
        seen = self.stage - FIRST
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
