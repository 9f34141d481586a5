"""Sources of a run's batches: the interface, and the batches of a dataset."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from imitate.algo.base.algo import Batch, Info
from imitate.data import SequenceDataset, ShuffledBatches
from imitate.data.batches.sampling import Turn
from imitate.data.batches.streamed import StreamedDataset
from imitate.errors import DatasetError
from imitate.system.ranks import Ranks
from imitate.train.loss_guard import BadLoss, bad_input, describe_batch
from imitate.train.online.curriculum import Curriculum
from imitate.train.setup import Setup
from imitate.train.state import TrainState


def make_loader(
    dataset: Any, batches: Iterable[Any], workers: int, device: torch.device
) -> DataLoader[Any]:
    """Make a standard DataLoader over an endless batch sampler, so that one iterator serves the whole run.

    The loader has its own generator for the workers' seeds, so torch's default generator stays unchanged. For a CUDA
    device batches are in pinned memory: a thread of the loader copies the workers' batches there, and without workers
    images are gathered there directly.
    """
    if device.type == "cuda" and workers == 0:
        dataset.pin_batches()
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        pin_memory=device.type == "cuda" and workers > 0,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers > 0 else None,
        generator=torch.Generator(),
    )


_PATIENCE_S = 5.0
"""Longest wait in seconds, at the end, for a running fetch whose result is no longer needed."""


class Feed(Protocol):
    """Endless sequence of batches; batch k depends only on the configuration's seed, the data and k.

    Attributes:
        present: dataset to which the sample numbers of the latest batch refer.
    """

    present: Any

    def batches(self, start: int) -> Iterator[Any]:
        """Yield raw batches endlessly, beginning with batch number ``start``."""

    def close(self) -> None:
        """Stop background work."""


def feed_of(setup: Setup, ranks: Ranks) -> Feed:
    """Return the sequence of batches for the training set of a setup."""
    if isinstance(setup.train_set, StreamedDataset):
        return WindowFeed(setup, ranks)
    return WholeFeed(setup, ranks)


class WholeFeed:
    """Shuffled batches of a whole dataset.

    Args:
        setup: dataset and configuration.
        ranks: the processes that train together; each takes its part of a batch.
    """

    def __init__(self, setup: Setup, ranks: Ranks) -> None:
        self.present = setup.train_set
        self._setup, self._ranks = setup, ranks

    def batches(self, start: int) -> Iterator[Any]:
        """Yield raw batches endlessly, beginning with batch number ``start``."""
        train, data, ranks = self._setup.config.train, self.present, self._ranks
        batches = ShuffledBatches(
            len(data),
            train.batch_size,
            train.seed,
            start_batch=start,
            drop_last=needs_equal_batches(self._setup, ranks),
            weights=data.sample_weights,
            part=ranks.part_of(train.batch_size),
        )
        workers = 0 if train.data_on_device else train.num_data_workers
        return iter(make_loader(data, batches, workers, self._setup.device))

    def close(self) -> None:
        """Do nothing."""


class WindowFeed:
    """Batches of one window of shards after another; a thread fetches and reads the next window meanwhile.

    Each rank reads the same windows and takes its part of each batch, so several processes train on the same
    batches as one would.

    Args:
        setup: a streamed dataset, and the configuration.
        ranks: the processes that train together.
    """

    def __init__(self, setup: Setup, ranks: Ranks) -> None:
        self._data: StreamedDataset = setup.train_set
        self._setup = setup
        self.present: SequenceDataset | None = None
        self._stopped = threading.Event()
        self._learned: Turn | None = None
        self._coming: _Coming | None = None
        train = setup.config.train
        self._schedule = self._data.schedule(
            train.batch_size,
            train.seed,
            drop_last=needs_equal_batches(setup, ranks),
            part=ranks.part_of(train.batch_size),
        )

    def batches(self, start: int) -> Iterator[Any]:
        """Yield raw batches endlessly, beginning with batch number ``start``.

        Raises:
            DatasetError: a shard cannot be fetched or read.
        """
        self.close()
        self._stopped = threading.Event()
        turns = self._schedule.turns(start)
        self._coming = _Coming(self._data, next(turns), self._stopped)
        while True:
            self.present, turn = self._coming.dataset(), self._coming.turn
            self._learned = turn
            self._coming = _Coming(self._data, next(turns), self._stopped)
            workers = self._setup.config.train.num_data_workers
            yield from make_loader(self.present, turn, workers, self._setup.device)
            self._data.release(turn.shards)
            self._learned = None

    def close(self) -> None:
        """Discard the window that is being prepared, and release the current one."""
        self._stopped.set()
        if self._coming is not None:
            self._coming.give_up()
        if self._learned is not None:
            self._data.release(self._learned.shards)
        self._coming = self._learned = None


class _Coming:
    """The next window, prepared by a daemon thread so that the program can exit without waiting for it."""

    def __init__(self, data: StreamedDataset, turn: Turn, stopped: threading.Event) -> None:
        self.turn = turn
        self._result: Future[SequenceDataset] = Future()
        self._data, self._stopped = data, stopped
        threading.Thread(target=self._prepare, daemon=True, name="next window").start()

    def _prepare(self) -> None:
        try:
            self._result.set_result(self._data.window(self.turn.shards, self._stopped))
        except BaseException as error:  # dataset() raises the error again
            self._result.set_exception(error)

    def dataset(self) -> SequenceDataset:
        """Wait for the window and return its dataset."""
        return self._result.result()

    def give_up(self) -> None:
        """Wait briefly for the thread to end, then release the shards."""
        with suppress(BaseException):
            self._result.result(_PATIENCE_S)
            self._data.release(self.turn.shards)


def needs_equal_batches(setup: Setup, ranks: Ranks) -> bool:
    """Return true if the smaller last batch of a pass must be dropped.

    Compiled code needs batches of one shape, and ranks need equal parts of a batch.
    """
    return bool(setup.config.train.compile) or ranks.world > 1


class BatchSource(Protocol):
    """Source of a run's batches: a dataset, or steps of an environment.

    Attributes:
        unit: name of one step of the run, in the plural.
        steps_per_update: checkpoints are possible only at multiples of this number of steps.
        gives_several: true if :meth:`batches` may yield more than one batch.
        advice: suggestion to the user when the loss becomes infinite or NaN.
        index: (B,) sample numbers of the latest batch; None for batches without numbers.
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
        """Record the result of ``train_on_batch`` for the latest batch."""

    def metrics(self) -> dict[str, float]:
        """Return additional numbers to log with an epoch."""

    def counts(self) -> dict[str, int]:
        """Return counters to log besides epochs and steps."""

    def begin_stage(self) -> None:
        """Collect in the present stage of :attr:`curriculum` from now on."""

    def describe(self, bad: BadLoss, epoch: int) -> str:
        """Describe the place where the loss became bad; raise DatasetError if the data are the reason."""

    def save_part(self) -> None:
        """Write the data that only this rank holds; all ranks call this before rank 0 writes a checkpoint."""

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
        """Yield nothing: a dataset has no batches before the first step."""
        yield from ()

    def batches(self, state: TrainState) -> Iterator[Batch]:
        """Yield one batch; count the step after its update."""
        if self._loader is None:
            self._loader = self._feed.batches(state.step + state.skipped_batches)
        began = time.perf_counter()
        raw = next(self._loader)
        self.waited_s += time.perf_counter() - began
        self.index = raw.get("index")
        yield self._algo.process_batch_for_training(raw)
        state.step += 1

    def learned(self, info: Info) -> None:
        """Do nothing: batches of a dataset do not depend on results of updates."""

    def metrics(self) -> dict[str, float]:
        """Return an empty dictionary: an epoch of a dataset has no further numbers."""
        return {}

    def counts(self) -> dict[str, int]:
        """Return an empty dictionary: there are no counters besides epochs and steps."""
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
        """Return an empty dictionary: the number of steps determines the next batch."""
        return {}

    def load_state_dict(self, train_state: Mapping[str, Any]) -> None:
        """Drop the loader, so that the next batch is the one of the restored step."""
        self._loader = None

    def close(self) -> None:
        """End the reading processes."""
        # Close the workers now, because garbage collection would wait seconds for them.
        self._loader = None
        self._feed.close()
