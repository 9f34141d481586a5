"""Transitions: the rewards that follow a sample's step, and the state from which the remaining return is estimated.

For the step t of a demo, with rewards r, discount g and n steps, m = n, or fewer if a terminal or the last step with a
known successor comes first:

    n_step_rewards = r[t] + g r[t+1] + ... + g^(m-1) r[t+m-1]
    discounts      = 0 if t+m-1 is terminal, else g^m
    next_obs       = the observation after step t+m-1
    next_actions   = the action of step t+m

A timeout is not a terminal: the state after it has a value. That state is stored in ``next_obs``. If a file has no
``next_obs``, or the next action is needed, the step after a demo's last one is unknown. Sums then end one step earlier,
and the demo's last step, unless it is terminal, is not a transition and has weight 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.data_needs import Transitions
from imitate.functional.transfer import to_device

Rows = NDArray[np.int64]


class TransitionTable(NamedTuple):
    """The transition that begins at each of N rows.

    Attributes:
        last: (N,) index of the last row whose reward is summed.
        rewards: (N,) float32 discounted sum.
        discounts: (N,) float32 discount factor of the estimated value; 0 after a terminal.
        usable: (N,) bool, false if the successor is unknown.
    """

    last: Rows
    rewards: NDArray[np.float32]
    discounts: NDArray[np.float32]
    usable: NDArray[np.bool_]


def transition_table(
    rewards: NDArray[np.float32],
    terminals: NDArray[np.float32],
    demo_end: Rows,
    wanted: Transitions,
    *,
    end_is_known: bool,
) -> TransitionTable:
    """Compute all transitions of a store.

    Args:
        rewards: (N,).
        terminals: (N,) 1 where the task ended.
        demo_end: (number of demos,) index after each demo's last row.
        wanted: settings of the transitions, such as discount and number of steps.
        end_is_known: true if the state (and action) after a demo's last step is known.
    """
    count = len(rewards)
    rows = np.arange(count)
    ended = terminals > 0
    if wanted.infinite_horizon:
        rewards = np.where(ended, rewards / (1.0 - wanted.discount), rewards)
    final = demo_end - 1
    known = final if end_is_known else np.where(ended[final], final, final - 1)
    limit = np.repeat(known, np.diff(demo_end, prepend=0))
    total, discounts, last = np.zeros(count), np.zeros(count), rows.copy()
    usable = rows <= limit
    going = usable.copy()
    for k in range(wanted.n_step):
        going &= rows + k <= limit
        if not going.any():
            break
        step = np.minimum(rows + k, count - 1)
        total += np.where(going, wanted.discount**k * rewards[step], 0.0)
        discounts = np.where(going, wanted.discount ** (k + 1) * ~ended[step], discounts)
        last = np.where(going, step, last)
        going &= ~ended[step]
    return TransitionTable(last, total.astype(np.float32), discounts.astype(np.float32), usable)


class TransitionPicker:
    """Lookup of the samples' transitions.

    Args:
        table: transitions of all rows.
        demo_start: (number of demos,) index of the first row of each demo.
        frame_stack: number of observations that a policy sees, up to the current one.
    """

    def __init__(self, table: TransitionTable, demo_start: Rows, frame_stack: int) -> None:
        self.table = table
        self.numbers = torch.from_numpy(np.stack([table.rewards, table.discounts], axis=-1))
        self._demo_start = demo_start
        self._before = np.arange(1 - frame_stack, 0)

    def to(self, device: torch.device | str) -> None:
        """Move the numbers to a device."""
        self.numbers = self.numbers.to(device)

    def numbers_at(self, rows: Rows) -> dict[str, Tensor]:
        """Return ``n_step_rewards`` and ``discounts`` of the transitions that begin at ``rows`` (B,)."""
        values = self.numbers[to_device(torch.from_numpy(rows), self.numbers.device)]
        return {"n_step_rewards": values[:, 0], "discounts": values[:, 1]}

    def next_frames(self, rows: Rows, demo: Rows) -> tuple[Rows, Rows]:
        """Return rows of the frames that a policy sees after the transitions from ``rows`` (B,) of the demos ``demo``.

        Returns:
            (B, frame_stack - 1) rows of the observations before the newest, in which the demo's first may be repeated;
            (B, 1) row after which the newest was observed.
        """
        last = self.table.last[rows][:, None]
        before = np.maximum(last + 1 + self._before, self._demo_start[demo][:, None])
        return before, last
