"""The index of a folder of shards: what it says of the files, and what it refuses."""

import json

import h5py
import numpy as np
import pytest
from pydantic import ValidationError

from imitate.data import DatasetFile
from imitate.data.download.download import sha256_of
from imitate.data.shards import index as module
from imitate.data.shards.folder import shards_at
from imitate.data.shards.index import (
    ArrayForm,
    Moments,
    ShardIndex,
    Statistics,
    describe_shard,
    write_index,
)
from imitate.errors import FileError
from tests.demo_files import episode, write_demos
from tests.refusals import refused


@pytest.fixture
def shards(demo_file, tmp_path):
    """Two shards of three and two demos; the mask 'train' leaves out the last of each."""
    names = [f"demo_{number}" for number in range(5)]
    one = {"length": [5, 7, 9], "names": names[:3], "filter_keys": {"train": [0, 1]}}
    two = {"length": [4, 6], "names": names[3:], "filter_keys": {"train": [0]}, "seed": 1}
    attrs = {"success": False, "language": "lift the cube"}
    demo_file("000.hdf5", num_demos=3, image=True, **one)
    demo_file("001.hdf5", num_demos=2, image=True, attrs=attrs, **two)
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
    assert (second.demos, second.lengths) == (["demo_3", "demo_4"], [4, 6])
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
    assert ShardIndex.parse(index.to_json(), "x") == index


@pytest.mark.parametrize(("mask", "numbers"), [(None, range(5)), ("train", (0, 1, 3))])
def test_statistics_merge_to_those_of_all_steps(shards, mask, numbers):
    demos = [f"demo_{number}" for number in numbers]
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


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({"names": ["demo_4"], "image": True}, "demo 'demo_4' occurs twice"),
        (
            {"names": ["demo_9"], "obs_dims": {"object": 3}},
            "002.hdf5: a step of 'next_obs/object' is [3] float64, but [10]",
        ),
    ],
)
def test_shards_that_do_not_fit_together_are_refused(shards, demo_file, file, words):
    demo_file("002.hdf5", num_demos=1, **file)
    with refused(words):
        write_index(shards)
    assert not (shards / "index.json").exists()


def test_a_value_that_is_not_finite_is_refused(demo_file):
    path = demo_file("000.hdf5")
    with h5py.File(path, "r+") as file:
        file["data/demo_1/obs/object"][3, 2] = np.nan
    with refused("demo 'demo_1': 'obs/object' is nan at step 3"):
        describe_shard(path)


def other(change):
    """The text of an index with a change."""

    def text(index):
        tree = json.loads(index)
        change(tree, tree["shards"][0])
        return json.dumps(tree)

    return text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other(lambda tree, _: tree.update(format="x")), "is not an index of shards"),
        (other(lambda tree, _: tree.update(version=2)), "version 2, but version 1 is read"),
        (other(lambda tree, _: tree["env_args"].update(type=[])), "'type' is '[]'"),
        (other(lambda _, shard: shard.update(file="../../etc/x.hdf5")), "shards.0.file"),
        (other(lambda _, shard: shard.update(lengths=[5])), "lengths has another number"),
        (
            other(lambda _, shard: shard["lengths"].__setitem__(0, 2**40)),
            r"less than 1099511627776",
        ),
        (
            other(lambda _, shard: shard.update(bytes=2**63)),
            "shards.0.bytes: Input should be less than 9223372036854775808",
        ),
        (
            other(lambda tree, _: tree["arrays"]["actions"].update(dtype="\udc80")),
            "contains text that is not Unicode: the index is damaged, write it again",
        ),
        (other(lambda _, shard: shard.update(success=[True])), "success has another number"),
        (other(lambda _, shard: shard.update(language=[])), "language has another number"),
        (other(lambda _, shard: shard.update(bytes="5")), "shards.0.bytes: "),
        (
            other(lambda tree, _: tree["shards"].append(tree["shards"][0])),
            "file '000.hdf5' occurs",
        ),
        (
            other(lambda _, shard: shard["filter_keys"].update(train=["demo_9"])),
            "that the file does not have",
        ),
        (
            other(lambda tree, _: tree["arrays"]["actions"].update(dtype="../x")),
            "not the name of a numpy type",
        ),
        (other(lambda tree, _: tree["shards"].clear()), "shards"),
        (
            other(lambda _, shard: shard["statistics"][""]["actions"].update(mean=[1.0])),
            "differ in length",
        ),
        (
            other(
                lambda _, shard: shard["statistics"][""]["actions"].update(
                    {part: [1.0] for part in ("mean", "m2", "min", "max")}
                )
            ),
            "statistics of 'actions' differ in length",
        ),
        (lambda text: text[: len(text) // 2], "cut short"),
    ],
)
def test_a_damaged_index_is_refused_in_one_line(shards, change, words):
    with refused(words) as caught:
        ShardIndex.parse(change(write_index(shards).to_json()), "demos/index.json")
    assert str(caught.value).startswith("demos/index.json")


def test_a_demo_that_is_there_twice_is_named(shards):
    def twice(_, shard):
        for key in ("demos", "lengths", "success", "language"):
            shard[key].append(shard[key][-1])

    with refused("P: the index: Value error, demo 'demo_2' occurs twice"):
        ShardIndex.parse(other(twice)(write_index(shards).to_json()), "P")


def test_statistics_of_an_array_that_is_not_listed_are_not_used(shards):
    text = other(lambda tree, _: tree["arrays"].pop("actions"))(write_index(shards).to_json())
    known = ShardIndex.parse(text, "x").statistics()
    assert "obs/object" in known and "actions" not in known


def test_an_index_of_another_toolkit_is_left_alone(tmp_path):
    (tmp_path / "index.json").write_text('{"weight_map": {}}')
    assert shards_at(tmp_path) is None
    with refused("there is no .hdf5 file"):
        write_index(tmp_path)


def test_moments_by_hand():
    """Rows 1, 3 and 8: mean 4, squared differences 9 + 1 + 16."""
    first, second = Moments.of(np.array([[1], [3]])), Moments.of(np.array([[8]]))
    assert (first.count, first.mean, first.m2, first.min, first.max) == (2, 2, 2, 1, 3)
    for parts in ([first, second], [second, first], [Moments.of(np.array([[1], [3], [8]]))]):
        both = Moments.merged(parts)
        assert (both.count, both.mean, both.m2, both.min, both.max) == (3, 4, 26, 1, 8)
    stored = Statistics.of(both)
    assert stored.model_dump() == {"count": 3, "mean": [4], "m2": [26], "min": [1], "max": [8]}
    assert stored.moments.m2.tolist() == [26] and stored.moments.count == 3


@pytest.mark.parametrize(
    ("one", "two", "fits"),
    [
        (([2], "float32"), ([2], "int64"), True),
        (([2], "uint8"), ([2], "uint8"), True),
        (([2], "uint8"), ([2], "float32"), False),
        (([2], "float32"), ([2], "uint8"), False),
        (([2], "float32"), ([3], "float32"), False),
    ],
)
def test_forms_that_fit(one, two, fits):
    one, two = (ArrayForm(shape=shape, dtype=dtype) for shape, dtype in (one, two))
    assert one.fits(two) is fits
    assert one.type == np.dtype(one.dtype)
    assert ArrayForm(shape=[], dtype="[('a', '<f4')]").type == np.dtype("V")


def test_frames_are_evenly_spread(tmp_path):
    """Of 130 frames 64 count; each has the value of its number."""
    numbers = np.arange(130, dtype=np.uint8)
    parts = [
        episode(len(part), {"i": np.broadcast_to(part[:, None, None, None], (len(part), 2, 1, 3))})
        for part in (numbers[:100], numbers[100:101], numbers[101:])
    ]
    index = write_index(write_demos(tmp_path / "000.hdf5", parts, filter_keys={"m": [1]}).parent)
    chosen = np.linspace(0, 129, 64).round() / 255
    found = index.statistics()["obs/i"]
    assert found.count == 128 and found.mean.shape == (3,)
    np.testing.assert_allclose(found.mean, chosen.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.m2 / 128, chosen.var(), rtol=1e-12)
    np.testing.assert_allclose((found.min[0], found.max[2]), (0, 129 / 255))
    assert ("obs/i" in index.statistics("m")) == (100 / 255 in chosen)


def test_arrays_that_are_measured_and_listed(tmp_path):
    two = np.zeros((2, 3))
    steps = {"action_dict/a": two, "own": two}
    obs = {"s": two, "scan": np.zeros((2, 3, 3)), "depth": np.zeros((2, 3, 3, 1)), "n": two[:, 0]}
    obs["one"] = two[:, :1]
    obs |= {"none": two[:, :0], "bool": two > 0, "i": np.zeros((2, 2, 2, 3), np.uint8)}
    demo = episode(2, obs, next_obs=obs, steps=steps, states=two)
    path = write_demos(tmp_path / "000.hdf5", [demo], strict=False)
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/text"] = np.array([b"a", b"b"])
        file["data/demo_0/obs/deep/x"] = two
        file["data/demo_0/next"] = np.zeros((2, 2, 2, 3), np.uint8)
    index = write_index(tmp_path)
    measured = {
        "actions",
        "rewards",
        "action_dict/a",
        "obs/s",
        "obs/n",
        "obs/bool",
        "obs/i",
        "obs/one",
    }
    assert set(index.statistics()) == {*measured, "obs/deep/x"}
    assert set(index.observations) == {*obs, "text"}
    assert index.observations["scan"] == ((3, 3), np.float64)
    assert index.statistics()["obs/n"].mean.tolist() == [0]
    with refused("P: there is no filter key 'm'; "):
        index.check_filter_key("m", "P")


def test_files_in_the_given_order_and_arrays_that_all_have(tmp_path):
    obs = {"s": np.zeros((1, 2))}
    for name, more in (("a", {}), ("b", {"t": np.zeros((1, 1))}), ("c", {"s": np.uint8([[1, 2]])})):
        write_demos(tmp_path / f"{name}.hdf5", [episode(1, {**obs, **more})], names=[name])
    index = write_index(tmp_path, [tmp_path / "b.hdf5", tmp_path / "a.hdf5"])
    assert [shard.file for shard in index.shards] == ["b.hdf5", "a.hdf5"]
    assert "obs/t" not in index.arrays and "obs/t" not in index.statistics()
    assert list(index.lengths()) == [1, 1]
    with refused(
        "c.hdf5: a step of 'obs/s' is [2] uint8, but [2] float64 in a.hdf5: give it the same shape"
    ):
        write_index(tmp_path, [tmp_path / "a.hdf5", tmp_path / "c.hdf5"])
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        file.create_group("data")
    with refused(f"{tmp_path / 'd.hdf5'}: holds no demo: a shard needs one"):
        describe_shard(tmp_path / "d.hdf5")
    bad = write_demos(tmp_path / "a b.hdf5", [episode(1, obs)])
    with refused(f"{bad}: cannot be a shard: file: "):
        describe_shard(bad)


def test_sizes_and_depths_of_a_text(shards, monkeypatch):
    assert module.MAX_BYTES == 134_217_728
    index = write_index(shards)
    text = index.to_json()
    monkeypatch.setattr(module, "MAX_BYTES", len(text))
    assert ShardIndex.parse(text, "P") == index
    for longer in (f"{text} ", "[]"):
        with refused("P: is not an index of shards: write one with"):
            ShardIndex.parse(longer, "P")
    with refused("P: is nested deeper than 100 levels", error=FileError):
        ShardIndex.parse('{"a":' * 150 + "1" + "}" * 150, "P")
    with pytest.raises(ValidationError, match="frozen"):
        index.shards[0].bytes = 5
