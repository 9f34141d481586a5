"""Samples and batches of demonstrations against a plain reader, and what the dataset tells of itself."""

import pickle
import subprocess
import sys
import tracemalloc

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Subset, default_collate

from imitate import SequenceDataset
from imitate.config.data_needs import FollowingSteps, Transitions
from imitate.data import DatasetFile, DataSource, ShuffledBatches
from imitate.data.batches import sequence_dataset
from imitate.data.batches.rewards import RewardTransform
from imitate.errors import ConfigError, DatasetError
from imitate.system.instructions import LANGUAGE_KEY
from tests.demo_files import ENV_META, episode, write_demos
from tests.refusals import refused
from tests.tiny import tiny_demos

KEYS = ("robot0_eef_pos", "object")
SEEN = ("object", "agentview_image")
CACHE_MODES = ("all", "low_dim", None)
every_mode = pytest.mark.parametrize("cache_mode", CACHE_MODES)


def naive_window(demos, index, obs_keys, frame_stack, seq_length):
    """Sample ``index`` of all-padded windows, taken step by step from the arrays of the demos."""
    for demo in demos:
        length = len(demo["actions"])
        if index < length:
            break
        index -= length
    steps = range(index - frame_stack + 1, index + seq_length)
    at = [min(max(step, 0), length - 1) for step in steps]
    return {
        "obs": {key: [demo[f"obs/{key}"][i] for i in at] for key in obs_keys},
        "next_obs": {key: [demo[f"next_obs/{key}"][i] for i in at] for key in obs_keys},
        "goal_obs": {key: demo[f"next_obs/{key}"][length - 1] for key in obs_keys},
        **{key: [demo[key][i] for i in at] for key in ("actions", "rewards", "dones")},
        "pad_mask": [0 <= step < length for step in steps],
    }


def assert_same(got, wanted):
    for key, value in wanted.items():
        if isinstance(value, dict):
            assert set(got[key]) == set(value)
            assert_same(got[key], value)
        else:
            array = np.asarray(value)
            array = array.astype(np.float32) if array.dtype.kind == "f" else array
            np.testing.assert_array_equal(got[key].numpy(), array, err_msg=key)


def assert_equal_batches(one, two):
    assert list(one) == list(two)
    for key in one:
        if isinstance(one[key], dict):
            assert_equal_batches(one[key], two[key])
        else:
            assert one[key].dtype == two[key].dtype
            assert torch.equal(one[key], two[key]), key


@every_mode
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    frame_stack=st.integers(1, 3),
    seq_length=st.integers(1, 4),
)
@settings(max_examples=8, deadline=None)
def test_samples_equal_a_naive_reader(
    make_demo_file, tmp_path_factory, cache_mode, lengths, frame_stack, seq_length
):
    path = tmp_path_factory.mktemp("naive") / "demos.hdf5"
    sizes = {"robot0_eef_pos": 3, "object": 2}
    make_demo_file(path, len(lengths), lengths, obs_dims=sizes, image=True)
    keys = (*KEYS, "agentview_image")
    names = [f"{group}/{key}" for group in ("obs", "next_obs") for key in keys]
    names += ["actions", "rewards", "dones"]
    with h5py.File(path) as file:
        groups = [file[f"data/demo_{number}"] for number in range(len(lengths))]
        demos = [{name: group[name][:] for name in names} for group in groups]
    window = {"frame_stack": frame_stack, "seq_length": seq_length, "get_pad_mask": True}
    loaded = {"goal_mode": "last", "hdf5_cache_mode": cache_mode, "load_next_obs": True}
    dataset = SequenceDataset(path, keys, **window, **loaded)
    assert len(dataset) == sum(lengths)
    batch = dataset[list(range(len(dataset)))]
    for index in range(len(dataset)):
        wanted = naive_window(demos, index, keys, frame_stack, seq_length)
        assert_same(dataset[index], wanted)
        assert_same(tree_map(lambda value, at=index: value[at], dict(batch)), wanted)


def test_shapes_and_types_of_a_batch(demo_file):
    window = {"frame_stack": 2, "seq_length": 3, "goal_mode": "last"}
    dataset = SequenceDataset(demo_file(image=True), SEEN, **window)
    batch = dataset[[0, 5, 40]]
    floats, pixels = torch.float32, torch.uint8
    shapes = {
        "obs": {"object": ((3, 4, 10), floats), "agentview_image": ((3, 4, 8, 6, 3), pixels)},
        **{key: ((3, 4), floats) for key in ("rewards", "dones")},
        "actions": ((3, 4, 7), floats),
        "goal_obs": {"object": ((3, 10), floats), "agentview_image": ((3, 8, 6, 3), pixels)},
        "index": ((3,), torch.int64),
    }
    assert tree_map(lambda value: (tuple(value.shape), value.dtype), dict(batch)) == shapes
    assert dataset.obs_shapes == {"object": (10,), "agentview_image": (8, 6, 3)}
    assert dataset.action_dims == {"actions": 7}
    assert dataset.demos == [f"demo_{number}" for number in range(4)]
    assert dataset.demo_of(13) == ("demo_1", 1)


def test_robomimics_positional_order_and_its_form_of_sample(demo_file):
    loaded = ("actions", "rewards", "dones")
    dataset = SequenceDataset(demo_file(), KEYS, ("actions",), loaded, None, 1, 10)
    sample = dataset[3]
    assert sample["obs"]["object"].shape == (10, 10) and sample["actions"].shape == (10, 7)
    assert int(sample["index"]) == 3
    assert torch.equal(dataset[-1]["actions"], dataset[len(dataset) - 1]["actions"])
    for index in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError):
            dataset[index]


# ---- DataLoader ---------------------------------------------------------------------------------


def test_a_plain_loader_gives_whole_batches(demo_file):
    dataset = SequenceDataset(demo_file(), KEYS, seq_length=2)
    batches = list(DataLoader(dataset, batch_size=20, shuffle=True))
    assert [len(batch["index"]) for batch in batches] == [20, 20, 8]
    assert sorted(torch.cat([batch["index"] for batch in batches]).tolist()) == list(range(48))
    for batch in batches:
        assert_equal_batches(batch, dataset[batch["index"]])
        singly = default_collate([dataset[int(i)] for i in batch["index"]])
        assert torch.equal(singly["obs"]["object"], batch["obs"]["object"])


def test_a_subset_and_an_exact_sampler_go_through_the_loader(demo_file):
    dataset = SequenceDataset(demo_file(), KEYS)
    part = next(iter(DataLoader(Subset(dataset, [7, 3]), batch_size=2)))
    assert part["index"].tolist() == [7, 3]
    sampler = ShuffledBatches(len(dataset), 10, seed=3, start_batch=2)
    got = next(iter(DataLoader(dataset, batch_sampler=sampler)))
    assert got["index"].tolist() == next(iter(sampler)).tolist()


@pytest.mark.parametrize(
    ("context", "cache_mode", "workers"),
    [
        *(("fork", mode, 2) for mode in CACHE_MODES),
        pytest.param("spawn", "low_dim", 1, marks=pytest.mark.nightly),
    ],
)
def test_workers_give_the_same_batches(demo_file, context, cache_mode, workers):
    dataset = SequenceDataset(demo_file(image=True), SEEN, seq_length=3, hdf5_cache_mode=cache_mode)
    alone = list(DataLoader(dataset, batch_size=16))  # the parent's file handles are open now
    processes = {"num_workers": workers, "multiprocessing_context": context}
    with_workers = list(DataLoader(dataset, batch_size=16, **processes))
    assert len(alone) == len(with_workers) == 3
    for one, two in zip(alone, with_workers, strict=True):
        assert_equal_batches(one, two)


@every_mode
def test_a_pickled_dataset_works(demo_file, cache_mode):
    dataset = SequenceDataset(demo_file(image=True), SEEN, hdf5_cache_mode=cache_mode)
    before = dataset[[1, 40]]
    assert_equal_batches(pickle.loads(pickle.dumps(dataset))[[1, 40]], before)


# ---- memory -------------------------------------------------------------------------------------


def test_all_is_held_once(demo_file):
    path = demo_file(num_demos=20, length=50, image=True)
    dataset = SequenceDataset(path, (*KEYS, "agentview_image"), frame_stack=4, seq_length=10)
    held = 20 * 50 * (4 * (3 + 10 + 7 + 1 + 1) + 8 * 6 * 3)
    assert dataset.store.num_bytes == held
    low_dim = SequenceDataset(path, (*KEYS, "agentview_image"), hdf5_cache_mode="low_dim")
    assert low_dim.store.num_bytes == 20 * 50 * 4 * (3 + 10 + 7 + 1 + 1)
    assert SequenceDataset(path, KEYS, hdf5_cache_mode=None).store.num_bytes == 0


def test_moving_to_a_device_needs_the_data_in_memory(demo_file):
    path = demo_file(image=True)
    dataset = SequenceDataset(path, KEYS)
    assert dataset.to("cpu") is dataset
    moved = SequenceDataset(path, KEYS).to("meta")
    assert moved[[0, 1]]["obs"]["object"].device.type == "meta"
    with pytest.raises(DatasetError, match="hdf5_cache_mode to 'all'"):
        SequenceDataset(path, ("agentview_image",), hdf5_cache_mode="low_dim").to("meta")


# ---- keys ---------------------------------------------------------------------------------------


@every_mode
def test_action_keys_of_any_depth_are_joined_in_their_order_and_cached(demo_file, cache_mode):
    path = demo_file(num_demos=2, length=5)
    with h5py.File(path, "a") as file:
        for number, demo in enumerate(file["data"].values()):
            steps = np.arange(5.0) + 10 * number
            demo["action_dict/gripper"] = steps / 100
            demo["action/eef_pos"] = np.stack([steps, -steps], axis=1) / 100
    keys = ("action_dict/gripper", "action/eef_pos")
    dataset = SequenceDataset(path, KEYS, action_keys=keys, hdf5_cache_mode=cache_mode)
    assert dataset.action_dims == {"action_dict/gripper": 1, "action/eef_pos": 2}
    batch = dataset[[1, 7]]
    wanted = np.array([[0.01, 0.01, -0.01], [0.12, 0.12, -0.12]], np.float32)
    np.testing.assert_allclose(batch["actions"][:, 0], wanted, rtol=1e-6)
    np.testing.assert_allclose(batch["action_dict/gripper"], wanted[:, None, :1], rtol=1e-6)
    assert batch["action/eef_pos"].shape == (2, 1, 2)


@every_mode
def test_missing_rewards_and_dones_are_zeros_per_step(demo_file, cache_mode):
    path = demo_file(num_demos=2, length=4)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            for key in ("rewards", "dones", "terminals", "timeouts"):
                del demo[key]
    keys = ("actions", "rewards", "dones", "terminals", "timeouts")
    options = {"dataset_keys": keys, "seq_length": 2, "hdf5_cache_mode": cache_mode}
    batch = SequenceDataset(path, KEYS, **options)[[0, 2, 3]]
    for key in ("rewards", "dones", "terminals"):
        assert batch[key].tolist() == [[0, 0]] * 3
    assert batch["timeouts"].tolist() == [[0, 0], [0, 1], [1, 1]]


@every_mode
def test_dones_alone_are_terminals_and_the_rest_ends_by_timeout(demo_file, cache_mode):
    path = demo_file(num_demos=2, length=3)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            del demo["terminals"], demo["timeouts"]
        file["data/demo_1/dones"][:] = 0
    keys = ("terminals", "timeouts", "dones")
    dataset = SequenceDataset(path, KEYS, dataset_keys=keys, hdf5_cache_mode=cache_mode)
    found = {key: dataset[list(range(6))][key].flatten().tolist() for key in keys}
    assert found["terminals"] == found["dones"] == [0, 0, 1, 0, 0, 0]
    assert found["timeouts"] == [0, 0, 0, 0, 0, 1]


def test_rewards_written_as_a_column_come_out_flat_beside_the_action_of_the_action_keys(demo_file):
    path = demo_file(num_demos=1, length=3)
    with h5py.File(path, "a") as file:
        del file["data/demo_0/rewards"]
        file["data/demo_0/rewards"] = [[1.0], [2.0], [3.0]]
        file["data/demo_0/actions_abs"] = np.full((3, 3), 7.0)
    batch = SequenceDataset(path, KEYS, action_keys=("actions_abs",))[[0, 2]]
    assert batch["rewards"].tolist() == [[1.0], [3.0]]
    assert batch["actions"].tolist() == [[[7.0, 7.0, 7.0]]] * 2


@every_mode
def test_next_obs_that_the_file_lacks_is_the_following_one(demo_file, cache_mode):
    path = demo_file(num_demos=2, length=4, image=True, next_obs=False)
    window = {"frame_stack": 2, "seq_length": 2, "load_next_obs": True, "goal_mode": "last"}
    dataset = SequenceDataset(path, SEEN, hdf5_cache_mode=cache_mode, **window)
    with DatasetFile(path) as file:
        for key in SEEN:
            stored = torch.from_numpy(file.read("demo_1", f"obs/{key}"))
            stored = stored if key == "agentview_image" else stored.float()
            batch = dataset[[4, 7]]  # the first and the last step of demo_1
            assert torch.equal(batch["next_obs"][key][0], stored[[1, 1, 2]])
            assert torch.equal(batch["next_obs"][key][1], stored[[3, 3, 3]])
            assert torch.equal(batch["goal_obs"][key][0], stored[3])


@pytest.mark.parametrize("next_obs", [True, False])
def test_the_steps_that_follow_a_step(demo_file, next_obs):
    """The last step of a demo is real, but what is seen after it is known only from ``next_obs``."""
    path = demo_file(num_demos=2, length=4, next_obs=next_obs)
    with h5py.File(path, "a") as file:
        for number in range(2):
            demo = file[f"data/demo_{number}"]
            demo["rewards"][...], demo["terminals"][...] = (
                np.arange(1, 5) + 4 * number,
                [0, 0, 0, 1],
            )
    wanted = FollowingSteps(3, rewards=True, ends=True)
    found = SequenceDataset(path, ("object",), following=wanted)[[4, 6, 7]]["following"]
    known = [[1, 1, 1], [1, next_obs, 0], [next_obs, 0, 0]]
    assert found["mask"].tolist() == [[bool(entry) for entry in row] for row in known]
    assert found["rewards"].tolist() == [[5, 6, 7], [7, 8, 8], [8, 8, 8]]
    assert found["ends"].tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]
    with DatasetFile(path) as file:
        obs, actions = (torch.from_numpy(file.read("demo_1", k)) for k in ("obs/object", "actions"))
        last = (
            torch.from_numpy(file.read("demo_1", "next_obs/object"))[-1:] if next_obs else obs[-1:]
        )
    after = torch.cat([obs[1:], last]).float()
    rows = torch.tensor([[0, 1, 2], [2, 3, 3], [3, 3, 3]])
    assert torch.equal(found["obs"]["object"], after[rows])
    assert torch.equal(found["actions"], actions.float()[rows])
    plain = SequenceDataset(path, ("object",), following=FollowingSteps(1))[[4]]["following"]
    assert set(plain) == {"obs", "actions", "mask"} and plain["mask"].shape == (1, 1)
    for more in ("rewards", "ends"):
        wanted = FollowingSteps(1, **{more: True})
        some = SequenceDataset(path, ("object",), following=wanted)[[4]]["following"]
        assert set(some) == {"obs", "actions", "mask", more}


def test_the_goal_comes_without_next_obs_in_the_batch(demo_file):
    path = demo_file(num_demos=2, length=4)
    batch = SequenceDataset(path, KEYS, goal_mode="last")[[0, 3]]
    assert "next_obs" not in batch
    with DatasetFile(path) as file:
        wanted = file.read("demo_0", "next_obs/object")[-1].astype(np.float32)
    np.testing.assert_array_equal(batch["goal_obs"]["object"].numpy(), [wanted, wanted])


# ---- selection ----------------------------------------------------------------------------------


def test_filter_key_and_demo_limit(demo_file):
    path = demo_file(num_demos=12, length=3, filter_keys={"few": [11, 2, 7]})
    few = SequenceDataset(path, KEYS, filter_by_attribute="few")
    assert few.demos == ["demo_2", "demo_7", "demo_11"]
    limited = SequenceDataset(path, KEYS, filter_by_attribute="few", demo_limit=2)
    assert limited.demos == ["demo_2", "demo_7"]
    assert len(limited) == 6


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"hdf5_cache_mode": "lowdim"}, ConfigError, "did you mean 'low_dim'"),
        ({"goal_mode": "lst"}, ConfigError, "did you mean 'last'"),
        (
            {"seq_length": 0},
            ConfigError,
            "frame_stack is 1 and seq_length 0: both must be at least",
        ),
        (
            {"frame_stack": 0},
            ConfigError,
            "frame_stack is 0 and seq_length 1: both must be at least",
        ),
        ({"action_keys": ()}, ConfigError, "action_keys is empty"),
        ({"seq_length": 9, "pad_seq_length": False}, DatasetError, "no demo has the 9 steps"),
        ({"frame_stack": 9, "pad_frame_stack": False}, DatasetError, "no demo has the 9 steps"),
    ],
)
def test_impossible_arguments_say_what_is_possible(demo_file, arguments, error, words):
    with pytest.raises(error, match=words):
        SequenceDataset(demo_file(length=8), KEYS, **arguments)


# ---- statistics ---------------------------------------------------------------------------------


@every_mode
def test_statistics_are_those_of_numpy_over_all_steps(demo_file, cache_mode):
    path = demo_file(num_demos=3, length=[4, 9, 2], image=True)
    options = {"seq_length": 5, "hdf5_cache_mode": cache_mode, "hdf5_normalize_obs": True}
    dataset = SequenceDataset(path, SEEN, **options)

    def values(key):
        with DatasetFile(path) as file:
            return np.concatenate([file.read(demo, key) for demo in file.demos()])

    stats = dataset.statistics()
    for got, value in (
        (stats["obs"]["object"], values("obs/object").astype(np.float32).astype(np.float64)),
        (stats["actions"]["actions"], values("actions").astype(np.float32).astype(np.float64)),
        (stats["obs"]["agentview_image"], values("obs/agentview_image").reshape(-1, 3) / 255.0),
    ):
        np.testing.assert_allclose(got.mean, value.mean(0), rtol=1e-12)
        np.testing.assert_allclose(got.std, value.std(0), rtol=1e-10)
        np.testing.assert_allclose(got.min, value.min(0), rtol=1e-12)
        np.testing.assert_allclose(got.max, value.max(0), rtol=1e-12)
        assert got.mean.dtype == np.float64


@every_mode
def test_depth_images_and_scans_keep_their_shape_and_have_statistics(demo_file, cache_mode):
    path = demo_file(num_demos=2, length=4)
    random = np.random.default_rng(0)
    depth, scan = random.random((8, 3, 2, 1)), random.random((8, 5, 2))
    with h5py.File(path, "a") as file:
        for number, demo in enumerate(file["data"].values()):
            steps = slice(4 * number, 4 * number + 4)
            demo["obs/depth"], demo["obs/scan"] = depth[steps].astype(np.float32), scan[steps]
    dataset = SequenceDataset(path, ("depth", "scan"), seq_length=2, hdf5_cache_mode=cache_mode)
    batch = dataset[[0, 7]]
    np.testing.assert_array_equal(batch["obs"]["depth"][0].numpy(), depth[:2].astype(np.float32))
    np.testing.assert_array_equal(batch["obs"]["scan"][1].numpy(), scan[[7, 7]].astype(np.float32))
    stats = dataset.statistics()["obs"]
    np.testing.assert_allclose(stats["depth"].mean, [depth.mean()], rtol=1e-6)
    np.testing.assert_allclose(stats["scan"].max, scan.max(0), rtol=1e-6)


def test_values_stay_raw_when_statistics_are_wanted(demo_file):
    path = demo_file()
    plain, normalized = (
        SequenceDataset(path, KEYS, hdf5_normalize_obs=wanted)[[0, 9]] for wanted in (False, True)
    )
    assert_equal_batches(plain, normalized)


# ---- reports about the data -----------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """Demos of 3 and 2 steps with instructions "b" and "a"; row r has s = (r, -r), a grip of r / 10, images of r."""
    parts = []
    for first, length, word in ((0, 3, "b"), (3, 2, "a")):
        r = np.arange(first, first + length)
        pixels = np.broadcast_to(r[:, None, None, None], (length, 4, 4, 3))
        obs = {"s": np.stack([r, -r], 1) / 1.0, "i": pixels.astype(np.uint8)}
        obs |= {"d": pixels.astype(np.uint16), "f": pixels / 10, "scan": pixels[..., 0] / 10}
        more = {"steps": {"grip": r / 10}, "attrs": {"language": word}}
        parts.append(episode(length, obs, np.stack([r, -r], 1) / 10, **more))
    return write_demos(tmp_path / "a.hdf5", parts, control_freq=10, strict=False)


def test_a_dataset_describes_its_data(small):
    keys = ("s", "i", "s", "d", "f", "scan", LANGUAGE_KEY)
    data = SequenceDataset(small, keys, ("actions", "grip", "grip"), frame_stack=2, seq_length=3)
    assert data.obs_keys == ("s", "i", "d", "f", "scan", LANGUAGE_KEY)
    assert data.image_types == {"i": "uint8", "d": "integer", "f": "float"}
    assert data.action_dims == {"actions": 2, "grip": 1}
    shapes = {"s": (2,), "scan": (4, 4), **dict.fromkeys("idf", (4, 4, 3)), LANGUAGE_KEY: (2,)}
    assert data.obs_shapes == shapes
    assert (data.tasks, data.instructions.size, data.serves_language) == (("a", "b"), 2, True)
    assert (data.control_freq, data.window_steps, data.hdf5_path) == (10.0, 4, str(small))
    assert (data.demo_lengths.tolist(), data.demo_names()) == ([3, 2], {0: ["demo_0", "demo_1"]})
    assert data.demo_of(4) == ("demo_1", 1) and data.reward.is_identity
    stats = data.statistics()
    assert stats["obs"][LANGUAGE_KEY].std.tolist() == [1, 1]
    assert data[[0, 4]]["task_id"].tolist() == [1, 0]
    with refused("the dataset has no returns: make it with returns=config.algo.data_needs(config)"):
        _ = data.return_statistics
    plain = SequenceDataset(small, ["s"])
    assert not plain.serves_language and plain.tasks == ("a", "b")
    assert set(plain[[0]]) == {"obs", "rewards", "dones", "actions", "index", "task_id"}


def test_windows_of_some_keys(small):
    data = SequenceDataset(small, ("s", "i"), ("actions", "grip"), seq_length=3)
    batch, index = data.windows(np.array([0, 4]), ["i", "x"]), np.array([0, 4])
    assert set(batch) == {"obs", "actions", "pad_mask", "task_id"} and set(batch["obs"]) == {"i"}
    assert torch.equal(batch["obs"]["i"], data[index]["obs"]["i"])
    assert torch.equal(batch["actions"], data[index]["actions"])
    assert batch["actions"].shape == (2, 3, 3)
    assert batch["pad_mask"].tolist() == [[True] * 3, [True, False, False]]


def test_one_sample_by_any_number(small):
    data = SequenceDataset(small, ["s"])
    for index in (4, np.int64(4), torch.tensor(4), -1):
        sample = data[index]
        assert int(sample["index"]) == 4 and sample["obs"]["s"].tolist() == [[4.0, -4.0]]
    assert data[torch.tensor([4])]["obs"]["s"].shape == (1, 1, 2)
    for index in (5, -6):
        with pytest.raises(IndexError, match=f"sample {index} does not exist: the dataset has 5"):
            data[index]


def test_several_files(small):
    none = {**ENV_META, "env_kwargs": {}}
    obs = {"s": np.zeros((1, 2))}
    other = write_demos(small.with_name("b.hdf5"), [episode(1, obs)], none)
    sources = [DataSource(other, weight=2.0, entry=3), DataSource(small, entry=1)]
    data = SequenceDataset(sources, ["s"])
    assert data.demos == ["b.hdf5/demo_0", "a.hdf5/demo_0", "a.hdf5/demo_1"]
    assert data.demo_names() == {3: ["demo_0"], 1: ["demo_0", "demo_1"]}
    assert data.source_of_samples().tolist() == [0, 1, 1, 1, 1, 1]
    assert data.sample_weights.tolist() == [2, 1, 1, 1, 1, 1]
    assert data.control_freq == 10.0  # the first that is recorded
    assert SequenceDataset(other, ["s"]).control_freq is None
    assert SequenceDataset(sources[1:], ["s"]).sample_weights is None


@pytest.mark.parametrize(
    ("most", "numbers"), [(1000, range(5)), (5, range(5)), (3, [0, 2, 4]), (2, [0, 4])]
)
def test_statistics_of_evenly_spread_images(small, most, numbers):
    stats = SequenceDataset(small, ("i", "f", "scan", "s")).statistics(most)["obs"]
    mean, std = np.mean(numbers), np.std(numbers)
    for key, unit, shape in (("i", 255, (3,)), ("f", 10, (3,)), ("scan", 10, (4, 4))):
        assert stats[key].quantiles is None and stats[key].mean.shape == shape
        np.testing.assert_allclose(stats[key].mean, mean / unit, rtol=1e-6)
        np.testing.assert_allclose(stats[key].std, std / unit, rtol=1e-6)
    np.testing.assert_allclose(stats["s"].mean, [2, -2])  # of vectors all count
    assert stats["s"].quantiles[0.9].tolist() == pytest.approx([3.6, -0.4])
    assert sequence_dataset.MAX_IMAGES == 1000


def test_images_are_pinned(small, monkeypatch):
    data, seen = SequenceDataset(small, ["s"]), []
    monkeypatch.setattr(data.store, "pin_batches", lambda: seen.append("pinned"))
    data.pin_batches()
    assert seen == ["pinned"]


def test_language_and_scaled_rewards_of_what_follows(small):
    keys, wanted = ("s", LANGUAGE_KEY), FollowingSteps(2, rewards=True)
    data = SequenceDataset(
        small, keys, seq_length=3, frame_stack=2, transitions=Transitions(), following=wanted
    )
    batch = data[[0, 4]]
    assert batch["obs"][LANGUAGE_KEY].shape == (2, 4, 2)
    assert batch["next_obs"][LANGUAGE_KEY].tolist() == [[[0, 1]] * 2, [[1, 0]] * 2]
    data.numbers.scale_rewards(RewardTransform(shift=2.0))
    assert data[[0]]["following"]["rewards"].tolist() == [[2.0, 2.0]]
    moved = []
    data.numbers.to = moved.append
    assert data.to(torch.float64) is data  # a type in the place of a device
    assert moved == [torch.float64]
    assert data.windows(np.array([0]), [])["obs"][LANGUAGE_KEY].dtype == torch.float64


def test_a_first_demo_without_actions_is_named(small):
    with h5py.File(small, "a") as file:
        del file["data/demo_0/actions"]
    with refused("demo 'demo_0' has no 'actions' (found: |remove the demo or write its actions"):
        SequenceDataset(small, ["s"])


@pytest.mark.parametrize(
    ("config", "bounded"),
    [
        (None, False),
        ({}, True),
        ({"actions": None}, True),
        ({"actions": {"normalization": None}}, True),
        ({"actions": {"normalization": "min_max"}}, False),
        ({"grip": {"normalization": "min_max"}}, True),
    ],
)
def test_actions_without_a_normalization_are_bounded(tmp_path, config, bounded):
    obs = {"s": np.zeros((1, 1))}
    path = write_demos(tmp_path / "a.hdf5", [episode(1, obs, np.full((1, 1), 1.5))])
    if bounded:
        with refused("'actions' is 1.5 at step 0, outside [-1, 1]"):
            SequenceDataset(path, ["s"], action_config=config)
    else:
        assert SequenceDataset(path, ["s"], action_config=config)[0]["actions"].item() == 1.5


# ---- files that others wrote --------------------------------------------------------------------


@pytest.mark.parametrize("form", ["gzip", "chunked", "float32", "big endian", "bool dones"])
def test_any_layout_in_the_file_reads_alike(demo_file, form):
    path = demo_file(num_demos=3, length=7, image=True)
    before = SequenceDataset(path, SEEN, seq_length=3)[[0, 5, 9, 20]]
    options = {"gzip": {"compression": "gzip"}, "chunked": {"chunks": True}}.get(form, {})
    types = {"float32": "<f4", "big endian": ">f8"}
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            for key in ("obs/object", "obs/agentview_image", "actions"):
                values = demo[key][()]
                del demo[key]
                if values.dtype.kind == "f" and form in types:
                    values = values.astype(types[form])
                demo.create_dataset(key, data=values, **options)
            if form == "bool dones":
                dones = demo["dones"][()].astype(bool)
                del demo["dones"]
                demo["dones"] = dones
    for cache_mode in CACHE_MODES:
        after = SequenceDataset(path, SEEN, seq_length=3, hdf5_cache_mode=cache_mode)[[0, 5, 9, 20]]
        assert_equal_batches(before, after)


def test_a_file_cut_short_while_it_is_read_is_noticed(demo_file):
    path = demo_file(num_demos=3, length=7)
    dataset = SequenceDataset(path, KEYS, hdf5_cache_mode=None)
    dataset[[0]]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 4)
    with pytest.raises(DatasetError, match="cut short or damaged"):
        dataset[list(range(21))]


def long_demos(path, num_demos):
    return tiny_demos(path, {"x": 100}, 7, num_demos=num_demos, length=5000, next_obs=False)


def test_loading_takes_one_demo_at_a_time(tmp_path):
    path = long_demos(tmp_path / "long.hdf5", num_demos=3)
    tracemalloc.start()
    try:
        SequenceDataset(path, ["x"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Without the store, which is torch's: one demo's array in float64 and float32.
    assert peak <= 12 * 5000 * 100 + 1e6


@pytest.mark.nightly
def test_memory_stays_near_the_raw_bytes(tmp_path):
    """Growth of the peak by loading, in a process of its own."""
    small = tiny_demos(tmp_path / "small.hdf5", {"x": 100}, 7, num_demos=1, length=10)
    path = long_demos(tmp_path / "large.hdf5", num_demos=20)
    raw = 20 * 5000 * 4 * (100 + 7 + 1 + 1)
    script = """
import resource, sys
from imitate import SequenceDataset
SequenceDataset(sys.argv[1], ["x"], seq_length=10)[[0, 1]]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dataset = SequenceDataset(sys.argv[2], ["x"], seq_length=10)
dataset[[0, 1]]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    command = [sys.executable, "-c", script, str(small), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # On top of the store: one demo's array in float64 and float32 while it is read, and HDF5's own.
    assert int(done.stdout) * 1024 <= 1.1 * raw + 12 * 5000 * 100 + 3e6
