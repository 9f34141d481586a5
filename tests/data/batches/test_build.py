import h5py
import numpy as np
import pytest

from imitate import load_config
from imitate.data import ShuffledBatches, build_datasets, dataset_metadata
from imitate.errors import DatasetError

KEYS = ("robot0_eef_pos", "object")


def make_config(data, validate=False, **train):
    return load_config(
        {
            "algo_name": "bc",
            "experiment": {"validate": validate},
            "train": {"data": data if isinstance(data, list) else str(data), **train},
            "observation": {"modalities": {"obs": {"low_dim": list(KEYS)}}},
        }
    )


def entry(path, **values):
    return {"path": str(path), **values}


def test_all_demos_train_without_validation(demo_file):
    path = demo_file(filter_keys={"train": [0, 1], "valid": [2]})
    train_set, valid_set = build_datasets(make_config(path))
    assert train_set.demos == ["demo_0", "demo_1", "demo_2", "demo_3"]
    assert valid_set is None


def test_the_masks_train_and_valid_are_the_default(demo_file):
    path = demo_file(filter_keys={"train": [0, 1], "valid": [2]})
    train_set, valid_set = build_datasets(make_config(path, validate=True))
    assert train_set.demos == ["demo_0", "demo_1"]
    assert valid_set.demos == ["demo_2"]


def test_named_masks(demo_file):
    path = demo_file(filter_keys={"few": [3], "held": [1, 2]})
    config = make_config(
        path, validate=True, hdf5_filter_key="few", hdf5_validation_filter_key="held"
    )
    train_set, valid_set = build_datasets(config)
    assert train_set.demos == ["demo_3"]
    assert valid_set.demos == ["demo_1", "demo_2"]


def test_a_files_own_filter_key_leaves_the_validation_alone(demo_file):
    path = demo_file(
        num_demos=6, filter_keys={"better": [0, 1], "train": [0, 1, 2, 3], "valid": [4, 5]}
    )
    config = make_config([entry(path, filter_key="better")], validate=True)
    train_set, valid_set = build_datasets(config)
    assert train_set.demos == ["demo_0", "demo_1"]
    assert valid_set.demos == ["demo_4", "demo_5"]


@pytest.mark.parametrize(
    "masks", [{"valid": [1]}, {"train": [0, 1], "valid": [1, 2]}, {"train": [1], "valid": [1]}]
)
def test_a_demo_in_both_sets_is_an_error(demo_file, masks):
    path = demo_file(filter_keys=masks)
    with pytest.raises(DatasetError, match="1 validation demos.*'demo_1'.*hdf5_filter_key"):
        build_datasets(make_config(path, validate=True))


def test_validation_without_its_mask_is_an_error(demo_file):
    with pytest.raises(DatasetError, match="no filter key 'valid'"):
        build_datasets(make_config(demo_file(filter_keys={"train": [0]}), validate=True))


def test_the_validation_set_checks_its_actions_but_has_no_normalization_of_its_own(demo_file):
    path = demo_file(filter_keys={"train": [0, 1], "valid": [2, 3]})
    with h5py.File(path, "a") as file:
        file["data/demo_3/actions"][0, 0] = 2.0
    with pytest.raises(DatasetError, match="demo_3.*outside"):
        build_datasets(make_config(path, validate=True))
    config = make_config(
        path, validate=True, action_config={"actions": {"normalization": "min_max"}}
    )
    train_set, valid_set = build_datasets(config)
    batch = valid_set[[12]]  # raw: the first step of demo_3
    assert batch["actions"][0, 0, 0] == 2.0
    assert train_set.statistics()["actions"]["actions"].max[0] < 1.0


# ---- several files -------------------------------------------------------------------------------


def test_several_files_are_one_dataset(demo_file):
    one = demo_file("one.hdf5", num_demos=2, length=3, seed=1)
    two = demo_file("two.hdf5", num_demos=3, length=5, seed=2, filter_keys={"some": [0, 2]})
    config = make_config([entry(one), entry(two, filter_key="some", demo_limit=1)], seq_length=2)
    train_set, _ = build_datasets(config)
    assert train_set.demos == ["one.hdf5/demo_0", "one.hdf5/demo_1", "two.hdf5/demo_0"]
    assert len(train_set) == 3 + 3 + 5
    assert train_set.demo_of(7) == ("two.hdf5/demo_0", 1)
    with h5py.File(two) as file:
        wanted = file["data/demo_0/actions"][1:3].astype(np.float32)
    np.testing.assert_array_equal(train_set[7]["actions"].numpy(), wanted)
    assert train_set.sample_weights is None


@pytest.mark.parametrize("cache_mode", ["all", "low_dim", None])
def test_several_files_in_every_cache_mode(demo_file, cache_mode):
    one = demo_file("one.hdf5", num_demos=2, length=3, seed=1)
    two = demo_file("two.hdf5", num_demos=3, length=5, seed=2)
    train_set, _ = build_datasets(make_config([entry(one), entry(two)], hdf5_cache_mode=cache_mode))
    with h5py.File(two) as file:
        wanted = file["data/demo_2/obs/object"][4].astype(np.float32)
    np.testing.assert_array_equal(train_set[20]["obs"]["object"][0].numpy(), wanted)


def test_statistics_are_those_of_all_steps_of_all_files(demo_file):
    """Not the mean of the files' means: the files differ in length and in level; weights do not count."""
    paths = [
        demo_file(
            f"{i}.hdf5", num_demos=2 + i, length=3 + 4 * i, seed=i, action_scale=0.3 + 0.3 * i
        )
        for i in range(3)
    ]
    for level, path in enumerate(paths):
        with h5py.File(path, "a") as file:
            for demo in file["data"].values():
                demo["obs/object"][...] += 100.0 * level
    data = [entry(path, weight=1.0 + 5 * i) for i, path in enumerate(paths)]
    train_set, _ = build_datasets(make_config(data, hdf5_normalize_obs=True))
    statistics = train_set.statistics()
    for found, key in (
        (statistics["obs"]["object"], "obs/object"),
        (statistics["actions"]["actions"], "actions"),
    ):
        values = []
        for path in paths:
            with h5py.File(path) as file:
                values += [demo[key][()].astype(np.float32) for demo in file["data"].values()]
        joined = np.concatenate(values).astype(np.float64)
        np.testing.assert_allclose(found.mean, joined.mean(0), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found.std, joined.std(0), rtol=1e-12)
        np.testing.assert_array_equal(found.min, joined.min(0))
        np.testing.assert_array_equal(found.max, joined.max(0))


@pytest.mark.parametrize("by_size", [False, True])
def test_shares_of_a_batch_are_the_weights(demo_file, by_size):
    """Shares per file over 20,000 draws, within five standard deviations of a binomial."""
    lengths, weights = (4, 12, 24), (3.0, 1.0, 2.0)
    paths = [demo_file(f"{n}.hdf5", num_demos=1, length=n, seed=n) for n in lengths]
    data = [entry(path, weight=w) for path, w in zip(paths, weights, strict=True)]
    train_set, _ = build_datasets(make_config(data, normalize_weights_by_ds_size=by_size))
    batches = iter(ShuffledBatches(len(train_set), 40, seed=3, weights=train_set.sample_weights))
    drawn = np.concatenate([next(batches) for _ in range(500)])
    found = np.bincount(train_set.source_of_samples()[drawn], minlength=3) / len(drawn)
    # By file: 3 : 1 : 2. By sample: 3 * 4 : 1 * 12 : 2 * 24.
    wanted = np.array([1 / 2, 1 / 6, 1 / 3] if by_size else [1 / 6, 1 / 6, 2 / 3])
    bound = 5 * np.sqrt(wanted * (1 - wanted) / len(drawn))
    assert (np.abs(found - wanted) < bound).all(), (found, wanted)


def test_weights_per_sample_and_per_file(demo_file):
    one = demo_file("one.hdf5", num_demos=1, length=2)
    two = demo_file("two.hdf5", num_demos=1, length=3)
    data = [entry(one, weight=2.0), entry(two, weight=6.0)]
    train_set, _ = build_datasets(make_config(data))
    np.testing.assert_allclose(train_set.sample_weights, [2, 2, 6, 6, 6])
    by_size, _ = build_datasets(make_config(data, normalize_weights_by_ds_size=True))
    np.testing.assert_allclose(by_size.sample_weights, [1, 1, 2, 2, 2])
    dropped, _ = build_datasets(
        make_config(data, normalize_weights_by_ds_size=True, seq_length=2, pad_seq_length=False)
    )
    np.testing.assert_allclose(dropped.sample_weights, [2, 3, 3])


def test_equal_weights_of_files_by_size_mean_equal_shares(demo_file):
    one = demo_file("one.hdf5", num_demos=1, length=2)
    two = demo_file("two.hdf5", num_demos=1, length=3)
    train_set, _ = build_datasets(
        make_config([entry(one), entry(two)], normalize_weights_by_ds_size=True)
    )
    np.testing.assert_allclose(train_set.sample_weights, [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3])


def test_files_that_do_not_fit_together(demo_file):
    one = demo_file("one.hdf5", obs_dims={"robot0_eef_pos": 3, "object": 10})
    two = demo_file("two.hdf5", obs_dims={"robot0_eef_pos": 3, "object": 14})
    with pytest.raises(DatasetError) as error:
        build_datasets(make_config([entry(one), entry(two)]))
    for words in ("two.hdf5", "'demo_0'", "'obs/object'", "(14,)", "(10,)", "one.hdf5"):
        assert words in str(error.value)


# ---- metadata ------------------------------------------------------------------------------------


def test_metadata(demo_file):
    config = make_config(demo_file())
    env_meta, shapes, dims, low, high = dataset_metadata(config)
    assert env_meta["env_name"] == "Lift"
    assert shapes == {"robot0_eef_pos": (3,), "object": (10,)}
    assert dims == {"actions": 7}
    assert (low, high) == ([-1.0] * 7, [1.0] * 7)


def test_limits_of_actions_beyond_one_are_the_training_demos(demo_file):
    path = demo_file(num_demos=2, action_dim=2, filter_keys={"train": [0], "valid": [1]})
    with h5py.File(path, "a") as file:
        file["data/demo_0/actions"][0] = [3.0, -0.5]
        file["data/demo_1/actions"][0] = [9.0, -9.0]
        for demo in file["data"].values():
            demo["gripper"] = np.full(12, 0.5)
        lowest = file["data/demo_0/actions"][()].min(0)
        highest = file["data/demo_0/actions"][()].max(0)
    config = make_config(path, validate=True, action_keys=["actions", "gripper"])
    _, _, dims, low, high = dataset_metadata(config)
    assert dims == {"actions": 2, "gripper": 1}
    np.testing.assert_allclose(low, [*lowest, -1.0])
    np.testing.assert_allclose(high, [*highest, 1.0])
    assert high[0] == 3.0


def test_the_environment_is_that_of_the_first_file_that_is_evaluated(demo_file):
    one = demo_file("one.hdf5", env_meta={"env_name": "Stack", "type": 1, "env_kwargs": {}})
    two = demo_file("two.hdf5")
    env_meta = dataset_metadata(make_config([entry(one, eval=False), entry(two)]))[0]
    assert env_meta["env_name"] == "Lift"


def test_stacked_frames_and_sequences_have_a_pad_mask(demo_file):
    path = demo_file()
    assert "pad_mask" not in build_datasets(make_config(path))[0][[0]]
    batch = build_datasets(make_config(path, seq_length=3, frame_stack=2))[0][[0, 11]]
    assert batch["pad_mask"].tolist() == [[False, True, True, True], [True, True, False, False]]
