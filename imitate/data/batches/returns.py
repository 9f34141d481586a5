"""Returns of demos at each step, for algorithms that learn from them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.data_needs import Returns
from imitate.functional.returns import returns_to_go
from imitate.functional.transfer import to_device

Rows = NDArray[np.int64]


class ReturnTable:
    """Return and step number of each row.

    Args:
        rewards: (N,) rewards of all demos, one after another.
        terminals: (N,) 1 where the task ended.
        demo_start: (number of demos,) first row of each.
        demo_end: (number of demos,) index after the last row of each.
        wanted: discount, and the treatment of truncated demos.

    Attributes:
        best: the highest return of a whole demo.
        largest: the largest magnitude of the return from any step on.
    """

    def __init__(
        self,
        rewards: NDArray[np.float32],
        terminals: NDArray[np.float32],
        demo_start: Rows,
        demo_end: Rows,
        wanted: Returns,
    ) -> None:
        values = returns_to_go(
            rewards,
            terminals,
            demo_start,
            demo_end,
            wanted.discount,
            continue_truncated=wanted.continue_truncated,
        )
        self.best = float(values[demo_start].max())
        self.largest = float(np.abs(values).max())
        self._returns = torch.from_numpy(values)
        number = np.arange(len(values)) - np.repeat(demo_start, demo_end - demo_start)
        self._steps = torch.from_numpy(number)

    def at(self, rows: Rows) -> dict[str, Tensor]:
        """Return ``returns`` float32 and ``step`` int64, with the shape of ``rows``."""
        index = to_device(torch.from_numpy(rows), self._returns.device)
        return {"returns": self._returns[index], "step": self._steps[index]}

    def to(self, device: torch.device | str) -> None:
        """Move the numbers to a device."""
        self._returns, self._steps = self._returns.to(device), self._steps.to(device)
