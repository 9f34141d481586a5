"""The index of a folder of shards: what it says of the files, and what it refuses."""

import json

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.download import sha256_of
from imitate.data.shards.describe import describe_shard, write_index
from imitate.data.shards.folder import shards_at
from imitate.data.shards.index import ShardIndex
from imitate.errors import DatasetError


@pytest.fixture
def shards(demo_file, tmp_path):
    """Two shards of three and two demos; the mask 'train' leaves out the last of each."""
    demo_file(
        "000.hdf5",
        num_demos=3,
        length=[5, 7, 9],
        names=["demo_0", "demo_1", "demo_2"],
        filter_keys={"train": [0, 1]},
        image=True,
    )
    demo_file(
        "001.hdf5",
        num_demos=2,
        length=[4, 6],
        names=["demo_3", "demo_4"],
        filter_keys={"train": [0]},
        seed=1,
        image=True,
        attrs={"success": False, "language": "lift the cube"},
    )
    return tmp_path


def steps_of(folder, key, demos):
    """The values (N, D) of an array in the named demos of all shards."""
    found = []
    for path in sorted(folder.glob("*.hdf5")):
        with DatasetFile(path) as file:
            found += [file.read(demo, key) for demo in file.demos() if demo in demos]
    return np.concatenate(found).astype(np.float64)


def test_an_index_tells_demos_lengths_success_instructions_and_content(shards):
    write_index(shards)

    index = ShardIndex.parse((shards / "index.json").read_bytes(), "index.json")
    first, second = index.shards
    assert [first.file, second.file] == ["000.hdf5", "001.hdf5"]
    assert second.demos == ["demo_3", "demo_4"]
    assert second.lengths == [4, 6]
    assert first.success == [True] * 3
    assert second.success == [False] * 2
    assert first.language == [None] * 3
    assert second.language == ["lift the cube"] * 2
    assert first.sha256 == sha256_of(shards / "000.hdf5")
    assert first.bytes == (shards / "000.hdf5").stat().st_size
    assert index.filter_keys == {"train": 3}
    assert list(index.lengths()) == [5, 7, 9, 4, 6]
    assert list(index.lengths("train")) == [5, 7, 4]
    assert index.arrays["obs/object"].shape == [10]
    assert index.arrays["obs/agentview_image"].dtype == "uint8"
    assert index.env_args["env_name"] == "Lift"


@pytest.mark.parametrize(
    ("mask", "demos"),
    [
        (None, ["demo_0", "demo_1", "demo_2", "demo_3", "demo_4"]),
        ("train", ["demo_0", "demo_1", "demo_3"]),
    ],
)
def test_statistics_merge_to_those_of_all_steps(shards, mask, demos):
    stats = write_index(shards).statistics(mask)

    for key in ("actions", "obs/object", "obs/robot0_eef_quat"):
        values = steps_of(shards, key, demos)
        found = stats[key]
        assert found.count == len(values)
        np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(found.m2 / found.count, values.var(0), rtol=1e-12)
        np.testing.assert_array_equal(found.min, values.min(0))
        np.testing.assert_array_equal(found.max, values.max(0))


def test_statistics_of_images_are_per_channel_in_0_to_1(shards):
    # The shards have fewer frames than are sampled, so all of them count.
    found = write_index(shards).statistics()["obs/agentview_image"]

    demos = [f"demo_{i}" for i in range(5)]
    pixels = steps_of(shards, "obs/agentview_image", demos).reshape(-1, 3) / 255
    np.testing.assert_allclose(found.mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.m2 / found.count, pixels.var(0), rtol=1e-12)


def test_an_index_survives_writing_and_reading(shards):
    index = write_index(shards)

    assert ShardIndex.parse(index.to_json(), "x") == index


def test_demos_of_one_name_in_two_shards_are_refused(shards, demo_file):
    demo_file("002.hdf5", num_demos=1, names=["demo_4"], image=True)

    with pytest.raises(DatasetError, match="demo 'demo_4' is there twice"):
        write_index(shards)
    assert not (shards / "index.json").exists()


def test_arrays_of_other_sizes_are_refused(shards, demo_file):
    demo_file("002.hdf5", num_demos=1, names=["demo_9"], obs_dims={"object": 3})

    with pytest.raises(
        DatasetError, match=r"002.hdf5: a step of 'next_obs/object' is \[3\] float64, but \[10\]"
    ):
        write_index(shards)


def test_a_value_that_is_not_finite_is_refused(demo_file):
    path = demo_file("000.hdf5")
    with h5py.File(path, "r+") as file:
        file["data/demo_1/obs/object"][3, 2] = np.nan

    with pytest.raises(DatasetError, match="demo 'demo_1': 'obs/object' is nan at step 3"):
        describe_shard(path)


def test_a_folder_without_shards_has_no_index(tmp_path):
    with pytest.raises(DatasetError, match=r"there is no .hdf5 file"):
        write_index(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree.update(format="x"), "is no index of shards"),
        (lambda tree: tree.update(version=2), "version 2, wanted 1"),
        (lambda tree: tree["shards"][0].update(file="../../etc/x.hdf5"), "shards.0.file"),
        (lambda tree: tree["shards"][0].update(lengths=[5]), "lengths has another number"),
        (
            lambda tree: tree["shards"][0]["filter_keys"].update(train=["demo_9"]),
            "that are not there",
        ),
        (lambda tree: tree["shards"].clear(), "shards"),
        (
            lambda tree: tree["shards"][0]["statistics"][""]["actions"].update(mean=[1.0]),
            "differ in length",
        ),
    ],
)
def test_a_damaged_index_is_refused_in_one_line(shards, change, words):
    tree = json.loads(write_index(shards).to_json())
    change(tree)

    with pytest.raises(DatasetError, match=words) as caught:
        ShardIndex.parse(json.dumps(tree), "demos/index.json")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("demos/index.json")


def test_an_index_that_is_cut_short_is_refused(shards):
    text = write_index(shards).to_json()

    with pytest.raises(DatasetError, match="cut short"):
        ShardIndex.parse(text[: len(text) // 2], "index.json")


def test_an_index_of_another_toolkit_is_left_alone(tmp_path):
    (tmp_path / "index.json").write_text('{"weight_map": {}}')
    assert shards_at(tmp_path) is None
