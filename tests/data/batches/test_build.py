"""Datasets of a configuration: files, filter keys, weights, what fits together, validation apart from training."""

import logging

import h5py
import numpy as np
import pytest

from imitate.config.train import SampleWeightConfig
from imitate.data import DataSource, ShuffledBatches, build_datasets, dataset_metadata
from imitate.data.batches.build import (
    action_limits,
    best_demos,
    check_held_out,
    names_of_numbers,
    step_weights,
    training_filter_key,
    training_sources,
    weight_keys,
)
from imitate.data.shards.data_files import DataFiles
from imitate.data.shards.index import write_index
from imitate.errors import ConfigError, DatasetError
from imitate.system.instructions import LANGUAGE_KEY
from tests.demo_files import data_config, episode, features, write_demos

KEYS, X = ("robot0_eef_pos", "object"), {"obs": ["x"]}
DIMS = {"robot0_eef_pos": 3, "object": 10}


def make_config(data, *args, obs=KEYS, **train):
    return data_config(data, obs, *args, **train)


def build(data, **train):
    return build_datasets(make_config(data, **train))


def entry(path, **values):
    return {"path": str(path), **values}


def replaced(path, key, make):
    """The file, in whose demos ``key`` has become ``make(array)``."""
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            value = make(demo[key][()])
            del demo[key]
            demo[key] = value
    return path


@pytest.mark.parametrize(
    ("masks", "options", "train", "valid"),
    [
        ({"train": [0, 1], "valid": [2]}, {}, [0, 1, 2, 3], None),
        ({"train": [0, 1], "valid": [2]}, {"validate": True}, [0, 1], [2]),
        (
            {"few": [3], "held": [1, 2]},
            {"validate": True, "hdf5_filter_key": "few", "hdf5_validation_filter_key": "held"},
            [3],
            [1, 2],
        ),
    ],
)
def test_demos_that_train_and_validate(demo_file, masks, options, train, valid):
    train_set, valid_set = build(demo_file(filter_keys=masks), **options)
    assert train_set.demos == [f"demo_{number}" for number in train]
    assert (valid_set and valid_set.demos) == (valid and [f"demo_{number}" for number in valid])


def test_a_files_own_filter_key_leaves_the_validation_alone(demo_file):
    masks = {"better": [0, 1], "train": [0, 1, 2, 3], "valid": [4, 5]}
    path = demo_file(num_demos=6, filter_keys=masks)
    train_set, valid_set = build([entry(path, filter_key="better")], validate=True)
    assert train_set.demos == ["demo_0", "demo_1"]
    assert valid_set.demos == ["demo_4", "demo_5"]


def test_the_validation_set_checks_its_actions_but_has_no_normalization_of_its_own(demo_file):
    path = demo_file(filter_keys={"train": [0, 1], "valid": [2, 3]})
    with h5py.File(path, "a") as file:
        file["data/demo_3/actions"][0, 0] = 2.0
    with pytest.raises(DatasetError, match="demo_3.*outside"):
        build(path, validate=True)
    scaled = {"actions": {"normalization": "min_max"}}
    train_set, valid_set = build(path, validate=True, action_config=scaled)
    batch = valid_set[[12]]  # raw: the first step of demo_3
    assert batch["actions"][0, 0, 0] == 2.0
    assert train_set.statistics()["actions"]["actions"].max[0] < 1.0


BOTH = {"better": [0, 1], "worse": [2, 3], "valid": [3]}


@pytest.mark.parametrize(
    ("masks", "sections", "words"),
    [
        ({"valid": [1]}, [{}], "1 validation demos.*'demo_1'.*hdf5_filter_key"),
        ({"train": [0, 1], "valid": [1, 2]}, [{}], "1 validation demos.*'demo_1'"),
        ({"train": [1], "valid": [1]}, [{}], "1 validation demos.*'demo_1'"),
        ({"train": [0]}, [{}], "no filter key 'valid'.*imitate dataset split .*demos.hdf5"),
        (
            BOTH,
            [{"filter_key": "better", "weight": 3.0}, {"filter_key": "worse"}],
            "1 validation demos.*'demo_3'.*filter key 'worse'",
        ),
    ],
)
def test_demos_do_not_both_train_and_validate(demo_file, masks, sections, words):
    path = demo_file(filter_keys=masks)
    with pytest.raises(DatasetError, match=words):
        build([entry(path, **section) for section in sections], validate=True)


# ---- several files -------------------------------------------------------------------------------


def test_several_files_are_one_dataset(demo_file):
    one = demo_file("one.hdf5", num_demos=2, length=3, seed=1)
    two = demo_file("two.hdf5", num_demos=3, length=5, seed=2, filter_keys={"some": [0, 2]})
    train_set, _ = build([entry(one), entry(two, filter_key="some", demo_limit=1)], seq_length=2)
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
    train_set, _ = build([entry(one), entry(two)], hdf5_cache_mode=cache_mode)
    with h5py.File(two) as file:
        wanted = file["data/demo_2/obs/object"][4].astype(np.float32)
    np.testing.assert_array_equal(train_set[20]["obs"]["object"][0].numpy(), wanted)


def test_statistics_are_those_of_all_steps_of_all_files(demo_file):
    """Not the mean of the files' means: the files differ in length and in level; weights do not count."""
    paths = []
    for i in range(3):
        sizes = {"num_demos": 2 + i, "length": 3 + 4 * i, "action_scale": 0.3 + 0.3 * i}
        paths.append(demo_file(f"{i}.hdf5", seed=i, **sizes))
    for level, path in enumerate(paths):
        with h5py.File(path, "a") as file:
            for demo in file["data"].values():
                demo["obs/object"][...] += 100.0 * level
    data = [entry(path, weight=1.0 + 5 * i) for i, path in enumerate(paths)]
    train_set, _ = build(data, hdf5_normalize_obs=True)
    statistics = train_set.statistics()
    for part, key in (("obs", "obs/object"), ("actions", "actions")):
        found, values = statistics[part][key.rpartition("/")[2]], []
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
    train_set, _ = build(data, normalize_weights_by_ds_size=by_size)
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
    train_set, _ = build(data)
    np.testing.assert_allclose(train_set.sample_weights, [2, 2, 6, 6, 6])
    by_size, _ = build(data, normalize_weights_by_ds_size=True)
    np.testing.assert_allclose(by_size.sample_weights, [1, 1, 2, 2, 2])
    dropped, _ = build(data, normalize_weights_by_ds_size=True, seq_length=2, pad_seq_length=False)
    np.testing.assert_allclose(dropped.sample_weights, [2, 3, 3])


# ---- files that fit together ---------------------------------------------------------------------


def refused(paths, **config):
    with pytest.raises(DatasetError) as error:
        build([entry(path) for path in paths], **config)
    text = str(error.value)
    assert "\n" not in text
    assert all(str(path) in text for path in paths)
    return text


def test_a_key_that_one_file_lacks(demo_file):
    one, two = demo_file("one.hdf5", obs_dims=DIMS), demo_file("two.hdf5", obs_dims={"object": 10})
    text = refused([one, two])
    assert "'obs/robot0_eef_pos' is missing, but has shape (3,) in the other file" in text
    assert "or leave a file out of train.data" in text
    words = "'obs/robot0_eef_pos' has shape (3,), but is missing in the other file"
    assert words in refused([two, one])


def test_another_size_of_action_and_of_observation_in_one_line(demo_file):
    one = demo_file("one.hdf5", obs_dims=DIMS)
    two = demo_file("two.hdf5", obs_dims={**DIMS, "object": 14}, action_dim=6)
    text = refused([one, two])
    assert "'demo_0'" in text
    assert "a step of 'obs/object' has shape (14,), but (10,) in the other file" in text
    assert "a step of 'actions' has shape (6,), but (7,) in the other file" in text


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (np.zeros((12, 16, 16, 3), np.uint8), "has shape (16, 16, 3), but (8, 6, 3)"),
        (np.zeros((12, 8, 6, 3), np.float32), "is not uint8, but uint8"),
    ],
)
def test_images_of_another_size_or_type(demo_file, frames, words):
    one, two = demo_file("one.hdf5", image=True), demo_file("two.hdf5", image=True)
    replaced(two, "obs/agentview_image", lambda _: frames)
    words = f"'obs/agentview_image' {words} in the other file"
    assert words in refused([one, two], rgb=["agentview_image"])


def test_float32_and_float64_fit_together(demo_file):
    one, two = demo_file("one.hdf5"), demo_file("two.hdf5", seed=1)
    replaced(two, "obs/object", lambda values: values.astype(np.float32))
    assert len(build([entry(one), entry(two)])[0]) == 2 * 4 * 12


def test_next_obs_of_one_file_alone_is_made_up_for_both(demo_file):
    one, two = demo_file("one.hdf5"), demo_file("two.hdf5", seed=1, next_obs=False)
    train_set, _ = build([entry(one), entry(two)], hdf5_load_next_obs=True)
    batch, following = train_set[[0, 48]], train_set[[1, 49]]
    np.testing.assert_array_equal(batch["next_obs"]["object"], following["obs"]["object"])


def test_another_control_rate_is_told(demo_file, caplog):
    one, two = demo_file("one.hdf5"), demo_file("two.hdf5", seed=1)
    for path, rate in ((one, 20.0), (two, 10.0)):
        with h5py.File(path, "a") as file:
            file["data"].attrs["control_freq"] = rate
    with caplog.at_level(logging.WARNING):
        build([entry(one), entry(two)])
    assert "two.hdf5 was recorded at 10 Hz, but" in caplog.text
    assert "one.hdf5 at 20" in caplog.text


def test_weight_0_is_not_read_at_all(demo_file):
    one = demo_file("one.hdf5", obs_dims=DIMS)
    other = demo_file("other.hdf5", obs_dims={"something_else": 2})
    train_set, _ = build([entry(other, weight=0.0), entry(one)])
    assert train_set.demos == ["demo_0", "demo_1", "demo_2", "demo_3"]
    with pytest.raises(ConfigError, match="train.data: every weight is 0"):
        build([entry(one, weight=0.0)])


def test_each_file_has_its_own_validation_demos(demo_file):
    one = demo_file("one.hdf5", filter_keys={"train": [0, 1], "valid": [2]})
    two = demo_file("two.hdf5", seed=1, filter_keys={"train": [2, 3], "valid": [0]})
    train_set, valid_set = build([entry(one), entry(two)], validate=True)
    wanted = ["one.hdf5/demo_0", "one.hdf5/demo_1", "two.hdf5/demo_2", "two.hdf5/demo_3"]
    assert train_set.demos == wanted
    assert valid_set.demos == ["one.hdf5/demo_2", "two.hdf5/demo_0"]


def test_a_file_listed_twice_is_validated_on_once(demo_file):
    path = demo_file(filter_keys={"better": [0, 1], "worse": [2], "valid": [3]})
    data = [entry(path, filter_key="better", weight=3.0), entry(path, filter_key="worse")]
    train_set, valid_set = build(data, validate=True)
    np.testing.assert_array_equal(train_set.sample_weights, [3.0] * 24 + [1.0] * 12)
    assert valid_set.demos == ["demo_3"]


def test_copies_of_demos_in_another_file_are_told(demo_file, caplog):
    one = demo_file("one.hdf5", seed=5, filter_keys={"train": [0, 1], "valid": [2]})
    two = demo_file("two.hdf5", seed=5, filter_keys={"train": [1, 2], "valid": [3]})
    with caplog.at_level(logging.WARNING):
        build([entry(one), entry(two)], validate=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"1 demo twice in the training data: demo 'demo_1' of {two} has the same actions as demo 'demo_1' of {one}",
        f"1 demo in both training and validation data: demo 'demo_2' of {one} has the same actions "
        f"as demo 'demo_2' of {two}",
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        build([entry(one), entry(demo_file("three.hdf5", seed=2))])
    assert not caplog.records


# ---- metadata ------------------------------------------------------------------------------------


def test_metadata(demo_file):
    env_meta, shapes, dims, low, high = dataset_metadata(make_config(demo_file()))
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
    assert "pad_mask" not in build(path)[0][[0]]
    for window in ({"seq_length": 2}, {"frame_stack": 2}):
        assert build(path, **window)[0][[0]]["pad_mask"].shape == (1, 2)
    batch = build(path, seq_length=3, frame_stack=2)[0][[0, 11]]
    assert batch["pad_mask"].tolist() == [[False, True, True, True], [True, True, False, False]]


@pytest.mark.parametrize(
    ("low", "high", "limits"),
    [
        ([-1.0, 0.0], [0.5, 1.0], ([-1, -1], [1, 1])),
        ([-1.00001, 0.0], [0.5, 1.00001], ([-1, -1], [1, 1])),  # of rounding
        ([-1.00002, 0.0], [0.5, 0.5], ([-1.00002, 0], [0.5, 0.5])),
        ([0.25, 0.0], [0.5, 1.00002], ([0.25, 0], [0.5, 1.00002])),
    ],
)
def test_limits_of_actions(low, high, limits):
    both = action_limits({"a": (np.array(low), np.array(high)), "b": (np.zeros(1), np.ones(1))})
    assert both == ({"a": 2, "b": 1}, [*limits[0], -1.0], [*limits[1], 1.0])


def lines(path, returns, **options):
    """Demos of one observation x, whose last step alone has a reward; the action of each is a tenth of its number."""
    demos = [
        episode(
            length,
            {"x": np.full((length, 1), 1.0)},
            np.full((length, 1), number / 10),
            rewards=np.arange(length) // (length - 1) * gained,
        )
        for number, (gained, length) in enumerate(returns)
    ]
    return write_demos(path, demos, **options)


@pytest.mark.parametrize(
    ("fraction", "kept"),
    [
        (0.2, 2),
        (0.2 - 1e-12, 2),  # rounding of the product is not a demo less
        (0.2 - 1e-8, 1),
        (0.29, 2),
        (0.05, 1),
        (1.0, 10),
    ],
)
def test_the_number_of_the_best_demos(tmp_path, fraction, kept):
    path = lines(tmp_path / "a.hdf5", [(number, 2) for number in range(10)])
    with DataFiles() as files:
        (source,) = best_demos([DataSource(path)], fraction, files)
    assert source.demos == {f"demo_{number}" for number in range(10 - kept, 10)}


def test_the_best_demos_have_rewards(tmp_path):
    path = lines(tmp_path / "a.hdf5", [(1, 2), (2, 2)])
    with h5py.File(path, "a") as file:
        del file["data/demo_1/rewards"]
    words = f"{path}: demo 'demo_1' has no 'rewards', which train.filter_best compares"
    with DataFiles() as files, pytest.raises(DatasetError) as error:
        best_demos([DataSource(path)], 0.5, files)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ({}, ()),
        ({"kind": "return"}, ("rewards",)),
        ({"kind": "return_to_go"}, ("rewards",)),
        ({"kind": "interventions"}, ("interventions",)),
        ({"kind": "key", "key": "w"}, ("w",)),
    ],
)
def test_arrays_that_weights_are_computed_from(section, keys):
    assert weight_keys(SampleWeightConfig(**section)) == keys


def test_weights_of_equal_and_nearly_equal_returns(tmp_path):
    """Without a spread all weigh alike; a spread of 1e-9 is one tenth of the smallest that is stretched to 1."""
    section = SampleWeightConfig(kind="return", temperature=0.1)
    for second, wanted in ((1.0, 1.0), (1.0 - 1e-4, np.exp(-10))):
        path = lines(tmp_path / "a.hdf5", [(1.0, 2), (second, 2)])
        data = build_datasets(data_config(path, ["x"]))[0]
        weights = step_weights(data, section)
        np.testing.assert_allclose(weights[2] / weights[0], wanted, rtol=1e-5)
        assert weights.mean() == pytest.approx(1) and weights.dtype == np.float32
    path = lines(tmp_path / "a.hdf5", [(1e-9, 2), (0, 2)])
    weights = step_weights(build_datasets(data_config(path, ["x"]))[0], section)
    np.testing.assert_allclose(weights[2] / weights[0], np.exp(-1), rtol=1e-5)
    data = build_datasets(data_config(path, ["x"]))[0]
    assert step_weights(data, SampleWeightConfig()).tolist() == [1, 1, 1, 1]


def test_the_coldest_weights_are_finite(tmp_path):
    path = lines(tmp_path / "a.hdf5", [(1.0, 2), (0.0, 2)])
    data = build_datasets(data_config(path, ["x"]))[0]
    for kind in ("return", "return_to_go"):
        section = SampleWeightConfig(kind=kind, temperature=1e-3, discount=1.0)
        assert step_weights(data, section).tolist() == [2.0, 2.0, 0.0, 0.0]


def test_one_file_has_no_weights_by_size_and_is_not_compared(tmp_path, caplog):
    path, other = (tmp_path / f"{name}.hdf5" for name in "ab")
    twice = episode(2, {"x": np.zeros((2, 1))}, 1)
    write_demos(path, [twice, twice], filter_keys={"train": [0], "valid": [1]})
    write_demos(other, [twice])
    data = [entry(path, lang="a"), entry(path, lang="b"), entry(other, weight=0.0)]
    train_set, valid_set = build(data[:1], normalize_weights_by_ds_size=True, validate=True, **X)
    assert train_set.sample_weights is None
    assert (valid_set.sources[0].lang, valid_set.demos) == ("a", ["demo_1"])
    _, valid_set = build(data, validate=True, **X)
    assert (valid_set.sources[0].lang, valid_set.demos) == (None, ["demo_1"])
    assert caplog.text == ""


def test_validation_demos_of_shards_are_not_trained_on(tmp_path):
    folder, file = tmp_path / "shards", tmp_path / "a.hdf5"
    masks = {"train": [0, 1], "valid": [1]}
    lines(folder / "0.hdf5", [(1, 2), (2, 2)], filter_keys=masks)
    lines(file, [(1, 2), (2, 2)], filter_keys=masks)
    write_index(folder)
    words = rf"{folder}: validation demos of filter key '{{}}', such as '{{}}', are training demos"
    with DataFiles() as files:

        def check(data, key="valid"):
            config = data_config(data, ["x"], validate=True)
            check_held_out(config, key, files)

        for key, demo in (("valid", "demo_1"), ("train", "demo_0")):
            with pytest.raises(DatasetError, match=words.format(key, demo)):
                check([entry(file), entry(folder)], key)
        check([entry(file)])  # files are compared elsewhere
        check([entry(file), entry(folder, weight=0.0)])
        check([entry(folder, filter_key="valid")], "none")


def test_weights_of_an_array_have_one_number_per_step(tmp_path):
    path = lines(tmp_path / "a.hdf5", [(1.0, 2)])
    with h5py.File(path, "a") as file:
        file["data/demo_0/two"] = np.ones((2, 2))
        file["data/demo_0/none"] = np.zeros(2)
        file["data/demo_0/some"] = np.array([0.0, 3.0])
    for key, found in (("two", "from 1 to 1"), ("none", "from 0 to 0"), ("some", None)):
        train = {"sample_weight": {"kind": "key", "key": key}}
        if found is None:
            weight = build_datasets(data_config(path, ["x"], **train))[0][[0, 1]]["weight"]
            assert weight.tolist() == [[0.0], [2.0]]
            continue
        words = rf"'{key}' \(train.sample_weight.key\) needs one number per step.* values {found}"
        with pytest.raises(DatasetError, match=words):
            build_datasets(data_config(path, ["x"], **train))


@pytest.mark.parametrize(
    ("masks", "own", "common", "validate", "chosen"),
    [
        ({}, None, None, False, None),
        ({"train": [0]}, None, None, False, None),
        ({"train": [0]}, None, None, True, "train"),
        ({}, None, None, True, None),
        ({}, None, "all", False, None),
        ({"train": [0]}, None, "all", True, "train"),
        ({"all": [0]}, None, "all", False, "all"),
        ({"m": [0], "n": [0]}, None, "m", False, "m"),
        ({"m": [0], "n": [0]}, "n", "m", True, "n"),
    ],
)
def test_the_mask_of_the_training_demos(tmp_path, masks, own, common, validate, chosen):
    path = lines(tmp_path / "a.hdf5", [(1, 2)], filter_keys=masks)
    data = [entry(path, **({} if own is None else {"filter_key": own}))]
    train = {} if common is None else {"hdf5_filter_key": common}
    config = data_config(data, ["x"], validate=validate, **train)
    with DataFiles() as files:
        (made,) = config.train.data
        assert training_filter_key(made, config, files) == chosen
        (source,) = training_sources(config, files)
    assert (source.path, source.filter_key, source.entry) == (path, chosen, 0)


def test_names_that_all_files_share(tmp_path):
    names = [
        {"obs/s": ["a", "b"], "actions": ["x"]},
        {"obs/s": ["a", "b"], "actions": ["y"], "obs/t": ["t"]},
        None,
    ]
    sources = []
    for number, found in enumerate(names):
        path = lines(tmp_path / f"{number}.hdf5", [(1, 2)])
        if found is not None:
            with h5py.File(path, "a") as file:
                file["data"].attrs["features"] = features(**found)
        sources.append(DataSource(path))
    with DataFiles() as files:
        assert names_of_numbers(sources[:1] * 2, files) == {"s": ["a", "b"], "actions": ["x"]}
        assert names_of_numbers(sources[:2], files) == {"s": ["a", "b"]}
        assert names_of_numbers(sources, files) == {}
        assert names_of_numbers([], files) == {}


def test_metadata_of_instructions_and_of_files_that_are_not_evaluated(tmp_path):
    paths = [lines(tmp_path / f"{name}.hdf5", [(1, 2), (2, 3)]) for name in "ab"]
    data = [entry(path, eval=False, lang=word) for path, word in zip(paths, "xy", strict=True)]
    with h5py.File(paths[1], "a") as file:
        file["data"].attrs["env_args"] = '{"env_name": "B", "type": 1, "env_kwargs": {}}'
    env_meta, shapes, dims, low, high = dataset_metadata(data_config(data, ["x", LANGUAGE_KEY]))
    assert env_meta["env_name"] == "Lift"  # of the first file
    assert (shapes, dims, low, high) == ({"x": (1,), LANGUAGE_KEY: (2,)}, {"actions": 1}, [-1], [1])
    data[0]["weight"] = 0.0
    assert dataset_metadata(data_config(data, ["x"]))[0]["env_name"] == "B"


def test_further_arrays_of_several_files_are_alike(tmp_path):
    paths = []
    for name, width in (("a", 1), ("b", 2)):
        demo = episode(2, {"x": np.zeros((2, 1))}, 1, steps={"own": np.zeros((2, width))})
        paths.append(entry(write_demos(tmp_path / f"{name}.hdf5", [demo])))
    with pytest.raises(DatasetError, match=r"a step of 'own' has shape \(2,\), but \(1,\) in the"):
        build(paths, dataset_keys=["own"], **X)
