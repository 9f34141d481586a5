"""Outcome of the demo of each sample, and a later state of it: :class:`~imitate.config.data_needs.Outcome`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from imitate.config.data_needs import Outcome
from imitate.data.batches.store import DataSource, Store
from imitate.data.batches.windows import Gatherer, Rows, WindowRows
from imitate.data.file.outcomes import outcomes
from imitate.data.shards.data_files import DataFiles
from imitate.functional.transfer import to_device


class DemoOutcomes:
    """Success of each demo, and the steps that were corrected.

    A demo of which the file does not say whether it solves its task is a demonstration, and counts as solved.

    Args:
        sources: the files.
        store: the demos.
        wanted: settings of the later state.
        files: open files of the sources.
    """

    def __init__(
        self, sources: Sequence[DataSource], store: Store, wanted: Outcome, files: DataFiles
    ) -> None:
        self._lookahead = wanted.lookahead
        self._solved = np.ones(len(store.demos), dtype=bool)
        self._corrected = np.zeros(len(store), dtype=bool)
        for number, source in enumerate(sources):
            file = files.open(source.path)
            own = {demo.name: i for i, demo in enumerate(store.demos) if demo.source == number}
            for name, solved in outcomes(file, list(own)).items():
                at = own[name]
                self._solved[at] = solved is not False
                if file.has(name, "interventions"):
                    rows = slice(store.demo_start[at], store.demo_end[at])
                    self._corrected[rows] = file.read(name, "interventions").reshape(-1) > 0

    def add_to(self, batch: dict[str, Any], now: Rows, window: WindowRows, read: Gatherer) -> None:
        """Add ``outcome`` and ``later_obs`` of the samples' steps ``now`` (B,) to a batch."""
        left = window.last[:, 0] - now
        numbers = np.stack([left, self._solved[window.demo], self._corrected[now]], axis=-1)
        like = batch["actions"]
        batch["outcome"] = to_device(torch.from_numpy(numbers.astype(np.float32)), like.device)
        if self._lookahead is not None:
            rows = np.minimum(now[:, None] + self._lookahead, window.last)
            later = read.observations(rows)
            batch["later_obs"] = {key: value[:, 0] for key, value in later.items()}


def demo_outcomes(
    wanted: Outcome | None, sources: Sequence[DataSource], store: Store, files: DataFiles
) -> DemoOutcomes | None:
    """Return the outcomes that an algorithm needs, or None if it needs none."""
    return None if wanted is None else DemoOutcomes(sources, store, wanted, files)
