"""Replay buffer of step sequences with the recurrent state at their beginning.

As in R2D2 (Kapturowski et al., ICLR 2019): the state before a sequence is the one stored when the step was taken, with
the weights of that time; up to ``burn_in`` steps before the sequence update it. Departures: states are stored for every
step, so sequences may begin anywhere; no sequence extends beyond an episode's end.

A sequence is drawn by choosing uniformly a step and its position among the ``seq_length`` steps of the sequence; the
sequence does not begin before its episode. So a short episode is nearly always sampled as a whole, and all steps are in
about equally many sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.algo.base.recurrence import STORED
from imitate.online.replay import ReplayBuffer
from imitate.online.step_sums import n_step_sums
from imitate.online.steps import Array, Step


class SequenceReplay(ReplayBuffer):
    """Replays sequences of up to L steps.

    Args:
        state_shapes: shape (layers, H) per step of each part of the recurrent state, which is in the steps' ``extras``.
        seq_length: largest length L of a sequence.
        burn_in: largest number of steps before a sequence whose observations are included.
        **kwargs: arguments of :class:`ReplayBuffer`.
    """

    def __init__(
        self,
        *args: Any,
        state_shapes: Mapping[str, tuple[int, ...]],
        seq_length: int,
        burn_in: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.seq_length, self.burn_in = seq_length, burn_in
        self.states = {
            STORED + name: np.zeros((len(self.live), *shape), dtype=np.float32)
            for name, shape in state_shapes.items()
        }

    @property
    def stored(self) -> dict[str, Array]:
        """Return the arrays of the base class and the recurrent states."""
        return {**super().stored, **self.states}

    def add(self, step: Step, lanes: NDArray[np.int64] | None = None) -> None:
        """Store a step, and the recurrent states before it."""
        where = self._lanes if lanes is None else lanes
        kept = slice(None) if step.lost is None else ~step.lost
        rows = self.position[where[kept]] * self.num_envs + where[kept]
        for name, states in self.states.items():
            states[rows] = step.extras[name][kept]
        super().add(step, lanes)

    # ---- sampling --------------------------------------------------------------------------------

    def _draw(self, size: int) -> NDArray[np.int64]:
        """Draw rows of the first steps of sequences."""
        rows = super()._draw(size)
        places = self.generator.integers(self.seq_length, size=size)
        return self.later(rows, -np.minimum(places, self.steps_before(rows)))

    def at(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return the sequences that begin at these rows.

        Returns:
            raw values as tensors, with U = ``burn_in`` and n = ``n_step``: ``obs`` {key: (B, U + L + n, ...)}, of which
            the first U are those before the sequence, from the left and padded; ``actions`` (B, L, A),
            ``n_step_rewards``, ``discounts`` (B, L); ``ahead`` (B, L) steps from each to what its value is
            bootstrapped from; ``mask`` (B, L) false beyond the end; ``burn_in`` (B,) steps before the sequence;
            ``memory/<name>`` (B, layers, H) state before the first of these; ``index`` (B,) the rows.
        """
        length, number = self.seq_length, self.transitions.n_step
        offsets = np.arange(length + number - 1)
        real = np.cumprod(self.live[self.later(rows[:, None], offsets)], axis=1)
        counts = real.sum(1, keepdims=True)
        following = np.minimum(np.arange(length + number), counts)
        before = np.minimum(self.burn_in, self.steps_before(rows))[:, None]
        preceding = np.minimum(np.arange(self.burn_in), before) - before
        shown = self.later(rows[:, None], np.concatenate([preceding, following], axis=1))
        steps = self.later(rows[:, None], np.minimum(np.arange(length), counts - 1))
        _, sums, factors = n_step_sums(self, steps.reshape(-1), self.transitions, self.reward)
        first = self.later(rows, -before[:, 0])
        return {
            "obs": self._obs(self.vectors.take(shown, axis=0), shown),
            "actions": torch.from_numpy(self.actions.take(steps, axis=0)),
            "n_step_rewards": torch.from_numpy(sums.reshape(steps.shape)),
            "discounts": torch.from_numpy(factors.reshape(steps.shape)),
            "ahead": torch.from_numpy(_sums_of(real, number)),
            "mask": torch.from_numpy(real[:, :length] > 0),
            "burn_in": torch.from_numpy(before[:, 0]),
            "index": torch.from_numpy(rows),
            **{name: torch.from_numpy(states[first]) for name, states in self.states.items()},
        }


def _sums_of(values: Array, number: int) -> Array:
    """Compute (B, L) sums of ``number`` successive values each, from (B, L + number - 1) values."""
    sums = np.concatenate([np.zeros_like(values[:, :1]), values.cumsum(1)], axis=1)
    windows: Array = sums[:, number:] - sums[:, :-number]
    return windows
