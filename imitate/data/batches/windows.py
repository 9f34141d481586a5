"""Rows of the store for the windows and transitions of samples, within their demos, and reading of their values.

A transition consists of the rewards that follow a sample's step, and the state from which the remaining return is
estimated. For the step t of a demo, with rewards r, discount g and n steps, m = n, or fewer if a terminal or the last
step with a known successor comes first:

    n_step_rewards = r[t] + g r[t+1] + ... + g^(m-1) r[t+m-1]
    discounts      = 0 if t+m-1 is terminal, else g^m
    next_obs       = the observation after step t+m-1
    next_actions   = the action of step t+m
    chunk          = the actions of steps t to t+m-1, the last one repeated up to n; ``chunk_mask`` is true for the
                     first m

A timeout is not a terminal: the state after it, which is stored in ``next_obs``, has a value. If a file has no
``next_obs``, or the next action is needed, the step after a demo's last step is unknown. Then sums end one step
earlier, and the demo's last step, unless it is terminal, is not a transition and has weight 0.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.data_needs import FollowingSteps, Subgoals, Transitions
from imitate.data.batches.store import Store
from imitate.functional.transfer import to_device

Rows = NDArray[np.int64]


class WindowRows(NamedTuple):
    """Rows of a batch of windows.

    Attributes:
        rows: (B, T) rows; steps outside of the demo repeat its first or last row.
        wanted: (B, T) rows before this repetition, which may be outside of the demo.
        demo: (B,) index of the demo.
        last: (B, 1) last row of the demo.
    """

    rows: Rows
    wanted: Rows
    demo: Rows
    last: Rows

    @property
    def real(self) -> NDArray[np.bool_]:
        """Mask (B, T), true if the step is inside the demo."""
        real: NDArray[np.bool_] = self.rows == self.wanted
        return real


class Windows:
    """All windows of a set of demos, one per step.

    A window has the ``frame_stack - 1`` rows before its step, and ``seq_length`` rows from the step on.

    Args:
        demo_start: (number of demos,) first row of each demo.
        demo_end: (number of demos,) index after the last row of each demo.
        frame_stack: number of observations up to and including the window's step.
        seq_length: number of steps from the window's step on.
        pad_frame_stack: true to keep windows that begin before the demo.
        pad_seq_length: true to keep windows that extend beyond the demo's end.
    """

    def __init__(
        self,
        demo_start: Rows,
        demo_end: Rows,
        frame_stack: int = 1,
        seq_length: int = 1,
        pad_frame_stack: bool = True,
        pad_seq_length: bool = True,
    ) -> None:
        self._start, self._end, self._last = demo_start, demo_end, demo_end - 1
        self._offsets = np.arange(1 - frame_stack, seq_length)
        skipped = 0 if pad_frame_stack else frame_stack - 1
        tail = 0 if pad_seq_length else seq_length - 1
        self._all_steps = skipped == 0 and tail == 0
        counts = np.maximum(demo_end - demo_start - skipped - tail, 0)
        self._first = demo_start + skipped
        ends = np.cumsum(counts)
        self._window_start = ends - counts
        self._window_end = ends.astype(np.uint64)

    def __len__(self) -> int:
        return int(self._window_end[-1])

    @property
    def length(self) -> int:
        """Number of steps T in a window."""
        return len(self._offsets)

    def steps(self, index: Rows) -> tuple[Rows, Rows]:
        """Return the demo (B,) and the row (B,) of the step of each window.

        Raises:
            IndexError: an index is out of range.
        """
        # as unsigned numbers, negative indices are too large, so one comparison finds both errors
        demo: Rows = self._window_end.searchsorted(index.view(np.uint64), side="right")
        if demo.size and demo.max() == len(self._end):
            raise IndexError(
                f"samples {index.min()} to {index.max()} were requested, but there are {len(self)}"
            )
        if self._all_steps:
            return demo, index
        return demo, index - self._window_start[demo] + self._first[demo]

    def rows(self, index: Rows) -> WindowRows:
        """Return the rows of the windows ``index`` (B,)."""
        demo, step = self.steps(index)
        wanted = step[:, None] + self._offsets
        last = self._last[demo][:, None]
        rows = wanted
        if self._offsets[-1] > 0:
            rows = np.minimum(rows, last)
        if self._offsets[0] < 0:
            rows = np.maximum(rows, self._start[demo][:, None])
        return WindowRows(rows, wanted, demo, last)


class TransitionTable(NamedTuple):
    """The transition that begins at each of N rows.

    Attributes:
        last: (N,) index of the last row whose reward is summed.
        rewards: (N,) float32 discounted sum of the rewards.
        discounts: (N,) float32 discount factor of the bootstrapped value; 0 after a terminal.
        usable: (N,) bool, false if the next state is unknown.
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
        rewards: (N,) rewards of all rows.
        terminals: (N,) 1 if the step ended the task.
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
    """Looks up the transitions of samples in a table.

    Args:
        table: transitions of all rows.
        demo_start: (number of demos,) index of the first row of each demo.
        frame_stack: number of observations that a policy sees, up to the current one.
        signals: table of transitions of each named reward.
    """

    def __init__(
        self,
        table: TransitionTable,
        demo_start: Rows,
        frame_stack: int,
        signals: Sequence[TransitionTable] = (),
    ) -> None:
        self.table = table
        tables = (table, *signals)
        numbers = [*(each.rewards for each in tables), *(each.discounts for each in tables)]
        self.numbers = torch.from_numpy(np.stack(numbers, axis=-1))
        self._demo_start = demo_start
        self._before = np.arange(1 - frame_stack, 0)

    def to(self, device: torch.device | str) -> None:
        """Move the tables to a device."""
        self.numbers = self.numbers.to(device)

    def numbers_at(self, rows: Rows) -> dict[str, Tensor]:
        """Return ``n_step_rewards`` and ``discounts`` of the transitions that begin at ``rows`` (B,).

        With S named rewards also ``n_step_signals`` and ``signal_discounts`` (B, S).
        """
        values = self.numbers[to_device(torch.from_numpy(rows), self.numbers.device)]
        sums, discounts = values.tensor_split(2, dim=-1)
        found = {"n_step_rewards": sums[:, 0], "discounts": discounts[:, 0]}
        if sums.shape[1] > 1:
            found |= {"n_step_signals": sums[:, 1:], "signal_discounts": discounts[:, 1:]}
        return found

    def chunk_rows(self, rows: Rows, num_steps: int) -> tuple[Rows, NDArray[np.bool_]]:
        """Return rows (B, n) of the actions of transitions from ``rows`` (B,), and a mask of the steps they span."""
        wanted = rows[:, None] + np.arange(num_steps)
        last = self.table.last[rows][:, None]
        return np.minimum(wanted, last), wanted <= last

    def next_frames(self, rows: Rows, demo: Rows) -> tuple[Rows, Rows]:
        """Return rows of the frames that a policy sees after the transitions from ``rows`` (B,) of the demos ``demo``.

        Returns:
            (B, frame_stack - 1) rows of the observations before the newest one, where the demo's first row may be
            repeated; (B, 1) row of the step after which the newest observation was made.
        """
        last = self.table.last[rows][:, None]
        before = np.maximum(last + 1 + self._before, self._demo_start[demo][:, None])
        return before, last


Observations = dict[str, Tensor]


class _Column(NamedTuple):
    """Location of a key of a batch among the packed columns."""

    name: str
    part: int  # index of the field after the split into fields
    is_scalar: bool


class PackedVectors(NamedTuple):
    """Vectors of a batch of rows: one tensor, and views of it by field."""

    all: Tensor  # (B, T, D)
    parts: Sequence[Tensor]


class Gatherer:
    """Reader of observations, actions and step arrays at given rows; the location of each array is computed once.

    Args:
        store: store with all keys.
        obs_keys: keys of observations; keys that are not in the store are skipped.
        next_keys: keys of ``next_obs`` in the store; if empty, the observation of the next step is used.
        action_keys: arrays that are concatenated to form the action; they must be adjacent in the store.
        step_keys: further step arrays.
    """

    def __init__(
        self,
        store: Store,
        obs_keys: Sequence[str],
        next_keys: Sequence[str],
        action_keys: Sequence[str],
        step_keys: Sequence[str],
    ) -> None:
        self._store = store
        packed = {key: field for key, field in store.fields.items() if field.columns}
        self._widths = [
            field.columns.stop - field.columns.start for field in packed.values() if field.columns
        ]
        number = {key: i for i, key in enumerate(packed)}

        def columns(names: Sequence[str], prefix: str = "") -> list[_Column]:
            keys = [(name, prefix + name) for name in names]
            return [
                _Column(name, number[key], not packed[key].shape)
                for name, key in keys
                if key in packed
            ]

        def apart(names: Sequence[str], prefix: str = "") -> list[str]:
            """Return the fields that are not packed vectors: images, scans, and fields read from the file."""
            keys = [(name, prefix + name) for name in names]
            return [name for name, key in keys if key in store.fields and key not in packed]

        self._next_from_obs = not next_keys
        self._obs = columns(obs_keys, "obs/"), apart(obs_keys, "obs/")
        self._next = columns(next_keys, "next_obs/"), apart(next_keys, "next_obs/")
        named_actions = [key for key in action_keys if key != "actions"]
        self._steps = columns([*named_actions, *step_keys]), apart(step_keys)
        self._action_fields = [packed[key].columns for key in action_keys]
        first, last = self._action_fields[0], self._action_fields[-1]
        assert first is not None and last is not None
        self._actions = (first.start, last.stop - first.start)
        self._single_action = number[action_keys[0]] if len(action_keys) == 1 else None

    def packed(self, rows: Rows) -> PackedVectors:
        """Read the vectors of rows (B, T)."""
        values = self._store.columns(rows.reshape(-1)).view(*rows.shape, -1)
        return PackedVectors(values, values.split_with_sizes(self._widths, -1))

    def observations(
        self,
        rows: Rows,
        packed: PackedVectors | None = None,
        image_steps: int | None = None,
        keys: Sequence[str] | None = None,
        stored_next: bool = False,
    ) -> Observations:
        """Read observations at rows (B, T).

        Args:
            rows: rows of the store.
            packed: vectors of the rows if already read, else None.
            image_steps: number of first steps for which arrays other than vectors are read; None for all steps.
            keys: keys to read; None for all.
            stored_next: true to read the file's ``next_obs`` instead of ``obs``.
        """
        columns, apart = self._next if stored_next else self._obs
        obs = _named(columns, (packed or self.packed(rows)).parts)
        if keys is not None:
            obs = {key: value for key, value in obs.items() if key in keys}
            apart = [key for key in apart if key in keys]
        group = "next_obs" if stored_next else "obs"
        for key in apart:
            obs[key] = self._apart(f"{group}/{key}", rows[:, :image_steps])
        return obs

    def after(
        self,
        rows: Rows,
        last: Rows,
        packed: PackedVectors | None = None,
        image_steps: int | None = None,
        keys: Sequence[str] | None = None,
    ) -> Observations:
        """Read the observations after the steps ``rows`` (B, T); ``last`` (B, 1) are the last rows of their demos.

        See :meth:`observations`.
        """
        if self._next_from_obs:
            return self.observations(np.minimum(rows + 1, last), None, image_steps, keys)
        return self.observations(rows, packed, image_steps, keys, stored_next=True)

    def ahead(self, now: Rows, last: Rows, wanted: Subgoals) -> Observations:
        """Read the subgoals of rows (B,): (B, ...), or (B, horizon, ...) with ``every``; see :class:`Subgoals`."""
        steps = np.arange(0 if wanted.every else wanted.horizon - 1, wanted.horizon)
        obs = self.after(np.minimum(now[:, None] + steps, last), last, keys=wanted.keys)
        return obs if wanted.every else {key: value[:, 0] for key, value in obs.items()}

    def steps_from(self, now: Rows, last: Rows, wanted: FollowingSteps) -> dict[str, Any]:
        """Read the transitions from rows (B,) on, in the form of :class:`FollowingSteps`."""
        steps = now[:, None] + np.arange(wanted.number)
        rows = np.minimum(steps, last)
        packed = self.packed(rows)
        known = steps < last if self._next_from_obs else steps <= last
        found = {
            "obs": self.after(rows, last, packed),
            "actions": self.actions(packed),
            "mask": to_device(torch.from_numpy(known), packed.all.device),
        }
        if wanted.rewards or wanted.ends:
            values = self.steps(rows, packed)
        if wanted.rewards:
            found["rewards"] = values["rewards"]
        if wanted.ends:
            real = to_device(torch.from_numpy(steps <= last), packed.all.device)
            found["ends"] = ((values["terminals"] > 0) & real).to(values["terminals"])
        return found

    def transitions(
        self, now: Rows, window: WindowRows, picker: TransitionPicker, wanted: Transitions
    ) -> dict[str, Any]:
        """Read ``next_obs`` of the transitions from rows ``now`` (B,), and the actions that ``wanted`` requests."""
        before, last = picker.next_frames(now, window.demo)
        obs = self.after(last, window.last)
        if before.shape[1] > 0:
            older = self.observations(before)
            obs = {key: torch.cat([older[key], value], dim=1) for key, value in obs.items()}
        read: dict[str, Any] = {"next_obs": obs}
        if wanted.next_actions:
            read["next_actions"] = self.actions_at(np.minimum(last + 1, window.last)[:, 0])
        if wanted.chunks:
            rows, real = picker.chunk_rows(now, wanted.n_step)
            read["chunk"] = actions = self.actions_at(rows)
            read["chunk_mask"] = to_device(torch.from_numpy(real), actions.device)
        return read

    def steps(self, rows: Rows, packed: PackedVectors) -> Observations:
        """Read step arrays at rows (B, T), and each action key by its own name."""
        columns, apart = self._steps
        return {
            **_named(columns, packed.parts),
            **{key: self._apart(key, rows) for key in apart},
        }

    def actions(self, packed: PackedVectors) -> Tensor:
        """Concatenate the action keys: (B, T, A)."""
        if self._single_action is not None:
            return packed.parts[self._single_action]
        return packed.all.narrow(-1, *self._actions)

    def actions_at(self, rows: Rows) -> Tensor:
        """Read the actions (*B, A) of rows (*B) into separate memory."""
        values = self._store.columns(rows.reshape(-1))
        actions = torch.cat([values[:, columns] for columns in self._action_fields], dim=-1)
        return actions.view(*rows.shape, -1)

    def _apart(self, key: str, rows: Rows) -> Tensor:
        values = self._store.rows(key, rows.reshape(-1))
        return values.view(*rows.shape, *values.shape[1:])


def _named(columns: Sequence[_Column], parts: Sequence[Tensor]) -> Observations:
    return {
        name: parts[part].squeeze(-1) if is_scalar else parts[part]
        for name, part, is_scalar in columns
    }
