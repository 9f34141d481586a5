"""Raw batches of a training set from any batch on: of the whole set, or of windows of its shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from imitate.data import SequenceDataset, ShuffledBatches
from imitate.data.batches.streamed import StreamedDataset
from imitate.data.batches.window_schedule import Turn
from imitate.train.loading import make_loader
from imitate.train.ranks import Ranks
from imitate.train.setup import Setup

_PATIENCE_S = 5.0
"""Longest wait at the end for a fetch that is no longer needed."""


class Feed(Protocol):
    """Batches whose k-th is a function of the configuration's seed, the data and k alone.

    Attributes:
        present: the dataset that the numbers of the latest batch's samples belong to.
    """

    present: Any

    def batches(self, start: int) -> Iterator[Any]:
        """Yield raw batches without end, from this number on."""

    def close(self) -> None:
        """End what still runs."""


def feed_of(setup: Setup, ranks: Ranks) -> Feed:
    """Return the feed of a setup with a training set."""
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
        """Yield raw batches without end."""
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
    """Batches of one window of shards after another; the next one is fetched and read in a thread meanwhile.

    Each rank reads the same windows and takes its part of each batch, so that several processes learn as one does.

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
        """Yield raw batches without end.

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
        """Give up the window that is being prepared, and let go of the present one."""
        self._stopped.set()
        if self._coming is not None:
            self._coming.give_up()
        if self._learned is not None:
            self._data.release(self._learned.shards)
        self._coming = self._learned = None


class _Coming:
    """A window that a thread prepares; a program that ends does not wait for it."""

    def __init__(self, data: StreamedDataset, turn: Turn, stopped: threading.Event) -> None:
        self.turn = turn
        self._result: Future[SequenceDataset] = Future()
        self._data, self._stopped = data, stopped
        threading.Thread(target=self._prepare, daemon=True, name="next window").start()

    def _prepare(self) -> None:
        try:
            self._result.set_result(self._data.window(self.turn.shards, self._stopped))
        except BaseException as error:  # raised where the window is wanted
            self._result.set_exception(error)

    def dataset(self) -> SequenceDataset:
        """Wait for the window."""
        return self._result.result()

    def give_up(self) -> None:
        """Wait a little for the end of the thread, and let the shards go."""
        with suppress(BaseException):
            self._result.result(_PATIENCE_S)
            self._data.release(self.turn.shards)


def needs_equal_batches(setup: Setup, ranks: Ranks) -> bool:
    """Return true if the smaller batch at the end of a pass is left out.

    Compiled code is for one shape, and ranks share a batch equally.
    """
    return bool(setup.config.train.compile) or ranks.world > 1
