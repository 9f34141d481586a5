"""Numbers of batches that are not stored in files: scaled rewards, n-step sums, returns, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.data_needs import Returns, Transitions
from imitate.data.batches.returns import ReturnTable
from imitate.data.batches.rewards import RewardTransform
from imitate.data.batches.store import Store
from imitate.data.batches.transitions import TransitionPicker, transition_table
from imitate.functional.transfer import to_device

Rows = NDArray[np.int64]


class StepNumbers:
    """Numbers of the N steps of a store, computed once and looked up for each batch.

    Args:
        store: the demos, with ``rewards`` and ``terminals`` if transitions or returns are needed.
        transitions: settings of transitions; None: not needed.
        returns: settings of returns; None: not needed.
        frame_stack: number of observations that a policy sees.
        end_is_known: true if the state after a demo's last step is known.

    Attributes:
        reward: transform of the rewards.
        picker: the transitions, or None if not needed.
        returns: the returns, or None if not needed.
    """

    def __init__(
        self,
        store: Store,
        transitions: Transitions | None,
        returns: Returns | None,
        frame_stack: int,
        end_is_known: bool,
    ) -> None:
        self._store = store
        self._transitions, self._returns = transitions, returns
        self._frame_stack, self._end_is_known = frame_stack, end_is_known
        self.picker: TransitionPicker | None = None
        self.returns: ReturnTable | None = None
        self._weights: Tensor | None = None
        self.scale_rewards(RewardTransform())

    def array(self, key: str) -> NDArray[np.float32]:
        """Return an array of all steps, such as 'rewards', as stored in the file."""
        rows = np.arange(len(self._store))
        values: NDArray[np.float32] = self._store.field(key, rows).cpu().numpy()
        return values

    def scale_rewards(self, reward: RewardTransform) -> None:
        """Scale the file's rewards by ``reward``, and reset all weights to 1."""
        self.reward = reward
        if self._returns is not None:
            rewards = self.array("rewards")
            self.returns = ReturnTable(
                reward(rewards) if self._returns.scaled else rewards,
                self.array("terminals"),
                self._store.demo_start,
                self._store.demo_end,
                self._returns,
            )
        if self._transitions is not None:
            table = transition_table(
                reward(self.array("rewards")),
                self.array("terminals"),
                self._store.demo_end,
                self._transitions,
                end_is_known=self._end_is_known and not self._transitions.next_actions,
            )
            self.picker = TransitionPicker(table, self._store.demo_start, self._frame_stack)
        self.weigh_steps(np.ones(len(self._store), dtype=np.float32))

    def weigh_steps(self, weights: NDArray[np.float32]) -> None:
        """Set the weight of each of N steps; steps that are not transitions have weight 0."""
        if self.picker is not None:
            weights = weights * self.picker.table.usable
        equal = bool(np.all(weights == weights[0]))
        self._weights = None if equal else torch.from_numpy(weights)

    def add_to(self, batch: dict[str, Any], rows: Rows) -> None:
        """Add the numbers of the windows' steps ``rows`` (B, T) to a batch."""
        if "rewards" in batch and not self.reward.is_identity:
            batch["rewards"] = self.reward(batch["rewards"])
        if self.returns is not None:
            batch.update(self.returns.at(rows))
        if self.picker is not None:
            batch.update(self.picker.numbers_at(rows[:, self._frame_stack - 1]))
        if self._weights is not None:
            batch["weight"] = self._weights[to_device(torch.from_numpy(rows), self._weights.device)]

    def to(self, device: torch.device | str) -> None:
        """Move the numbers to a device."""
        for table in (self.picker, self.returns):
            if table is not None:
                table.to(device)
        if self._weights is not None:
            self._weights = self._weights.to(device)
