"""Cal-QL: CQL whose values stay on the scale of returns, so that fine-tuning online does not begin with a fall.

Nakamoto, Zhai, Singh et al., "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning", NeurIPS
2023 (arXiv:2303.05479). All is as in :mod:`imitate.algo.cql`, except that the policy's actions are not pushed below V,
the value of the policy that made the data:

    in the conservative term Q(s, a) of a ~ pi(s), pi(s') counts as max(Q(s, a), V(s))                -> CalQL._counted
    V(s_t) = the rewards from t to the end of the demo, discounted                    -> imitate.functional.returns

A demo that ends without a terminal goes on for ever with its last reward (``continue_truncated``): so does the
published code with failed episodes of tasks whose only rewards are "done" and "not yet", and bootstrapping at timeouts
means the same. Set it to false for dense rewards whose last one says little about what would come.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.algo import Algo, Batch
from imitate.algo.cql import CQL, CQLConfig, CQLCriticConfig
from imitate.algo.factory import register_algo_factory_func
from imitate.config.transitions import Returns
from imitate.functional.conservative import calibrated


class CalQLCriticConfig(CQLCriticConfig):
    """The critics; the weight is fixed unless ``target_q_gap`` is given."""

    cql_weight: float = Field(
        5.0, gt=0, description="weight of the conservative term; where it is tuned, at the start"
    )
    target_q_gap: float | None = Field(
        None, description="the weight is tuned until the gap is this; null or negative: it is fixed"
    )


class CalQLConfig(CQLConfig):
    """Section ``algo`` of algorithm ``cal_ql``."""

    critic: CalQLCriticConfig = Field(CalQLCriticConfig())
    continue_truncated: bool = Field(
        True,
        description="returns of demos without a terminal: the last reward for ever; false: nothing more",
    )

    def returns(self, config: Any) -> Returns:
        """Discounted returns of the rewards that are learned from."""
        return Returns(discount=self.discount, continue_truncated=self.continue_truncated)

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        problems = super().conflicts(config)
        if self.infinite_horizon:
            problems.append(
                "algo.infinite_horizon is true, but the returns of cal_ql are of the rewards as they are: set it to "
                "false"
            )
        return problems


@register_algo_factory_func("cal_ql", section=CalQLConfig)
def algo_config_to_class(algo_config: CalQLConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return CalQL, {}


class CalQL(CQL):
    """CQL, calibrated by the returns of the data."""

    def _select_batch(self, batch: Batch) -> Batch:
        """The transition, and the return from its step on."""
        returns = batch["returns"][:, self.frame_stack - 1]
        return {**super()._select_batch(batch), "returns": returns}

    def _counted(self, values: Tensor, batch: Batch) -> Tensor:
        """Those of the policy are at least the return; random actions' count as they are."""
        number = self.algo_config.critic.num_random_actions
        of_policy = calibrated(values[..., number:], batch["returns"])
        return torch.cat([values[..., :number], of_policy], dim=-1)
