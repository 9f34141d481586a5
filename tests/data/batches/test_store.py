"""The store of demonstrations: exact rows in memory and in files, goals, bytes, and the pool of batches' memory."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from imitate.data import DataSource
from imitate.data.batches import file_rows
from imitate.data.batches import store as module
from imitate.data.batches.store import Buffers, Store
from imitate.data.shards.data_files import DataFiles
from tests.demo_files import episode, write_demos
from tests.refusals import refused

KEYS = ("actions", "obs/s", "rewards", "obs/i", "obs/one")


def demo(first, length, dtype=np.uint8, next_obs=False):
    """Row r has actions (r, -r), s (r, r + 0.5, 1), reward r / 8 and an image whose pixels are r."""
    at = np.arange(first, first + length + next_obs)
    images = np.broadcast_to(at[:, None, None, None], (len(at), 6, 5, 3)).astype(dtype)
    obs = {"s": np.stack([at, at + 0.5, at**0], 1), "i": images, "one": at * 2.0}
    return episode(
        length,
        {key: values[:length] for key, values in obs.items()},
        np.stack([at, -at], 1)[:length] / 1.0,
        rewards=at[:length] / 8,
        next_obs={key: values[1:] for key, values in obs.items()} if next_obs else None,
    )


@pytest.fixture
def paths(tmp_path):
    """Two files: rows 0 to 2, 3 to 6; and 7 to 8, of which no next observation is stored."""
    one = [demo(0, 3, next_obs=True), demo(3, 4, next_obs=True)]
    return [
        write_demos(tmp_path / "a.hdf5", one, filter_keys={"last": [1]}),
        write_demos(tmp_path / "b.hdf5", [demo(7, 2)], image_storage="gzip"),
    ]


def made(paths, *, keys=KEYS, **options):
    sources = [path if isinstance(path, DataSource) else DataSource(path) for path in paths]
    with DataFiles() as files:
        return Store(sources, keys, files, **options)


@pytest.mark.parametrize(
    ("mode", "from_file", "held"),
    [
        ("all", (), 9 * (4 * 7 + 90)),
        ("auto", (), 9 * (4 * 7 + 90)),
        ("low_dim", ("obs/i",), 9 * 4 * 7),
        (None, KEYS, 0),
    ],
)
def test_rows(paths, monkeypatch, tmp_path, mode, from_file, held):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    store = made(paths, cache_mode=mode, goal_keys=["s", "i"])
    assert (len(store), store.num_columns) == (9, 7)
    assert store.num_bytes == held + 3 * (12 + 90)
    assert tuple(store.from_file) == from_file
    assert store.demo_start.tolist() == [0, 3, 7] and store.demo_end.tolist() == [3, 7, 9]
    through_hdf5, original = set(), file_rows.read_steps
    monkeypatch.setattr(
        file_rows, "read_steps", lambda *words: through_hdf5.add(words[2].key) or original(*words)
    )
    rows = np.array([8, 0, 0, 4])
    at = torch.tensor(rows, dtype=torch.float32)
    s = torch.stack([at, at + 0.5, at**0], 1)
    columns = torch.cat([torch.stack([at, -at], 1), s, (at / 8)[:, None], (2 * at)[:, None]], 1)
    assert torch.equal(store.columns(rows), columns)
    assert torch.equal(store.field("obs/s", rows), s)
    assert torch.equal(store.field("rewards", rows), at / 8)
    assert torch.equal(store.field("obs/one", rows), 2 * at)
    images = store.field("obs/i", rows)
    assert images.shape == (4, 6, 5, 3) and images.dtype == torch.uint8
    assert torch.equal(images[:, 5, 4, 2].float(), at)
    assert "obs/i" not in through_hdf5  # those that are compressed are decoded into a file
    # the observation after the last step, or else that of the last step
    assert store.goal("s", np.array([1, 0, 2]))[:, 0].tolist() == [7, 3, 8]
    assert store.goal("i", np.array([1, 0, 2]))[:, 0, 0, 0].tolist() == [7, 3, 8]
    notes = 1 if "obs/i" in from_file else 0  # that of b is decoded once
    assert len(store.notes) == notes


def test_arrays_are_moved_and_replaced(paths, tmp_path, monkeypatch):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    store = made(paths, goal_keys=["s"])
    store.replace("obs/i", torch.ones(9, 4), "features")
    assert store.notes == ["features"] and store.fields["obs/i"].shape == (4,)
    assert (store.placement.words, store.placement.apart_in_ram) == ("", frozenset())
    assert store.rows("obs/i", np.array([1, 2])).tolist() == [[1.0] * 4] * 2
    store.to("meta")
    places = [store.packed, store.apart["obs/i"], store.goals["s"]]
    assert {tensor.device.type for tensor in places} == {"meta"}
    assert store.rows("obs/i", np.array([1, 2])).device.type == "meta"
    store.replace("obs/i", torch.ones(9, 2), "")
    assert store.apart["obs/i"].device.type == "meta"
    store = made(paths, cache_mode="low_dim")
    with refused(f"{paths[0]}: data that stay in the file (obs/i) cannot be moved to cpu: set"):
        store.to("cpu")
    store.replace("obs/i", torch.ones(9, 4), "features")
    assert store.from_file == {} and store.placement.apart_in_ram == frozenset()
    store.to("cpu")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["a", "b", "c"]),
        ({"demo_limit": 2}, ["a", "b"]),
        ({"demos": frozenset("ac")}, ["a", "c"]),
        ({"demos": frozenset("ac"), "demo_limit": 2}, ["a"]),
    ],
)
def test_demos_of_a_source(options, names):
    source = DataSource(Path("x"), **options)
    assert source.among(["a", "b", "c"]) == names
    assert (source.weight, source.entry) == (1.0, 0)


def test_demos_of_masks_and_empty_sources(paths):
    store = made([DataSource(paths[0], "last"), paths[1]])
    assert [(d.source, d.name, d.length) for d in store.demos] == [
        (0, "demo_1", 4),
        (1, "demo_0", 2),
    ]
    store = made([DataSource(paths[0], demos=frozenset()), paths[1]])
    assert len(store) == 2
    store = made([paths[0]], keys=["obs/i"])
    assert (store.num_columns, store.num_bytes) == (0, 7 * 90)
    with refused(f"{paths[0]}: filter key 'last' selects no demo"):
        made([paths[1], DataSource(paths[0], "last", demo_limit=0)])


def test_one_number_per_step_has_an_axis_or_none(tmp_path):
    steps = {"action_dict/flat": np.arange(3.0), "action_dict/deep": np.arange(3.0)[:, None]}
    path = write_demos(tmp_path / "a.hdf5", [episode(3, {}, 1, steps=steps)])
    store = made([path], keys=[*steps, "actions"])
    assert [store.fields[key].shape for key in store.fields] == [(1,)] * 3
    assert store.columns(np.array([2, 1])).tolist() == [[2, 2, 0], [1, 1, 0]]


def test_short_demos_are_noted(tmp_path):
    lengths = [20, 21, 22, 21, 2, 1, 2, 3, 20, 20, 21, 20, 22, 21, 20]
    path = write_demos(tmp_path / "a.hdf5", [demo(0, length) for length in lengths])
    (note,) = made([path]).notes
    assert note == (
        "4 demos of 15 are very short, the median is 20 steps: demo_4 (2 steps), demo_5 (1 step), "
        f"demo_6 (2 steps) ...; look at them: imitate dataset doctor {path}"
    )
    del lengths[5]
    path = write_demos(tmp_path / "a.hdf5", [demo(0, length) for length in lengths])
    assert "demo_6 (3 steps); look" in made([path]).notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rewards": np.zeros(3)}, "'rewards' has 3 steps, but 'actions' has 2"),
        ({"rewards": np.array([b"a", b"b"])}, "'rewards' holds |S1, not numbers"),
        (
            {"obs/s": np.zeros((2, 4))},
            "a step of 'obs/s' has shape (4,), but (3,) in demo 'demo_0' of ",
        ),
        ({"obs/i": np.zeros((2, 6, 5, 3), np.float32)}, "'obs/i' is float32, but uint8 in demo 'd"),
        ({"obs/i": np.zeros((2, 6, 5, 3), np.uint16)}, "'obs/i' is uint16, but uint8 in demo"),
        ({"actions": None}, "'actions'"),
        ({"obs/one": np.zeros((2, 1))}, "a step of 'obs/one' has shape (1,), but ()"),
        ({"obs/s": np.full((2, 3), np.nan)}, "'obs/s'"),
        ({"actions": np.full((2, 2), 1.01)}, "'actions'"),
    ],
)
def test_files_that_do_not_fit(paths, change, words):
    (key, value), *_ = change.items()
    with h5py.File(paths[1], "a") as file:
        file["data/demo_0/actions"][...] = 0.5
        del file[f"data/demo_0/{key}"]
        if value is not None:
            file[f"data/demo_0/{key}"] = value
    sources = [DataSource(paths[0], demo_limit=1), paths[1]]
    with h5py.File(paths[0], "a") as file:
        file["data/demo_0/actions"][...] = 1.0
    with refused(f"{paths[1]}: demo 'demo_0'", words):
        made(sources, bounded=["actions"])


# ---- memory of batches ---------------------------------------------------------------------------


def at(tensor):
    return tensor.data_ptr()


def test_large_tensors_return_to_the_pool():
    pool, size = Buffers(), 2**17
    small = pool.empty((size - 1,), np.dtype("u1"))
    large = pool.empty((2, size // 8), np.dtype("f4"))
    assert small.shape == (size - 1,) and large.shape == (2, size // 8)
    assert large.dtype == torch.float32
    where, view = at(large), large[1:]
    del large
    other = pool.empty((size,), np.dtype("u1"))
    assert at(other) != where  # a view of it is still there
    del view
    again = pool.empty((size // 8,), np.dtype("f8"))
    assert at(again) == where
    pickled = pickle.loads(pickle.dumps(pool))
    assert not pickled.pinned and not pool.pinned
    assert pickled.empty((size,), np.dtype("u1")).shape == (size,)


@pytest.mark.parametrize(
    ("sizes", "taken_back"), [([0] * 5, 4), (range(8), 8), (range(9), 1), ([-1] * 3, 0)]
)
def test_limits_of_the_pool(monkeypatch, sizes, taken_back):
    """Four of a size from 128 KiB on, and eight sizes: the ninth replaces all of them."""
    pool, made_new = Buffers(), []
    new = np.empty
    monkeypatch.setattr(module.np, "empty", lambda *a: made_new.append(a) or new(*a))
    form = np.dtype("u1")
    tensors = [pool.empty((2**17 + number,), form) for number in sizes]
    while tensors:
        tensors.pop(0)
    made_new.clear()
    tensors = [pool.empty((2**17 + number,), form) for number in sizes]
    assert len(sizes) - len(made_new) == taken_back


def test_pinned_memory_is_torchs(monkeypatch):
    pool, asked = Buffers(), []
    pool.pinned = True
    monkeypatch.setattr(module.torch, "empty", lambda shape, **how: asked.append((shape, how)))
    pool.empty((2**17,), np.dtype("u1"))
    assert asked == [((2**17,), {"dtype": torch.uint8, "pin_memory": True})]
