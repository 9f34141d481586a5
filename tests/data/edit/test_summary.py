"""Statistics of files against numpy."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imitate.data import DatasetFile
from imitate.data.edit.summary import key_statistics, summarize, summarize_shards
from imitate.data.file.extents import Extent
from imitate.data.shards.folder import shards_at
from imitate.data.shards.index import write_index
from tests.demo_files import episode, write_demos
from tests.refusals import refused


class Pieces:
    """The arrays of demos in memory, in the place of those of a file."""

    def __init__(self, pieces):
        self.demos = {f"demo_{number}": piece for number, piece in enumerate(pieces)}

    def of(self, demo):
        array, self.read_steps = self.demos[demo], []
        return {key: Extent(array.shape, array.dtype, None) for key in ("actions", "obs/image")}

    def read(self, demo, key, start, stop):
        self.read_steps.append(stop - start)
        return self.demos[demo][start:stop]

    def statistics(self, key="actions"):
        return key_statistics(self, list(self.demos), key)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 1000),
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    width=st.integers(1, 40),
    offset=st.sampled_from([0.0, 1e3]),
)
def test_rows_in_whatever_pieces(seed, lengths, width, offset):
    random = np.random.default_rng(seed)
    pieces = [random.normal(size=(n, width)) + offset for n in lengths]
    found = Pieces(pieces).statistics()
    values = np.concatenate(pieces)
    np.testing.assert_allclose(found.mean, values.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.std, values.std(axis=0), rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(found.min, values.min(axis=0))
    np.testing.assert_array_equal(found.max, values.max(axis=0))


def test_many_rows_are_grouped_to_the_same_result():
    values = np.random.default_rng(0).normal(size=(50_003, 3)) * [1, 10, 100]
    found = Pieces(np.array_split(values, 7)).statistics()
    np.testing.assert_allclose(found.mean, values.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(found.std, values.std(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(found.min, values.min(axis=0))


def test_images_per_channel(demo_file):
    path = demo_file(num_demos=3, length=[7, 5, 9], image=True)
    found = summarize(path, keys=["obs/agentview_image"])["obs/agentview_image"]
    with DatasetFile(path) as file:
        images = np.concatenate([file.read(d, "obs/agentview_image") for d in file.demos()])
    pixels = images.reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(found.mean, pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.std, pixels.std(axis=0), rtol=1e-10)
    assert found.min.tolist() == pixels.min(axis=0).tolist()
    assert found.max.tolist() == pixels.max(axis=0).tolist()


def test_images_of_other_types_per_channel():
    images = np.random.default_rng(0).normal(size=(7, 4, 5, 3))
    found = Pieces([images]).statistics("obs/image")
    np.testing.assert_allclose(found.mean, images.mean(axis=(0, 1, 2)), rtol=1e-12)


def test_white_images_do_not_overflow():
    piece = np.full((3000, 2, 2, 1), 255, dtype=np.uint8)
    found = Pieces([piece] * 4).statistics("obs/image")
    assert (found.mean.tolist(), found.std.tolist()) == ([255.0], [0.0])


@pytest.mark.parametrize("filter_key", [None, "one"])
def test_keys_by_default(demo_file, filter_key):
    path = demo_file(num_demos=2, filter_keys={"one": [1]})
    found = summarize(path, filter_key=filter_key)
    assert list(found) == [
        "actions",
        "obs/object",
        "obs/robot0_eef_pos",
        "obs/robot0_eef_quat",
        "obs/robot0_gripper_qpos",
        "rewards",
    ]
    assert found["rewards"].mean.tolist() == [pytest.approx(1 / 12)]


@pytest.mark.parametrize("shape", [(50_003,), (50_003, 1)])
def test_numbers_of_one_column_such_as_rewards(shape):
    values = np.random.default_rng(0).normal(size=shape)
    pieces = Pieces([values])
    found = pieces.statistics()
    assert found.mean.shape == (1,)
    np.testing.assert_allclose(found.mean, [values.mean()], rtol=1e-12)
    np.testing.assert_allclose(found.std, [values.std()], rtol=1e-12)
    assert (found.min, found.max) == (values.min(), values.max())
    assert len(pieces.read_steps) == 1


def test_progress_and_what_has_no_statistics(tmp_path, demo_file):
    path, seen = demo_file(num_demos=2, filter_keys={"none": []}), []
    summarize(path, keys=["rewards", "actions"], on_key=lambda *at: seen.append(at))
    assert seen == [(1, 2), (2, 2)]
    with refused(f"{path}: there is no demo to compute statistics of"):
        summarize(path, filter_key="none")
    with h5py.File(tmp_path / "empty.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((0, 1))
    with refused("empty.hdf5: no demo has a step to compute statistics of"):
        summarize(tmp_path / "empty.hdf5")
    with h5py.File(tmp_path / "empty.hdf5", "a") as file:
        file["data/demo_1/actions"] = np.array([[1.0], [3.0]])
    assert summarize(tmp_path / "empty.hdf5")["actions"].mean.tolist() == [2.0]
    with h5py.File(path, "a") as file:
        del file["data/demo_1/rewards"]
        file["data/demo_1/rewards"] = np.zeros((12, 2))
    with refused("demo 'demo_1': a step of 'rewards' is (2,) float64, but () in 'demo_0': see"):
        summarize(path, keys=["rewards"])


def test_statistics_of_shards(tmp_path):
    image = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    obs = {"s": np.array([[1.0, 2.0]]), "i": image}
    for number in range(2):
        demos = [episode(1, {**obs, "s": obs["s"] + 2 * number}, np.full((1, 1), 0.5))]
        name = f"demo_{number}"
        masks = {"m": [0]} if number else {}
        write_demos(tmp_path / f"{number}.hdf5", demos, names=[name], filter_keys=masks)
    write_index(tmp_path)
    shards = shards_at(tmp_path)
    found = summarize_shards(shards)
    assert {"actions", "obs/s", "obs/i", "rewards"} == set(found)
    stats = found["obs/s"]
    assert [x.tolist() for x in (stats.mean, stats.std, stats.min, stats.max)] == [
        *([2.0, 3.0], [1.0, 1.0], [1.0, 2.0], [3.0, 4.0])
    ]
    images = found["obs/i"]
    np.testing.assert_allclose(images.mean, [22.5, 23.5, 24.5])
    np.testing.assert_allclose(images.std, image.reshape(-1, 3).std(0))
    np.testing.assert_allclose((images.min, images.max), ([0, 1, 2], [45, 46, 47]))
    only = summarize_shards(shards, filter_key="m", keys=["obs/s"])
    assert only["obs/s"].mean.tolist() == [3.0, 4.0] and len(only) == 1
    with refused(f"{shards.place}: the index has no statistics of 'obs/t'; did you mean 'obs/s'"):
        summarize_shards(shards, keys=["obs/t"])
    with refused("there is no filter key 'n'"):
        summarize_shards(shards, filter_key="n")


def test_pieces_have_two_mebibytes():
    pieces = Pieces([np.ones((3, 2**10, 2**10, 1), np.uint8)])
    pieces.statistics("obs/image")
    assert pieces.read_steps == [2, 2]


def test_large_arrays_are_read_in_pieces_of_so_many_bytes(monkeypatch):
    monkeypatch.setattr("imitate.data.edit.summary._PIECE_BYTES", 4096)
    for shape, dtype, steps in (
        ((1000,), "f8", 512),
        ((1000, 2, 2), "f8", 128),
        ((3, 600), "f8", 1),
        ((9000,), "u1", 4096),
    ):
        pieces = Pieces([np.ones(shape, dtype)])
        pieces.statistics()
        assert max(pieces.read_steps) == steps
