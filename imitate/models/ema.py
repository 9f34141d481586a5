"""Exponential moving average of a network's weights.

The warm-up is that of Diffusion Policy (Chi et al. 2023, arXiv:2303.04137): the average follows the weights quickly at
first and more and more slowly later.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from imitate.errors import CheckpointError


class EMA:
    """Averaged copy of a module; evaluate :attr:`module` instead of the original.

    Update k (counted from 0) uses the decay ``1 - (1 + n / inv_gamma) ** -power`` with
    ``n = k - 1 - update_after_step``, at most ``max_decay``; while ``n <= 0`` the weights are copied.
    Parameters that are not trained and buffers (BatchNorm's statistics) are copied at each update.

    Args:
        source: the module in training; the average starts as a copy of it.
        power: speed of the warm-up: 2/3 for a million updates and more, 3/4 for fewer.
        inv_gamma: time scale of the warm-up in updates.
        max_decay: largest decay, at which the warm-up ends.
        decay: a constant decay instead of the warm-up.
        update_after_step: number of first updates that only copy the weights.
    """

    def __init__(
        self,
        source: nn.Module,
        *,
        power: float = 0.75,
        inv_gamma: float = 1.0,
        max_decay: float = 0.9999,
        decay: float | None = None,
        update_after_step: int = 0,
    ) -> None:
        self.power = power
        self.inv_gamma = inv_gamma
        self.max_decay = max_decay
        self.constant_decay = decay
        self.update_after_step = update_after_step
        self.num_updates = 0
        self.module = copy.deepcopy(source).requires_grad_(False).eval()
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase):
                # the weights of a copy are not contiguous, which cuDNN would fix in each call
                part.flatten_parameters()

    def decay_at(self, update: int) -> float:
        """Return the decay in update number ``update``, counted from 0: the weight of the old average."""
        warm = update - 1 - self.update_after_step
        if self.constant_decay is not None:
            return self.constant_decay if warm >= -1 else 0.0
        if warm <= 0:
            return 0.0
        risen = 1.0 - math.pow(1.0 + warm / self.inv_gamma, -self.power)
        return min(self.max_decay, risen)

    @torch.no_grad()
    def update(self, source: nn.Module) -> None:
        """Move the average towards the weights of ``source``, in place."""
        old: list[Tensor] = []
        new: list[Tensor] = []
        for average, value in zip(self.module.parameters(), source.parameters(), strict=True):
            if value.requires_grad:
                old.append(average)
                new.append(value)
            else:
                average.copy_(value)
        if old:
            torch._foreach_lerp_(old, new, 1.0 - self.decay_at(self.num_updates))
        for shadow, buffer in zip(self.module.buffers(), source.buffers(), strict=True):
            shadow.copy_(buffer)
        self.num_updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs: tensors and one number."""
        return {"num_updates": self.num_updates, "module": self.module.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`, but keep the settings of the constructor."""
        missing = {"num_updates", "module"} - set(state)
        if missing:
            raise CheckpointError(
                f"the moving average in the checkpoint lacks {sorted(missing)}; found {sorted(state)}"
            )
        self.num_updates = int(state["num_updates"])
        self.module.load_state_dict(state["module"])


def averaging(config: Any) -> Any:
    """Return the section ``ema`` of an algorithm's section, or None if no average is kept."""
    section = config.get("ema", None)
    return section if section is not None and section.enabled else None
