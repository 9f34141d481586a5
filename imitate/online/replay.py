"""Replay buffer: stores environment steps and samples batches.

Samples have the form of :class:`~imitate.data.SequenceDataset`'s with ``transitions``, so that any algorithm that
learns from demonstrations learns from this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.data_needs import Returns, Transitions
from imitate.data.batches.rewards import RewardTransform
from imitate.online.hindsight import Gathered, Hindsight
from imitate.online.ring import StepRing
from imitate.online.ring_state import restore_ring, ring_state
from imitate.online.step_sums import n_step_sums, returns_to_go
from imitate.online.steps import Array

_ONE_STEP = Transitions()
_AS_GIVEN = RewardTransform()


class ReplayBuffer(StepRing):
    """Samples of the last ``capacity`` steps of several environments.

    A subclass may sample other rows (:meth:`_draw`) and add values to a batch (:meth:`at`); all random draws use
    ``generator``, whose state is saved.

    Args:
        obs_shapes: as for :class:`StepRing`.
        action_dim: size A of an action.
        capacity: as for :class:`StepRing`.
        num_envs: number N of environments.
        images: as for :class:`StepRing`.
        transitions: form of the rewards and next observations of samples.
        returns: kind of returns to add to samples, or None.
        frame_stack: number of observations per sample, the last one the step's own; before an episode's start, its
            first observation is repeated.
        reward: transform of the rewards in samples; the environment's own are stored.
        hindsight: relabelling of the goals of some samples; needs samples of one step, without ``returns``.
        seed: seed of the sampling.
    """

    def __init__(
        self,
        obs_shapes: Mapping[str, tuple[int, ...]],
        action_dim: int,
        capacity: int,
        *,
        num_envs: int = 1,
        images: tuple[str, ...] = (),
        transitions: Transitions = _ONE_STEP,
        returns: Returns | None = None,
        frame_stack: int = 1,
        reward: RewardTransform = _AS_GIVEN,
        hindsight: Hindsight | None = None,
        seed: int = 0,
    ) -> None:
        least = transitions.n_step + 2
        super().__init__(
            obs_shapes, action_dim, capacity, num_envs=num_envs, images=images, least=least
        )
        self.transitions, self.frame_stack = transitions, frame_stack
        self.reward, self.returns, self.hindsight = reward, returns, hindsight
        self.generator = np.random.default_rng(seed)
        self._stride = np.array(self.num_envs)
        self._one_step_discounts = np.array([transitions.discount, 0.0], dtype=np.float32)

    # ---- sampling --------------------------------------------------------------------------------

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Sample a batch of transitions uniformly with replacement: see :meth:`at`."""
        return self.at(self._draw(batch_size))

    def _draw(self, size: int) -> NDArray[np.int64]:
        """Draw rows of steps."""
        if not self._size:
            raise ValueError("nothing to sample: the memory is empty")
        end = self.filled * self.num_envs
        rows = self._numbers_below(end, size)
        while True:
            # Rows without a step, such as an episode's last observation, are sampled again.
            hits = self.live.take(rows)
            if np.count_nonzero(hits) == size:
                return rows
            misses = np.flatnonzero(~hits)
            rows[misses] = self._numbers_below(end, len(misses))

    def _numbers_below(self, end: int, size: int) -> NDArray[np.int64]:
        """Draw uniform numbers from 53 random bits each, in half the time of ``Generator.integers``."""
        return (self.generator.random(size) * end).astype(np.int64)

    def at(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return the transitions that begin at these rows.

        Returns:
            raw values as tensors: ``obs``, ``next_obs`` {key: (B, F, ...)} of F frames, ``actions`` (B, F, A),
            ``rewards``, ``dones`` (B, F), ``n_step_rewards``, ``discounts`` (B,), ``index`` (B,) the rows, and with
            ``next_actions`` these (B, A) and ``weight`` (B, F), 0 where they are unknown; with ``returns`` these
            (B, F), -inf while an episode runs.
        """
        wanted = self.transitions
        simple = wanted.n_step == 1 and not wanted.infinite_horizon
        last, sums, factors = (
            (rows, None, None) if simple else n_step_sums(self, rows, wanted, self.reward)
        )
        # Indices beyond the ring's end wrap around, see mode="wrap".
        following = last + self._stride
        windows, next_windows = self._frames(rows, rows), self._frames(following, last, 1)
        values = Gathered(
            self.vectors.take(windows, axis=0),
            self.vectors.take(next_windows, axis=0, mode="wrap"),
            self.rewards.take(windows),
            self.terminals.take(windows),
        )
        if self.hindsight is not None:
            self.hindsight.relabel(self, rows, windows, values, self.generator)
        rewards = values.rewards if self.reward.is_identity else self.reward(values.rewards)
        terminals = values.terminals
        batch: dict[str, Any] = {
            "obs": self._obs(values.seen, windows),
            "next_obs": self._obs(values.following, next_windows),
            "actions": torch.from_numpy(self.actions.take(windows, axis=0)),
            "rewards": torch.from_numpy(rewards),
            "dones": torch.from_numpy(terminals.astype(np.float32)),
            "index": torch.from_numpy(rows),
        }
        if sums is None or factors is None:
            sums, factors = rewards[:, -1], self._one_step_discounts.take(terminals[:, -1])
        batch["n_step_rewards"] = torch.from_numpy(sums)
        batch["discounts"] = torch.from_numpy(factors)
        if self.returns is not None:
            returns = torch.from_numpy(returns_to_go(self, rows, self.returns, self.reward))
            batch["returns"] = returns.unsqueeze(-1).expand(-1, self.frame_stack)
        if wanted.next_actions:
            batch["next_actions"] = torch.from_numpy(self.actions.take(following, 0, mode="wrap"))
            known = self.live.take(following, mode="wrap") | (factors == 0)
            batch["weight"] = (
                torch.from_numpy(known.astype(np.float32))
                .unsqueeze(-1)
                .expand(-1, self.frame_stack)
            )
        return batch

    def _obs(self, vectors: Array, windows: Array) -> dict[str, Tensor]:
        """Return the observations of rows ``windows`` (*B), whose vectors (*B, D) are given."""
        obs: dict[str, Tensor] = {}
        for key, shape in self.obs_shapes.items():
            if key in self.images:
                obs[key] = torch.from_numpy(self.images[key].take(windows, axis=0, mode="wrap"))
            else:
                part = torch.from_numpy(vectors[..., self.columns[key]])
                obs[key] = part if len(shape) == 1 else part.reshape(*windows.shape, *shape)
        return obs

    def _frames(self, rows: Array, steps: Array, later: int = 0) -> NDArray[np.int64]:
        """Return (B, F) rows of the frames up to ``rows``; the first is repeated before the episode's start.

        Args:
            rows: (B,) rows of observations.
            steps: (B,) rows of steps of the same episodes, ``later`` steps before.
            later: 0 or 1.
        """
        if self.frame_stack == 1:
            return rows[:, None]
        # Older frames of the oldest episode may already be overwritten.
        back = (self.steps_before(steps, self.frame_stack - 1) + later)[:, None]
        offsets = np.minimum(np.arange(self.frame_stack - 1, -1, -1), back)
        return self.later(rows[:, None], -offsets)

    # ---- learning --------------------------------------------------------------------------------

    def anneal(self, progress: float) -> None:
        """Do nothing: uniform sampling is the same over the whole training."""

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Do nothing: uniform sampling has no priorities."""

    # ---- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all stored steps and the state of the sampling, as tensors and scalars; rows are views, not copies."""
        return {**ring_state(self), "generator": self.draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            CheckpointError: its observations, actions, environments or capacity differ.
        """
        restore_ring(self, state)
        self.draws = state["generator"]

    @property
    def draws(self) -> str:
        """State of the sampling, for a buffer that is rebuilt from files."""
        return json.dumps(self.generator.bit_generator.state)

    @draws.setter
    def draws(self, state: str) -> None:
        self.generator.bit_generator.state = json.loads(state)
