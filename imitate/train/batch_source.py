"""Sources of a run's batches: the contract, and the batches of a dataset."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor

from imitate.algo.base.algo import Batch, Info
from imitate.errors import DatasetError
from imitate.system.ranks import Ranks
from imitate.train.curriculum import Curriculum
from imitate.train.feeds import feed_of
from imitate.train.loss_guard import BadLoss, bad_input, describe_batch
from imitate.train.setup import Setup
from imitate.train.state import TrainState


class BatchSource(Protocol):
    """Source of a run's batches: a dataset, or steps of an environment.

    Attributes:
        unit: what one step of the run is called, in the plural.
        steps_per_update: checkpoints are possible only at multiples of this number of steps.
        gives_several: true if :meth:`batches` may yield more than one batch.
        advice: suggestion to the user when the loss becomes bad.
        index: (B,) sample numbers of the latest batch; None if there are none.
        waited_s: seconds spent waiting for data or environments; reset to 0 by the run at the start of each epoch.
        curriculum: stages of the environment, or None if it does not change.
    """

    unit: str
    steps_per_update: int
    gives_several: bool
    advice: str
    index: Tensor | None
    waited_s: float
    curriculum: Curriculum | None

    def pretraining(self, state: TrainState) -> Iterator[Batch]:
        """Yield prepared batches to learn from before the first step."""

    def batches(self, state: TrainState) -> Iterator[Batch]:
        """Yield prepared batches and add the steps that they cover to ``state.step``."""

    def learned(self, info: Info) -> None:
        """Take note of the result of ``train_on_batch`` for the latest batch."""

    def metrics(self) -> dict[str, float]:
        """Return additional numbers to log with an epoch."""

    def counts(self) -> dict[str, int]:
        """Return counters to log besides epochs and steps."""

    def begin_stage(self) -> None:
        """Collect in the present stage of :attr:`curriculum` from now on."""

    def describe(self, bad: BadLoss, epoch: int) -> str:
        """Describe where the loss became bad; raise DatasetError if the data are the reason."""

    def save_part(self) -> None:
        """Write what only this rank holds; all ranks call it before rank 0 writes a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Return additions to a checkpoint's ``train_state``, for an exact resume."""

    def load_state_dict(self, train_state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint's ``train_state``."""

    def close(self) -> None:
        """End the workers and free all resources."""


class DatasetBatches:
    """Shuffled batches of a dataset, the same ones in a resumed run.

    Args:
        setup: dataset, algorithm, configuration.
        ranks: the processes that train together; each takes its part of a batch.
    """

    unit = "updates"
    gives_several = False
    curriculum: Curriculum | None = None
    advice = "Lower the learning rate, set train.max_grad_norm, or train.on_bad_loss=rollback"

    def __init__(self, setup: Setup, ranks: Ranks) -> None:
        self._setup, self._algo = setup, setup.algo
        self._feed = feed_of(setup, ranks)
        self.steps_per_update: int = setup.config.train.gradient_accumulation
        self.index: Tensor | None = None
        self.waited_s = 0.0
        self._loader: Iterator[Any] | None = None

    def pretraining(self, state: TrainState) -> Iterator[Batch]:
        """Yield nothing."""
        yield from ()

    def batches(self, state: TrainState) -> Iterator[Batch]:
        """Yield one batch; count the step after its update."""
        if self._loader is None:
            self._loader = self._feed.batches(state.step + state.skipped_batches)
        asked = time.perf_counter()
        raw = next(self._loader)
        self.waited_s += time.perf_counter() - asked
        self.index = raw.get("index")
        yield self._algo.process_batch_for_training(raw)
        state.step += 1

    def learned(self, info: Info) -> None:
        """Ignore the result."""

    def metrics(self) -> dict[str, float]:
        """Return an empty dictionary."""
        return {}

    def counts(self) -> dict[str, int]:
        """Return an empty dictionary."""
        return {}

    def begin_stage(self) -> None:
        """Do nothing: a dataset has no stages."""

    def describe(self, bad: BadLoss, epoch: int) -> str:
        """Describe the step and batch at which the loss became bad.

        Raises:
            DatasetError: the batch holds values that are not finite.
        """
        data, config = self._feed.present, self._setup.config
        words = f"step {bad.step} (epoch {epoch}): the loss is {bad.value:.4g}, {bad.reason}"
        if bad.index is None:
            return words
        culprit = bad_input(data, bad.index)
        if culprit is not None:
            paths = ", ".join(entry.path for entry in config.train.data or ())
            raise DatasetError(
                f"{paths}: {culprit}, which made the loss {bad.value} at step {bad.step}; "
                "remove the demo or repair the file"
            )
        return f"{words}; its batch: {describe_batch(data, bad.index)}"

    def save_part(self) -> None:
        """Write nothing: all ranks have the same dataset."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the number of steps determines the next batch."""
        return {}

    def load_state_dict(self, train_state: Mapping[str, Any]) -> None:
        """Restart the batches at the restored step."""
        self._loader = None

    def close(self) -> None:
        """End the reading processes."""
        # Close the workers now: garbage collection would keep them waiting for seconds.
        self._loader = None
        self._feed.close()
