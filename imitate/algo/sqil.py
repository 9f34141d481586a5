"""Soft Q imitation learning: SAC in which the expert's steps have reward 1 and the policy's own 0.

Reddy, Dragan, Levine, "SQIL: Imitation Learning via Reinforcement Learning with Sparse Rewards", ICLR 2020
(arXiv:1905.11108). Each batch is half demonstrations (``train.online.demo_ratio``). Critics, actor and temperature
learn as in ``sac``; the rewards of the environment are not looked at:

    r = 1 for demonstrations, 0 for practice                                               -> SQIL._select_batch

Departure: what follows a terminal goes on for ever with the same reward, r / (1 - discount) in place of r. Otherwise an
expert that ends its task would be worse off for that, and a policy that drops what it holds could be better off.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from imitate.algo.algo import Algo, Batch
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.sac import SAC, SACConfig


class SQILConfig(SACConfig):
    """Section ``algo`` of algorithm ``sqil``."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True, "demo_ratio": 0.5}}}
    reward_free: ClassVar[bool] = True
    """Demonstrations need no rewards."""

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        problems = super().conflicts(config)
        if not config.train.online.enabled or not 0 < config.train.online.demo_ratio < 1:
            problems.append(
                f"train.online.demo_ratio: {config.algo_name} tells demonstrations from practice: enable train.online, "
                "with a share between 0 and 1, such as 0.5"
            )
        if self.n_step != 1:
            problems.append(
                f"algo.n_step is {self.n_step}, but {config.algo_name}'s rewards are of one step: set it to 1"
            )
        return problems


@register_algo_factory_func("sqil", section=SQILConfig)
def algo_config_to_class(algo_config: SQILConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return SQIL, {}


class SQIL(SAC):
    """Rewards by who acted."""

    def _select_batch(self, batch: Batch) -> Batch:
        """The transition at the window's step; without ``part`` all are demonstrations."""
        selected = super()._select_batch(batch)
        discounts = selected["discounts"]
        reward = torch.ones_like(discounts)
        if "part" in batch:
            reward = (batch["part"] > 0).to(reward)
        for_ever = 1.0 / max(1.0 - self.algo_config.discount, 1e-3)
        selected["rewards"] = torch.where(discounts == 0, for_ever * reward, reward)
        return selected
