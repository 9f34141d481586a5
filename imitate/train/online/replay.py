"""Replay buffers: of steps, of sequences, and prioritized.

Samples have the form of :class:`~imitate.data.SequenceDataset`'s with ``transitions``, so that any algorithm that
learns from demonstrations can learn from a replay buffer.

A buffer of step sequences returns the recurrent state at their beginning. As in R2D2 (Kapturowski et al., ICLR 2019),
the state before a sequence is the one stored when the step was taken, with the weights of that time; up to ``burn_in``
steps before the sequence update it. Departures: states are stored for every step, so sequences may begin anywhere; no
sequence extends beyond an episode's end.

A sequence is drawn by choosing uniformly a step and its position among the ``seq_length`` steps of the sequence; the
sequence does not begin before its episode. So a short episode is nearly always sampled as a whole, and all steps are in
about equally many sequences.

Prioritized replay samples steps with large TD errors more often:
Schaul et al., "Prioritized Experience Replay", ICLR 2016 (arXiv:1511.05952). With the temporal-difference error d of a
step, its probability is p / sum p, p = (|d| + eps)^alpha, and its weight in the loss (N P)^-beta, divided by the
largest weight of the batch. New steps have the highest priority seen so far.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.slots.memory import STORED
from imitate.config.data_needs import FollowingSteps, Returns, Transitions
from imitate.config.schedule import Schedule
from imitate.data.batches.rewards import RewardTransform
from imitate.data.file.episode import Episode
from imitate.system.plain_files import json_value
from imitate.system.ranks import ALONE, Ranks
from imitate.train.online.goals import Gathered, Hindsight
from imitate.train.online.ring import (
    StepRing,
    n_step_signals,
    n_step_sums,
    restore_ring,
    returns_to_go,
    ring_state,
)
from imitate.train.online.steps import Array, Step

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
        following: later steps to add to the samples for auxiliary losses, or None for samples without them.
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
        following: FollowingSteps | None = None,
    ) -> None:
        super().__init__(
            obs_shapes,
            action_dim,
            capacity,
            num_envs=num_envs,
            images=images,
            least=max(transitions.n_step, following.number if following else 1) + 2,
            signal_keys=transitions.signals,
        )
        self.transitions, self.frame_stack = transitions, frame_stack
        self.reward, self.returns, self.hindsight = reward, returns, hindsight
        self.following = following
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
            ``rewards``, ``dones`` (B, F), ``n_step_rewards``, ``discounts`` (B,), ``index`` (B,) the rows. Only if they
            were requested: ``next_actions`` (B, A) with ``weight`` (B, F), 0 where they are unknown; ``chunk``
            (B, n, A) with ``chunk_mask`` (B, n); ``returns`` (B, F), -inf while an episode runs. With S named rewards
            also ``n_step_signals`` (B, S), their n-step sums, and ``signal_discounts`` (B, S) of their bootstrap
            values.
        """
        wanted = self.transitions
        simple = wanted.n_step == 1 and not wanted.infinite_horizon
        last, sums, factors = (
            (rows, None, None) if simple else n_step_sums(self, rows, wanted, self.reward)
        )
        # Indices beyond the ring's end wrap around: the arrays are read with mode="wrap".
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
        if self.signals.size:
            of_signals = n_step_signals(self, rows, wanted)
            batch["n_step_signals"], batch["signal_discounts"] = map(torch.from_numpy, of_signals)
        batch["discounts"] = torch.from_numpy(factors)
        if wanted.chunks:
            steps = rows[:, None] + self._stride * np.arange(wanted.n_step)
            # A chunk may begin before the ring's end and continue at its beginning.
            length = (last - rows) % len(self.live) // self.num_envs
            real = np.arange(wanted.n_step) <= length[:, None]
            chunk = self.actions.take(np.where(real, steps, last[:, None]), axis=0, mode="wrap")
            batch["chunk"], batch["chunk_mask"] = torch.from_numpy(chunk), torch.from_numpy(real)
        if self.returns is not None:
            returns = torch.from_numpy(returns_to_go(self, rows, self.returns, self.reward))
            batch["returns"] = returns.unsqueeze(-1).expand(-1, self.frame_stack)
        if self.following is not None:
            batch["following"] = self._steps_from(rows, self.following)
        if wanted.next_actions:
            batch["next_actions"] = torch.from_numpy(self.actions.take(following, 0, mode="wrap"))
            known = self.live.take(following, mode="wrap") | (factors == 0)
            batch["weight"] = (
                torch.from_numpy(known.astype(np.float32))
                .unsqueeze(-1)
                .expand(-1, self.frame_stack)
            )
        return batch

    def _steps_from(self, rows: NDArray[np.int64], wanted: FollowingSteps) -> dict[str, Any]:
        """Return the transitions from rows (B,) on, in the form of :class:`FollowingSteps`."""
        offsets = np.arange(wanted.number)
        real = np.cumprod(self.live[self.later(rows[:, None], offsets)], axis=1)
        counts = real.sum(1, keepdims=True)
        steps = self.later(rows[:, None], np.minimum(offsets, counts - 1))
        after = self.later(steps, 1)
        found = {
            "obs": self._obs(self.vectors.take(after, axis=0), after),
            "actions": torch.from_numpy(self.actions.take(steps, axis=0)),
            "mask": torch.from_numpy(real > 0),
        }
        if wanted.rewards:
            found["rewards"] = torch.from_numpy(self.reward(self.rewards.take(steps)))
        if wanted.ends:
            ends = self.terminals.take(steps) & (real > 0)
            found["ends"] = torch.from_numpy(ends.astype(np.float32))
        return found

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
        """Restore the state from :meth:`state_dict`.

        Raises:
            CheckpointError: the state is from a buffer with other observations, actions, environments or capacity.
        """
        restore_ring(self, state)
        self.draws = state["generator"]

    @property
    def draws(self) -> str:
        """State of the sampling, for a buffer that is rebuilt from files."""
        return json.dumps(self.generator.bit_generator.state)

    @draws.setter
    def draws(self, state: str) -> None:
        self.generator.bit_generator.state = json_value(state)


class SampleSource(Protocol):
    """Source from which batches are sampled."""

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Draw ``batch_size`` samples: raw values, in the form of :class:`~imitate.data.SequenceDataset`'s batches."""


class Memory(SampleSource, Protocol):
    """Replay buffer of the steps of N environments.

    Attributes:
        draws: state of the random numbers that sampling uses, as text.
    """

    draws: str

    def __len__(self) -> int:
        """Number of steps that can be sampled."""

    def add(self, step: Step, lanes: NDArray[np.int64] | None = None) -> None:
        """Store one step of the environments ``lanes``, or of all if None."""

    def drop_episodes(self, lanes: NDArray[np.int64]) -> None:
        """Remove the unfinished episodes of these environments."""

    def cut_episodes(self) -> None:
        """End all unfinished episodes by a timeout."""

    def episodes(self) -> Iterator[Episode]:
        """Yield the stored steps, episode by episode."""

    def anneal(self, progress: float) -> None:
        """Set values that change with the training's ``progress`` in [0, 1]."""

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Set the priorities of samples from their TD errors (B,); ``rows`` (B,) are the samples' ``index``."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything stored, and :attr:`draws`."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`.

        Raises:
            CheckpointError: the state is from a buffer with other observations, actions, environments or capacity.
        """


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
        """Arrays of the base class, and the recurrent states, by name."""
        return {**super().stored, **self.states}

    @property
    def form(self) -> dict[str, Any]:
        """Arguments of a buffer with the same sequences."""
        shapes = {name.removeprefix(STORED): x.shape[1:] for name, x in self.states.items()}
        return {"state_shapes": shapes, "seq_length": self.seq_length, "burn_in": self.burn_in}

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
            the first U begin with the steps before the sequence and are then padded; ``actions`` (B, L, A),
            ``n_step_rewards``, ``discounts`` (B, L); ``ahead`` (B, L) number of steps to the
            observation whose value bootstraps the step's return; ``mask`` (B, L) false beyond the end; ``burn_in`` (B,)
            number of steps before the sequence; ``memory/<name>`` (B, layers, H) state before the first of these;
            ``index`` (B,) the rows.
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
            "ahead": torch.from_numpy(sums_of(real, number)),
            "mask": torch.from_numpy(real[:, :length] > 0),
            "burn_in": torch.from_numpy(before[:, 0]),
            "index": torch.from_numpy(rows),
            **{name: torch.from_numpy(states[first]) for name, states in self.states.items()},
        }


def sums_of(values: Array, number: int) -> Array:
    """Compute (B, L) sums of ``number`` successive values each, from (B, L + number - 1) values."""
    sums = np.concatenate([np.zeros_like(values[:, :1]), values.cumsum(1)], axis=1)
    windows: Array = sums[:, number:] - sums[:, :-number]
    return windows


SMALLEST = 1e-6


class SumTree:
    """Array whose prefix sums are searched, and whose entries are changed, in log(size) vectorized steps.

    Args:
        size: number of entries.
    """

    def __init__(self, size: int) -> None:
        self._leaves = 1 << max(size - 1, 0).bit_length()
        self._sums = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """Sum of all entries."""
        return float(self._sums[1])

    def __getitem__(self, index: Array) -> NDArray[np.float64]:
        """Return the entries at these indices."""
        numbers: NDArray[np.float64] = self._sums[np.asarray(index) + self._leaves]
        return numbers

    def set(self, index: Array, values: Array | float) -> None:
        """Change entries; for a repeated index the last value counts."""
        nodes = np.asarray(index) + self._leaves
        self._sums[nodes] = values
        while len(nodes) and nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, sums: NDArray[np.float64]) -> NDArray[np.int64]:
        """Find for each s in [0, total) the index i for which s is in [sum before i, sum up to and including i)."""
        nodes = np.ones(len(sums), dtype=np.int64)
        rest = sums.copy()
        while nodes[0] < self._leaves:
            nodes *= 2
            left = self._sums[nodes]
            # Rounding errors must not lead to entries without a value.
            right = (rest >= left) & (self._sums[nodes + 1] > 0)
            rest -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self._leaves


ALPHA, BETA = Schedule(((0.0, 0.6),)), Schedule(((0.0, 0.4), (1.0, 1.0)))
"""Default exponents of prioritized replay."""


class PrioritizedReplay(ReplayBuffer):
    """Replay buffer that samples steps by priority.

    Args:
        alpha: exponent of the priorities; 0 samples uniformly, 1 in proportion to errors.
        beta: exponent of the importance weights in the loss; 0 for none, 1 for full correction.
        ranks: the processes whose weights are scaled together.
        **kwargs: arguments of :class:`ReplayBuffer`.

    Attributes:
        steps_of_sample: number of steps of a sample that have its weight.
    """

    def __init__(
        self,
        *args: Any,
        alpha: Schedule = ALPHA,
        beta: Schedule = BETA,
        ranks: Ranks = ALONE,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._ranks = ranks
        self._alpha, self._beta = alpha, beta
        self.steps_of_sample = self.frame_stack
        self.anneal(0.0)
        self._tree = SumTree(len(self.live))
        self._highest = 1.0

    def _draw(self, size: int) -> NDArray[np.int64]:
        """Draw one row from each of ``size`` equal parts of the sum of all priorities."""
        if not self._size:
            raise ValueError("nothing to sample: the memory is empty")
        parts = (np.arange(size) + self.generator.random(size)) / size
        return self._tree.find(parts * self._tree.total)

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Sample by priority, with ``weight`` (B, F) besides the values of :meth:`at`; all ranks call this together."""
        rows = self._draw(batch_size)
        batch = self.at(rows)
        probability = self._tree[rows] / max(self._tree.total, SMALLEST)
        size = self._ranks.total(self._size)
        weight = (size * np.maximum(probability, SMALLEST**2)) ** -self.beta
        largest = self._ranks.table(weight.max()).max()
        weights = torch.from_numpy((weight / largest).astype(np.float32))
        weights = weights.unsqueeze(-1).expand(-1, self.steps_of_sample)
        batch["weight"] = batch["weight"] * weights if "weight" in batch else weights
        return batch

    def anneal(self, progress: float) -> None:
        """Set both exponents to their values at the training's progress in [0, 1]."""
        self.alpha, self.beta = self._alpha.at(progress), self._beta.at(progress)

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Set priorities from the TD errors (B,) of the samples ``rows`` (B,); skip overwritten rows."""
        kept = self.live[rows]
        priorities = (np.abs(errors[kept]) + SMALLEST) ** self.alpha
        if len(priorities):
            self._tree.set(rows[kept], priorities)
            self._highest = max(self._highest, float(priorities.max()))

    def _remember(self, rows: Any, count: int) -> None:
        super()._remember(rows, count)
        self._tree.set(self._numbers(rows), self._highest)

    def _forget(self, rows: Any) -> None:
        super()._forget(rows)
        self._tree.set(self._numbers(rows), 0.0)

    def _numbers(self, rows: Any) -> NDArray[np.int64]:
        """Convert a slice of rows to an array of rows."""
        return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows

    def state_dict(self) -> dict[str, Any]:
        """Return the base class's state with the priorities."""
        state = super().state_dict()
        rows = len(state["rows"]["live"])
        state["rows"]["priority"] = torch.from_numpy(self._tree[np.arange(rows)].copy())
        return {**state, "highest": self._highest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the rows and their priorities."""
        rows = dict(state["rows"])
        priority = rows.pop("priority").numpy()
        super().load_state_dict({**state, "rows": rows})
        self._tree.set(np.arange(len(priority)), priority)
        self._highest = float(state["highest"])


class PrioritizedSequences(PrioritizedReplay, SequenceReplay):
    """Replay buffer that samples sequences by the priority of their first step; takes both base classes' arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps_of_sample = self.seq_length
