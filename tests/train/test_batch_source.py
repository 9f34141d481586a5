"""Sources of batches: loaders, feeds of whole datasets and of windows, and what is said of a bad loss."""

from concurrent.futures import Future
from types import SimpleNamespace as Words

import pytest
import torch

from imitate.errors import DatasetError
from imitate.system.ranks import Ranks
from imitate.train import batch_source as module
from imitate.train.batch_source import (
    DatasetBatches,
    WholeFeed,
    WindowFeed,
    feed_of,
    make_loader,
    needs_equal_batches,
)
from imitate.train.state import TrainState
from tests.refusals import refused

CPU = torch.device("cpu")


class Samples(list):
    sample_weights = None
    pinned = 0

    def pin_batches(self):
        self.pinned += 1


@pytest.mark.parametrize(
    ("device", "workers", "pinned_here", "pinned_by_loader"),
    [("cpu", 0, 0, False), ("cpu", 2, 0, False), ("cuda", 0, 1, False), ("cuda", 2, 0, True)],
)
def test_loaders(device, workers, pinned_here, pinned_by_loader):
    samples = Samples(range(4))
    loader = make_loader(samples, [[0, 1], [3]], workers, torch.device(device))
    assert (samples.pinned, loader.pin_memory) == (pinned_here, pinned_by_loader)
    assert (loader.num_workers, loader.persistent_workers) == (workers, workers > 0)
    assert loader.prefetch_factor == (4 if workers else None)
    if not workers and device == "cpu":
        before = torch.get_rng_state()
        assert [batch.tolist() for batch in loader] == [[0, 1], [3]]
        assert torch.equal(torch.get_rng_state(), before)


def setup(data=None, **train):
    words = {"batch_size": 6, "seed": 3, "compile": None, "data_on_device": False}
    words |= {"num_data_workers": 2, "gradient_accumulation": 4, "data": [Words(path="a.hdf5")]}
    return Words(config=Words(train=Words(**{**words, **train})), train_set=data, device=CPU)


@pytest.mark.parametrize(
    ("compiled", "world", "equal"),
    [(None, 1, False), (False, 1, False), (True, 1, True), (None, 2, True)],
)
def test_batches_of_one_size(compiled, world, equal):
    assert needs_equal_batches(setup(compile=compiled), Ranks(0, world)) is equal


@pytest.mark.parametrize(("on_device", "workers"), [(False, 2), (True, 0)])
def test_a_whole_dataset_begins_at_any_batch(monkeypatch, on_device, workers):
    made = []
    monkeypatch.setattr(
        module, "ShuffledBatches", lambda *given, **words: made.append((given, words)) or "order"
    )
    monkeypatch.setattr(module, "make_loader", lambda *given: [given])
    data = Samples(range(10))
    feed = feed_of(setup(data, data_on_device=on_device), Ranks(1, 2))
    assert isinstance(feed, WholeFeed) and feed.present is data
    assert list(feed.batches(7)) == [(data, "order", workers, CPU)]
    part = Ranks(1, 2).part_of(6)
    words = {"start_batch": 7, "drop_last": True, "weights": None, "part": part}
    assert made == [((10, 6, 3), words)]


class Windows:
    """Two shards in turn; each window is a list with the shard's number."""

    def __init__(self):
        self.made, self.released, self.asked = [], [], None

    def schedule(self, batch_size, seed, *, drop_last, part):
        self.asked = (batch_size, seed, drop_last, part)
        return Words(turns=lambda start: (Words(shards=(n,)) for n in range(start, start + 9)))

    def window(self, shards, stopped):
        if shards == (99,):
            raise DatasetError("gone")
        self.made.append(shards)
        return list(shards)

    def release(self, shards):
        self.released.append(shards)


def test_windows_come_one_after_another_and_are_released(monkeypatch):
    monkeypatch.setattr(module, "StreamedDataset", Windows)
    monkeypatch.setattr(
        module,
        "make_loader",
        lambda window, turn, workers, device: [(window, turn.shards, workers)] * 2,
    )
    data = Windows()
    feed = feed_of(setup(data), Ranks())
    assert isinstance(feed, WindowFeed) and feed.present is None
    assert data.asked == (6, 3, False, Ranks().part_of(6))
    batches = feed.batches(4)
    assert [next(batches) for _ in range(3)] == [([4], (4,), 2)] * 2 + [([5], (5,), 2)]
    assert (feed.present, data.released) == ([5], [(4,)])
    feed.close()
    assert data.made == [(4,), (5,), (6,)]
    assert sorted(data.released) == [(4,), (5,), (6,)]
    feed.close()
    assert len(data.released) == 3
    with refused("gone"):
        next(feed.batches(99))


def test_a_window_that_is_not_ready_soon_is_not_waited_for_at_the_end(monkeypatch):
    waited = []

    class Late(Future):
        def result(self, timeout=None):
            if timeout is None:
                return super().result()
            waited.append(timeout)
            raise TimeoutError

    monkeypatch.setattr(module, "StreamedDataset", Windows)
    monkeypatch.setattr(module, "Future", Late)
    monkeypatch.setattr(module, "make_loader", lambda *given: [given])
    data = Windows()
    feed = feed_of(setup(data), Ranks())
    next(feed.batches(4))
    feed.close()
    assert (waited, data.released) == ([5.0], [(4,)])


class Feed:
    present = "data"

    def __init__(self):
        self.starts, self.closed = [], 0

    def batches(self, start):
        self.starts.append(start)
        return ({"index": number, "x": number} for number in range(start, start + 9))

    def close(self):
        self.closed += 1


@pytest.fixture
def source(monkeypatch):
    feed, now = Feed(), [10.0]

    def clock():
        now[0] += 1.5
        return now[0]

    monkeypatch.setattr(module, "feed_of", lambda setup, ranks: feed)
    monkeypatch.setattr(module.time, "perf_counter", clock)
    given = setup()
    given.algo = Words(process_batch_for_training=lambda raw: {"prepared": raw["x"]})
    made = DatasetBatches(given, Ranks())
    made.feed = feed
    return made


def test_steps_are_counted_after_their_update(source):
    assert (source.steps_per_update, source.unit, source.gives_several) == (4, "updates", False)
    state = TrainState(step=3, skipped_batches=2)
    assert list(source.pretraining(state)) == []
    for number in (5, 6):
        before = state.step
        for batch in source.batches(state):
            assert (batch, source.index, state.step) == ({"prepared": number}, number, before)
        assert state.step == before + 1
    assert source.feed.starts == [5] and source.waited_s == 3.0
    source.load_state_dict({})
    next(source.batches(state))
    assert source.feed.starts == [5, 7]
    assert source.metrics() == source.counts() == source.state_dict() == {}
    source.close()
    assert source.feed.closed == 1


def test_a_bad_loss_is_described(source, monkeypatch):
    found = [None]
    monkeypatch.setattr(module, "bad_input", lambda data, index: found[0])
    monkeypatch.setattr(module, "describe_batch", lambda data, index: f"{data} {index}")
    bad = Words(step=7, value=float("nan"), reason="not finite", index=None)
    words = "step 7 (epoch 2): the loss is nan, not finite"
    assert source.describe(bad, 2) == words
    bad.index = [1, 2]
    assert source.describe(bad, 2) == f"{words}; its batch: data [1, 2]"
    found[0] = "demo_3: rewards has NaN"
    with refused("a.hdf5: demo_3: rewards has NaN, which made the loss nan at step 7; remove"):
        source.describe(bad, 2)
