"""Slot ``trust_region`` of algorithms with rollouts: no update changes the policy by more than a distance (TRAC).

Trust-region actor-critic of ALF (github.com/HorizonRobotics/alf, ``trac_algorithm``). After an optimizer step from the
weights w_0 to w, with the policies pi_0 and pi in the N states of the minibatch and the number D of choices, or of
action dimensions:

    discrete   d^2 = sum over states and choices of (log pi - log pi_0)^2, / N             -> distance
    continuous d^2 = sum over states of KL(pi_0 || pi) + KL(pi || pi_0), / N               -> distance
    while d > c = sqrt(trust_region D):  w <- w_0 + 0.9 c / d (w - w_0)                    -> TrustRegion.shrink

For choices, a KL divergence would be small where one choice has nearly all the probability, even if the logits of other
choices change much. Departure: ALF compares logits as the network gives them; here they are normalized, because a
constant that is added to all logits does not change the policy.
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from imitate.functional.losses import gaussian_kl
from imitate.models.actor import PolicyAndValue, StochasticPolicy
from imitate.models.categorical import Categorical
from imitate.models.heads import Gaussian
from imitate.system.ranks import Ranks

MOST = 100
"""Largest number of times that one optimizer step is shortened."""
OF_VALUE = ("value", "value_head", "more")
"""Submodules of :class:`PolicyAndValue` that only the value uses."""


def distance(before: StochasticPolicy, after: StochasticPolicy) -> Tensor:
    """Return the squared distance between two policies, a mean () over the states of a minibatch."""
    if isinstance(before, Categorical) and isinstance(after, Categorical):
        changes = (after.logits - before.logits).square()
        allowed = before.probabilities > 0
        return torch.where(allowed, changes, 0.0).sum(-1).mean()
    one, other = (
        (policy.mean, 2.0 * policy.stds.log())
        for policy in (cast(Gaussian, before), cast(Gaussian, after))
    )
    return (gaussian_kl(*one, *other) + gaussian_kl(*other, *one)).mean()


class TrustRegion:
    """Weights and policy before an update, and a limit on the distance of the policy after it.

    Args:
        net: the network that is updated.
        policy: function that returns the policy in the minibatch's states, computed with the current weights.
        size: D, number of choices, or of action dimensions.
        limit: largest squared distance per choice or action dimension, ``algo.trust_region``.
        ranks: the processes that train together.
    """

    def __init__(
        self,
        net: PolicyAndValue,
        policy: Callable[[], StochasticPolicy],
        size: int,
        limit: float,
        ranks: Ranks,
    ) -> None:
        self._policy, self._ranks = policy, ranks
        self._most = math.sqrt(limit * size)
        self._weights: list[nn.Parameter] = [
            weight
            for name, weight in net.named_parameters()
            if name.partition(".")[0] not in OF_VALUE
        ]
        with torch.no_grad():
            self._old = [weight.clone() for weight in self._weights]
            self._before = policy()

    @torch.no_grad()
    def shrink(self) -> tuple[float, int]:
        """Shorten the step until its distance is within the limit; return the first distance and the number of cuts."""
        first = found = self._distance()
        number = 0
        while found > self._most and number < MOST:
            share = 0.9 * self._most / found
            for weight, old in zip(self._weights, self._old, strict=True):
                weight.copy_(torch.lerp(old, weight, share))
            found, number = self._distance(), number + 1
        return first, number

    def _distance(self) -> float:
        own = float(distance(self._before, self._policy()))
        return math.sqrt(self._ranks.total(own) / self._ranks.world)
