"""Protocols of replay buffers: sources of batches, and buffers that also store steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode
from imitate.online.steps import Step


class Source(Protocol):
    """Object from which batches are sampled."""

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Draw ``batch_size`` samples: raw values, in the form of :class:`~imitate.data.SequenceDataset`'s batches."""


class Memory(Source, Protocol):
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
        """Yield what is stored, episode by episode."""

    def anneal(self, progress: float) -> None:
        """Set values that change with the training's ``progress`` in [0, 1]."""

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Set priorities from the TD errors (B,) of the samples with ``index`` ``rows`` (B,)."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything stored, and :attr:`draws`."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            CheckpointError: its observations, actions, environments or capacity differ.
        """
