"""Files that are trained on together: one error where they differ, no demo both trained and validated on."""

import logging

import h5py
import numpy as np
import pytest

from imitate import load_config
from imitate.data import build_datasets
from imitate.errors import ConfigError, DatasetError

DIMS = {"robot0_eef_pos": 3, "object": 10}


def make_config(data, validate=False, obs=tuple(DIMS), rgb=(), **train):
    return load_config(
        {
            "algo_name": "bc",
            "experiment": {"validate": validate},
            "train": {"data": data, **train},
            "observation": {"modalities": {"obs": {"low_dim": list(obs), "rgb": list(rgb)}}},
        }
    )


def entry(path, **values):
    return {"path": str(path), **values}


def refused(paths, **config):
    with pytest.raises(DatasetError) as error:
        build_datasets(make_config([entry(path) for path in paths], **config))
    text = str(error.value)
    assert "\n" not in text
    for path in paths:
        assert str(path) in text
    return text


def test_a_key_that_one_file_lacks(demo_file):
    one, two = demo_file("one.hdf5", obs_dims=DIMS), demo_file("two.hdf5", obs_dims={"object": 10})
    text = refused([one, two])
    assert "'obs/robot0_eef_pos' is missing, there it has shape (4, 3)" not in text
    assert "'obs/robot0_eef_pos' is missing, there it has shape (3,)" in text
    assert "leave one out of train.data" in text
    assert "'obs/robot0_eef_pos' has shape (3,), there it is missing" in refused([two, one])


def test_another_size_of_action_and_of_observation_in_one_line(demo_file):
    one = demo_file("one.hdf5", obs_dims=DIMS)
    two = demo_file("two.hdf5", obs_dims={**DIMS, "object": 14}, action_dim=6)
    text = refused([one, two])
    assert "a step of 'obs/object' has shape (14,), there (10,)" in text
    assert "a step of 'actions' has shape (6,), there (7,)" in text


def test_another_size_of_image(demo_file):
    one = demo_file("one.hdf5", image=True)
    two = demo_file("two.hdf5", image=True)
    with h5py.File(two, "a") as file:
        for demo in file["data"].values():
            del demo["obs/agentview_image"]
            demo["obs/agentview_image"] = np.zeros((12, 16, 16, 3), dtype=np.uint8)
    text = refused([one, two], rgb=["agentview_image"])
    assert "'obs/agentview_image' has shape (16, 16, 3), there (8, 6, 3)" in text


def test_images_of_another_type(demo_file):
    one, two = demo_file("one.hdf5", image=True), demo_file("two.hdf5", image=True)
    with h5py.File(two, "a") as file:
        for demo in file["data"].values():
            del demo["obs/agentview_image"]
            demo["obs/agentview_image"] = np.zeros((12, 8, 6, 3), dtype=np.float32)
    text = refused([one, two], rgb=["agentview_image"])
    assert "'obs/agentview_image' is not uint8, there uint8" in text


def test_float32_and_float64_fit_together(demo_file):
    one, two = demo_file("one.hdf5"), demo_file("two.hdf5", seed=1)
    with h5py.File(two, "a") as file:
        for demo in file["data"].values():
            values = demo["obs/object"][()]
            del demo["obs/object"]
            demo["obs/object"] = values.astype(np.float64)
    train_set, _ = build_datasets(make_config([entry(one), entry(two)]))
    assert len(train_set) == 2 * 4 * 12


def test_next_obs_of_one_file_alone_is_made_up_for_both(demo_file):
    one, two = demo_file("one.hdf5"), demo_file("two.hdf5", seed=1, next_obs=False)
    train_set, _ = build_datasets(make_config([entry(one), entry(two)], hdf5_load_next_obs=True))
    batch = train_set[[0, 48]]
    following = train_set[[1, 49]]
    np.testing.assert_array_equal(batch["next_obs"]["object"], following["obs"]["object"])


def test_another_control_rate_is_told(demo_file, caplog):
    one, two = demo_file("one.hdf5"), demo_file("two.hdf5", seed=1)
    for path, rate in ((one, 20.0), (two, 10.0)):
        with h5py.File(path, "a") as file:
            file["data"].attrs["control_freq"] = rate
    with caplog.at_level(logging.WARNING):
        build_datasets(make_config([entry(one), entry(two)]))
    assert "two.hdf5 has 10 actions per second, but" in caplog.text
    assert "one.hdf5 has 20" in caplog.text


# ---- weights -------------------------------------------------------------------------------------


def test_weight_0_is_not_read_at_all(demo_file, tmp_path):
    one = demo_file("one.hdf5", obs_dims=DIMS)
    other = demo_file("other.hdf5", obs_dims={"something_else": 2})
    train_set, _ = build_datasets(make_config([entry(other, weight=0.0), entry(one)]))
    assert train_set.demos == ["demo_0", "demo_1", "demo_2", "demo_3"]


def test_all_weights_0(demo_file):
    with pytest.raises(ConfigError, match="train.data: every weight is 0"):
        build_datasets(make_config([entry(demo_file(), weight=0.0)]))


# ---- training and validation apart ---------------------------------------------------------------


def test_each_file_has_its_own_validation_demos(demo_file):
    one = demo_file("one.hdf5", filter_keys={"train": [0, 1], "valid": [2]})
    two = demo_file("two.hdf5", seed=1, filter_keys={"train": [2, 3], "valid": [0]})
    train_set, valid_set = build_datasets(make_config([entry(one), entry(two)], validate=True))
    assert train_set.demos == [
        *("one.hdf5/demo_0", "one.hdf5/demo_1", "two.hdf5/demo_2", "two.hdf5/demo_3")
    ]
    assert valid_set.demos == ["one.hdf5/demo_2", "two.hdf5/demo_0"]


def test_a_file_without_validation_demos_is_named_with_the_command(demo_file):
    one = demo_file("one.hdf5", filter_keys={"train": [0, 1], "valid": [2]})
    two = demo_file("two.hdf5", filter_keys={"train": [0]})
    with pytest.raises(
        DatasetError, match="two.hdf5.*no filter key 'valid'.*imitate dataset split .*two.hdf5"
    ):
        build_datasets(make_config([entry(one), entry(two)], validate=True))


def test_a_file_listed_twice_must_not_train_on_its_validation_demos(demo_file):
    path = demo_file(filter_keys={"better": [0, 1], "worse": [2, 3], "valid": [3]})
    data = [entry(path, filter_key="better", weight=3.0), entry(path, filter_key="worse")]
    with pytest.raises(DatasetError, match="1 validation demos.*'demo_3'.*filter key 'worse'"):
        build_datasets(make_config(data, validate=True))


def test_a_file_listed_twice_is_validated_on_once(demo_file):
    path = demo_file(filter_keys={"better": [0, 1], "worse": [2], "valid": [3]})
    data = [entry(path, filter_key="better", weight=3.0), entry(path, filter_key="worse")]
    train_set, valid_set = build_datasets(make_config(data, validate=True))
    np.testing.assert_array_equal(train_set.sample_weights, [3.0] * 24 + [1.0] * 12)
    assert valid_set.demos == ["demo_3"]


def test_copies_of_demos_in_another_file_are_told(demo_file, caplog):
    one = demo_file("one.hdf5", seed=5, filter_keys={"train": [0, 1], "valid": [2]})
    two = demo_file("two.hdf5", seed=5, filter_keys={"train": [1, 2], "valid": [3]})
    with caplog.at_level(logging.WARNING):
        build_datasets(make_config([entry(one), entry(two)], validate=True))
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"1 demo trained on twice: demo 'demo_1' of {two} has the actions of demo 'demo_1' of {one}",
        f"1 demo both trained and validated on: demo 'demo_2' of {one} has the actions of demo 'demo_2' of {two}",
    ]


def test_different_demos_are_not_told_of(demo_file, caplog):
    one, two = demo_file("one.hdf5", seed=1), demo_file("two.hdf5", seed=2)
    with caplog.at_level(logging.WARNING):
        build_datasets(make_config([entry(one), entry(two)]))
    assert not caplog.records
