"""Gathering of the tensors of a batch from rows of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from imitate.config.data_needs import Subgoals
from imitate.data.batches.store import Store
from imitate.data.batches.windows import Rows, TransitionPicker, WindowRows

Observations = dict[str, Tensor]


class _Column(NamedTuple):
    """Location of a key of a batch among the packed columns."""

    name: str
    part: int  # index in the result of the split by fields
    is_scalar: bool


class PackedVectors(NamedTuple):
    """Vectors of a batch of rows: one tensor, and views of it by field."""

    all: Tensor  # (B, T, D)
    parts: Sequence[Tensor]


class Gatherer:
    """Reader of observations, actions and step arrays at given rows; the location of each is computed once.

    Args:
        store: store with all keys.
        obs_keys: observations; those that are not in the store are skipped.
        next_keys: keys of ``next_obs`` in the store; if there are none, the following observation is used.
        action_keys: arrays that are concatenated to form the action; they are adjacent in the store, too.
        step_keys: further arrays.
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
            """Return the fields that are not vectors: images, scans, and fields that stay in the file."""
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
            packed: vectors of the rows, if they have been read before.
            image_steps: number of steps, from the first, for which arrays other than vectors are read; None: all.
            keys: read only these keys; None: all.
            stored_next: read the file's ``next_obs`` instead.
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
        """Read the observations that follow rows (B, T) of demos whose last rows are (B, 1).

        See :meth:`observations`.
        """
        if self._next_from_obs:
            return self.observations(np.minimum(rows + 1, last), None, image_steps, keys)
        return self.observations(rows, packed, image_steps, keys, stored_next=True)

    def ahead(self, now: Rows, last: Rows, wanted: Subgoals) -> Observations:
        """Read later observations for rows (B,): (B, ...), or (B, horizon, ...) if all steps in between are wanted."""
        steps = np.arange(0 if wanted.every else wanted.horizon - 1, wanted.horizon)
        obs = self.after(np.minimum(now[:, None] + steps, last), last, keys=wanted.keys)
        return obs if wanted.every else {key: value[:, 0] for key, value in obs.items()}

    def following(
        self, now: Rows, window: WindowRows, picker: TransitionPicker
    ) -> tuple[Observations, Rows]:
        """Read the state after the transitions from rows (B,).

        Returns its frames, the rewards, and the rows (B,) of the state.
        """
        before, last = picker.next_frames(now, window.demo)
        obs = self.after(last, window.last)
        if before.shape[1] > 0:
            older = self.observations(before)
            obs = {key: torch.cat([older[key], value], dim=1) for key, value in obs.items()}
        return obs, np.minimum(last + 1, window.last)[:, 0]

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
        """Read the actions (B, A) of rows (B,) into separate memory."""
        values = self._store.columns(rows)
        return torch.cat([values[:, columns] for columns in self._action_fields], dim=-1)

    def _apart(self, key: str, rows: Rows) -> Tensor:
        values = self._store.rows(key, rows.reshape(-1))
        return values.view(*rows.shape, *values.shape[1:])


def _named(columns: Sequence[_Column], parts: Sequence[Tensor]) -> Observations:
    return {
        name: parts[part].squeeze(-1) if is_scalar else parts[part]
        for name, part, is_scalar in columns
    }
