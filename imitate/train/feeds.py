"""Raw batches of a training set, starting at any batch: from the whole set or from windows of its shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from imitate.data import SequenceDataset, ShuffledBatches
from imitate.data.batches.streamed import StreamedDataset
from imitate.data.batches.window_schedule import Turn
from imitate.system.ranks import Ranks
from imitate.train.loading import make_loader
from imitate.train.setup import Setup

_PATIENCE_S = 5.0
"""Longest wait at the end for a running fetch whose result is no longer needed."""


class Feed(Protocol):
    """Sequence of batches; the k-th depends only on the configuration's seed, the data and k.

    Attributes:
        present: dataset to which the sample numbers of the latest batch refer.
    """

    present: Any

    def batches(self, start: int) -> Iterator[Any]:
        """Yield raw batches endlessly, beginning with batch number ``start``."""

    def close(self) -> None:
        """Stop background work."""


def feed_of(setup: Setup, ranks: Ranks) -> Feed:
    """Return the feed for the training set of a setup."""
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
        """Yield raw batches endlessly."""
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

    Each rank reads the same windows and takes its part of each batch, so several processes learn the same as one.

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
        """Yield raw batches endlessly.

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
    """Window that a daemon thread prepares: a program that ends does not wait for it."""

    def __init__(self, data: StreamedDataset, turn: Turn, stopped: threading.Event) -> None:
        self.turn = turn
        self._result: Future[SequenceDataset] = Future()
        self._data, self._stopped = data, stopped
        threading.Thread(target=self._prepare, daemon=True, name="next window").start()

    def _prepare(self) -> None:
        try:
            self._result.set_result(self._data.window(self.turn.shards, self._stopped))
        except BaseException as error:  # raised again in dataset()
            self._result.set_exception(error)

    def dataset(self) -> SequenceDataset:
        """Wait for the window and return its dataset."""
        return self._result.result()

    def give_up(self) -> None:
        """Wait briefly for the end of the thread, then release the shards."""
        with suppress(BaseException):
            self._result.result(_PATIENCE_S)
            self._data.release(self.turn.shards)


def needs_equal_batches(setup: Setup, ranks: Ranks) -> bool:
    """Return true if the smaller last batch of a pass must be dropped.

    Compiled code needs one shape, and ranks share a batch equally.
    """
    return bool(setup.config.train.compile) or ranks.world > 1
