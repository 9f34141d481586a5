"""Training sets of which some shards are in memory: what the index answers, and what is refused."""

import fsspec
import numpy as np
import pytest

from imitate.data import SequenceDataset
from imitate.data.batches import streamed as module
from imitate.data.batches.streamed import build_streamed, with_shard_window
from imitate.data.shards.data_files import DataFiles
from imitate.data.shards.index import write_index
from imitate.errors import ConfigError, DatasetError
from imitate.system.instructions import LANGUAGE_KEY
from tests.demo_files import ENV_META, data_config, episode, write_demos
from tests.refusals import refused

SHARDS = {"0": (3, 1), "1": (2,), "2": (4,)}
"""Steps of the demos of each shard; the last demo is not in the mask ``train`` but in ``valid``."""


@pytest.fixture
def folder(tmp_path):
    """Demos a to d; step r has s = (r, 2 r), n = r, an action of r / 10 and a white image."""
    meta, names, at = {**ENV_META, "env_kwargs": {"control_freq": 10}}, iter("abcd"), 0
    for shard, lengths in SHARDS.items():
        demos, own = [], []
        for length in lengths:
            own.append(next(names))
            r = np.arange(at, at + length) / 1.0
            obs = {
                "s": np.stack([r, 2 * r], 1),
                "n": r,
                "i": np.full((length, 2, 2, 3), 255, np.uint8),
            }
            word = "put" if own[0] == "a" else "take"
            demos.append(episode(length, obs, r[:, None] / 10, attrs={"language": word}))
            at += length
        masks = {"valid" if shard == "2" else "train": range(len(own))}
        path = tmp_path / "shards" / f"{shard}.hdf5"
        write_demos(path, demos, meta, masks, own)
    write_index(tmp_path / "shards")
    return tmp_path / "shards"


@pytest.fixture
def bucket(folder):
    """The URL of a copy of the folder."""
    for path in folder.iterdir():
        fsspec.filesystem("memory").pipe(f"/{folder.parent.name}/{path.name}", path.read_bytes())
    return f"memory://{folder.parent.name}"


def config(place, obs=("s", "n"), rgb=(), window=1, **train):
    data = place if isinstance(place, list) else [{"path": str(place)}]
    return data_config(data, obs, rgb=rgb, shard_window=window, **train)


def streamed(*args, **train):
    with DataFiles() as files:
        return build_streamed(config(*args, **train), files)


def test_what_the_index_answers(folder):
    data, valid = streamed(folder, ("s", "n", LANGUAGE_KEY), ["i"], seq_length=2)
    assert valid is None and data.sample_weights is None
    assert (data.samples, len(data), data.demo_lengths.tolist()) == ((4, 2, 4), 10, [3, 1, 2, 4])
    sources = [(source.path.name, source.filter_key, source.entry) for source in data.sources]
    assert sources == [(f"{n}.hdf5", None, 0) for n in range(3)]
    assert (data.hdf5_path, data.control_freq, data.window_steps) == (str(folder), 10.0, 2)
    assert (data.demo_names(), data.tasks) == ({0: list("abcd")}, ("put", "take"))
    assert data.storage_words == [
        "3 shards, 1 at a time (train.shard_window), the next ones are prepared meanwhile"
    ]
    shapes = {"s": (2,), "n": (), "i": (2, 2, 3), LANGUAGE_KEY: (2,)}
    assert (data.obs_shapes, data.action_dims) == (shapes, {"actions": 1})
    assert (data.image_types, data.action_keys) == ({"i": "uint8"}, ("actions",))
    assert data.serves_language and data.reward.is_identity
    env_meta, *limits = data.metadata()
    assert env_meta["env_kwargs"] == {"control_freq": 10}
    assert limits == [shapes, {"actions": 1}, [-1.0], [1.0]]


def test_statistics_are_those_of_the_index(folder):
    data, _ = streamed(folder, ("s", "n", LANGUAGE_KEY), ["i"])
    stats = data.statistics()
    assert set(stats) == {"obs", "actions"} and set(stats["actions"]) == {"actions"}
    assert set(stats["obs"]) == {"s", "n", "i", LANGUAGE_KEY} and len(stats["obs"]) == 4
    assert "x" not in stats["obs"] and "actions" not in stats["obs"]
    found, r = stats["obs"]["s"], np.arange(10)
    np.testing.assert_allclose(found.mean, [4.5, 9])
    np.testing.assert_allclose(found.std, [r.std(), 2 * r.std()])
    np.testing.assert_allclose((found.min, found.max), ([0, 0], [9, 18]))
    number = stats["obs"]["n"]
    assert {x.shape for x in (number.mean, number.std, number.min, number.max)} == {()}
    assert stats["obs"]["i"].mean.tolist() == [1, 1, 1]
    assert stats["obs"][LANGUAGE_KEY].std.tolist() == [1, 1]
    np.testing.assert_allclose(stats["actions"]["actions"].max, [0.9])
    plain = streamed(folder, ["s"])[0].statistics()["obs"]
    assert set(plain) == {"s"} and LANGUAGE_KEY not in plain
    assert data.measured("obs/s") and not data.measured("rows")


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda data: data.return_statistics, "returns of all demos (set algo.target_return"),
        (lambda data: data.windows([], []), "samples of all demos, which a step of train.preprocess"),
        (lambda data: data.key_stats("states"), "statistics of 'states', which the index does not"),
    ],
)  # fmt: skip
def test_what_needs_all_shards_is_refused(folder, ask, what):
    data, _ = streamed(folder, window=2)
    words = "train.shard_window: 2 of 3 shards are in memory at a time, but the training needs"
    with refused(
        f"{words} {what}", "or set train.shard_window=3 to load all of them", error=ConfigError
    ):
        ask(data)


def test_masks_instructions_and_validation(folder):
    entry = {"path": str(folder), "lang": "go"}
    data, valid = streamed([entry], ["s"], window=1, validate=True)
    assert (data.samples, data.filter_key, data.tasks) == ((4, 2), "train", ("go",))
    assert {(source.filter_key, source.lang) for source in data.sources} == {("train", "go")}
    assert valid.demos == ["d"] and isinstance(valid, SequenceDataset)
    window = data.window((1,))
    assert window.demos == ["c"] and window[0]["obs"]["s"].tolist() == [[4.0, 8.0]]
    assert window[0]["task_id"] == 0 and window.sources[0].lang == "go"
    with refused("no demo has the steps of a window: lower train.frame_stack", error=DatasetError):
        streamed(folder, window=1, seq_length=5, pad_seq_length=False)
    long = streamed(folder, window=1, seq_length=3, pad_seq_length=False)[0]
    assert (long.samples, long.demo_names()) == ((1, 2), {0: ["a", "b", "d"]})
    schedule = data.schedule(2, 0, drop_last=True, part=slice(0, 1))
    assert {
        len(batch) for turn, _ in zip(schedule.turns(), range(4), strict=False) for batch in turn
    } == {1}


def test_the_shard_that_is_looked_at_is_released(folder, monkeypatch):
    released = []
    monkeypatch.setattr(
        module.StreamedDataset, "release", lambda data, numbers: released.append(tuple(numbers))
    )
    streamed(folder)
    assert len(released) == 1 and released[0] in {(0,), (1,), (2,)}


def test_where_windows_are_not_made(folder, tmp_path):
    assert streamed(folder, window=None) is None
    assert streamed(folder, window=3) is None and streamed(folder, window=2) is not None
    file = folder / "0.hdf5"
    assert streamed(file) is None
    assert streamed([{"path": str(folder)}, {"path": str(file), "weight": 0.0}]) is not None
    assert streamed([{"path": str(file)}, {"path": str(file)}]) is None
    assert streamed([{"path": str(folder), "weight": 0.0}]) is None
    words = "train.shard_window is 1, but train.data has 2 entries: name one folder of shards"
    with refused(words, error=ConfigError):
        streamed([{"path": str(folder)}, {"path": str(file)}])


@pytest.mark.parametrize(
    ("key", "train"),
    [
        ("train.filter_best", {"filter_best": 0.5}),
        ("train.reward", {"reward": {"scale": 2.0}}),
        ("train.sample_weight", {"sample_weight": {"kind": "return"}}),
        ("train.data_on_device", {"data_on_device": True}),
        ("train.obs_normalization 'quantile'", {"obs_normalization": "quantile"}),
        (
            "train.action_config normalization 'quantile'",
            {"action_config": {"actions": {"normalization": "quantile"}}},
        ),
    ],
)
def test_settings_that_need_all_demos(folder, key, train):
    words = f"{key}: needs all demos at once, but train.shard_window loads 2 of 3 shards: leave"
    with refused(words, "set train.shard_window=3", error=ConfigError):
        streamed(folder, window=2, **train)


def test_a_limit_of_demos_needs_all_of_them(folder):
    with refused("train.data.demo_limit: needs all demos at once", error=ConfigError):
        streamed([{"path": str(folder), "demo_limit": 3}])


def test_two_windows_fit_into_the_cache(folder, bucket, monkeypatch):
    sizes = sorted(path.stat().st_size for path in folder.glob("*.hdf5"))
    for window, largest in ((1, sum(sizes[-2:])), (2, sum(sizes))):
        monkeypatch.setenv("IMITATE_CACHE_GB", repr((largest + 0.5) / 1e9))
        assert streamed(bucket, window=window) is not None
        monkeypatch.setenv("IMITATE_CACHE_GB", repr((largest - 0.5) / 1e9))
        assert streamed(folder, window=window) is not None  # on this machine
        size = f"{largest / 1e9:.3g} GB"
        words = f"train.shard_window: two windows of {window} shards take {size}, but the cache is"
        with refused(f"{words} limited to {size}: lower train.shard_window", error=ConfigError):
            streamed(bucket, window=window)


def test_the_window_of_a_url(folder, bucket, monkeypatch):
    assert module.WINDOW_BYTES == 4e9
    mean = sum(path.stat().st_size for path in folder.glob("*.hdf5")) / 3
    plain = config(bucket, window=None)
    assert with_shard_window(plain) is plain
    for share, window in ((0.5, 1), (1.0, 1), (1.99, 1), (2.0, 2), (2.99, 2), (3.0, None)):
        monkeypatch.setattr(module, "WINDOW_BYTES", share * mean)
        assert with_shard_window(plain).train.shard_window == window
        local = config(folder, window=None)
        assert with_shard_window(local) is local
    monkeypatch.setattr(module, "WINDOW_BYTES", mean)
    given = config(bucket, window=2)
    assert with_shard_window(given) is given
