"""Demonstration files as they are read: names, arrays, pieces, metadata, and what is refused."""

import json
import os

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.file import hdf5_format as module
from imitate.data.file.hdf5_format import (
    DemoFile,
    NoDemosError,
    is_hdf5,
    natural_key,
    rate_of,
    shape_and_dtype,
    wrong_env_args,
)
from imitate.data.file.journal import JournaledFile
from imitate.errors import DatasetError, FileError
from imitate.train.observations import observed
from tests.demo_files import episode, write_demos
from tests.refusals import refused


def test_demos_in_natural_order_whatever_their_names(demo_file):
    names = ["demo_10", "demo_2", "b", "2024-01-09 run 3", "2024-01-09 run 12", "demo_1"]
    path = demo_file(num_demos=6, names=names, filter_keys={"some": [0, 1, 5]})
    with DatasetFile(path) as file:
        runs = ["2024-01-09 run 3", "2024-01-09 run 12"]
        assert file.demos() == [*runs, "b", "demo_1", "demo_2", "demo_10"]
        assert file.demos("some") == ["demo_1", "demo_2", "demo_10"]
        assert file.filter_keys() == {"some": ["demo_1", "demo_2", "demo_10"]}


def test_natural_key_takes_any_text():
    names = ["", "7", "a", "a7", "a07", "7a", "²", "a\u0663"]
    assert len(sorted(names, key=natural_key)) == len(names)
    names = ["b", "a10", "a07", "a7", "a0", "7a", "a", "a7b2", "a7b10"]
    ordered = ["7a", "a", "a0", "a07", "a7", "a7b2", "a7b10", "a10", "b"]
    assert sorted(names, key=natural_key) == ordered


def test_reads_arrays_shapes_and_metadata(demo_file):
    path = demo_file(num_demos=2, length=[5, 7], image=True, attrs={"model_file": "<mujoco/>"})
    with DatasetFile(path) as file:
        assert file.length("demo_1") == 7
        assert file.obs_keys("demo_0")[:2] == ["agentview_image", "object"]
        assert file.shape("demo_0", "obs/agentview_image") == (5, 8, 6, 3)
        assert file.read("demo_0", "actions").shape == (5, 7)
        np.testing.assert_array_equal(
            file.read("demo_1", "next_obs/object")[:-1], file.read("demo_1", "obs/object")[1:]
        )
        assert file.env_meta["env_name"] == "Lift"
        attrs = {"num_samples": 5, "success": True, "model_file": "<mujoco/>"}
        assert file.attrs("demo_0") == attrs and file.file_attrs["total"] == 12
        assert file.has("demo_0", "rewards") and not file.has("demo_0", "obs/nothing")


def test_a_file_without_env_args_has_no_environment(demo_file):
    path = demo_file()
    with h5py.File(path, "a") as file:
        del file["data"].attrs["env_args"]
    with DatasetFile(path) as file:
        assert file.env_meta == {}
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = "{not json"
    with (
        DatasetFile(path) as file,
        pytest.raises(DatasetError, match="'env_args'.*not a JSON object"),
    ):
        _ = file.env_meta


# ---- files, arrays and attributes exactly --------------------------------------------------------


def test_a_file_without_demonstrations_names_what_it_has(tmp_path):
    path = tmp_path / "a.hdf5"
    for count, words in (
        (0, "(found: nothing)"),
        (4, "(found: g0, g1, g2, g3)"),
        (5, "(found: g0, g1, g2, g3 and 1 more)"),
    ):
        with h5py.File(path, "w") as file:
            for number in range(count):
                file.create_group(f"g{number}")
        with refused(f"{path}: there is no group 'data' {words}:", error=NoDemosError):
            DemoFile(path)


def test_hdf5_keeps_little_of_its_own_records(demo_file):
    path = demo_file()
    with DemoFile(path) as file, DemoFile(path, swmr=True) as again:  # in two modes at once
        assert again.demos() == file.demos()
        config = file.group("demo_0").file.id.get_mdc_config()
    assert (config.initial_size, config.max_size, config.min_size) == (2**17, 2**17, 2**16)


@pytest.mark.parametrize(
    ("size", "starts"), [(32, [0, 2, 4]), (33, [0, 2, 4]), (31, [0, 1, 2, 3, 4]), (1, [0, 1, 2, 3, 4]), (80, [0])]
)  # fmt: skip
def test_pieces_of_an_array(tmp_path, monkeypatch, size, starts):
    assert module.PIECE_BYTES == 32 * 2**20
    values = np.arange(10.0).reshape(5, 2)  # 16 bytes per step
    obs = {"s": values, "none": np.zeros((5, 0))}
    monkeypatch.setattr(module, "PIECE_BYTES", size)
    with DemoFile(write_demos(tmp_path / "a.hdf5", [episode(5, obs)])) as file:
        pieces = dict(file.pieces("demo_0", "obs/s"))
        assert list(pieces) == starts
        np.testing.assert_array_equal(np.concatenate(list(pieces.values())), values)
        assert sum(len(part) for _, part in file.pieces("demo_0", "obs/none")) == 5


def test_arrays_of_numbers_of_at_most_64_bits(tmp_path):
    path = write_demos(tmp_path / "a.hdf5", [episode(3, {"s": np.arange(6.0).reshape(3, 2)})])
    with h5py.File(path, "r+") as file:
        demo = file["data/demo_0"]
        demo["wide"] = np.zeros(3, np.longdouble)
        demo["single"] = 3.0
        file["data/none"] = np.zeros(3)
    with DemoFile(path) as file:
        assert file.read("demo_0", "obs/s", 1).tolist() == [[2, 3], [4, 5]]
        assert file.read("demo_0", "obs/s", stop=1).tolist() == [[0, 1]]
        assert file.has("demo_0", "obs/s") and not file.has("demo_0", "obs/t")
        assert file.obs_keys("demo_0") == ["s"] and file.obs_keys("demo_0", "next_obs") == []
        with refused("'wide' cannot be read: it is cut short|expected numbers of at most 64 bits"):
            file.read("demo_0", "wide")
        with refused("demo 'demo_0' has no 'single' (the demo: "):
            file.read("demo_0", "single")
        with refused("demo 'demo_0' has no 'obs/t' ('obs/': "):
            file.shape("demo_0", "obs/t")
        with refused("'data/none' is not a group of arrays: it is damaged"):
            file.keys("none")
        with refused("there is no demo 'demo_1'; did you mean 'demo_0'"):
            file.keys("demo_1")


@pytest.mark.parametrize(
    ("shape", "stored", "claims"),
    [
        ((2**26, 1), 0, None),  # 64 MiB are always accepted
        ((2**26 + 1,), 0, "shape (67108865,) of uint8 claims 0.0625 GiB, but 0 MiB are stored"),
        ((0, 2**26 + 1), 0, "shape (0, 67108865) of uint8 claims 0.0625 GiB, but 0 MiB are stored"),
        ((1100 * 62_000,), 62_000, None),
        ((1100 * 62_000 + 1,), 62_000, "claims 0.0635 GiB, but 0.0591 MiB are stored"),
    ],
)
def test_sizes_that_no_compressor_reaches(tmp_path, shape, stored, claims):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        chunks = tuple(max(1, size) for size in shape)
        array = file.create_dataset("s", shape, "u1", chunks=chunks, maxshape=(None,) * len(shape))
        if stored:
            array.id.write_direct_chunk((0,), bytes(stored))
        if claims is None:
            assert shape_and_dtype(array.id) == (shape, np.uint8)
            return
        with pytest.raises(ValueError, match="claims") as error:
            shape_and_dtype(array.id)
    assert claims in str(error.value)


@pytest.mark.parametrize(
    ("said", "kwargs", "rate"),
    [
        (20, {"control_freq": 10}, 20.0),
        (None, {"control_freq": 10}, 10.0),
        (None, {}, None),
        (None, [], None),
        (True, {}, None),
        (0, {"control_freq": 10}, 10.0),
        ("20", {"control_freq": -1}, None),
        ("20", {}, None),
        (0, {}, None),
        (1e-3, {}, 1e-3),
        (float("inf"), {}, None),
        (float("nan"), {}, None),
    ],
)
def test_the_rate(said, kwargs, rate):
    found = rate_of(said, {"env_kwargs": kwargs})
    assert found == rate and type(found) is type(rate)


def test_the_environments_description(demo_file):
    kinds = {"env_kwargs": [1], "env_name": 3, "type": True, "wrappers": "x" * 50}
    assert list(wrong_env_args(kinds)) == [
        ("env_kwargs", "is '[1]': write a JSON object, such as {}"),
        ("env_name", "is '3': write a text"),
        ("type", "is 'True': write a whole number"),
        ("wrappers", f"is '{'x' * 40}': write a list, such as []"),
    ]
    assert list(wrong_env_args({"env_name": None})) == []
    path = demo_file()

    def meta(text):
        with h5py.File(path, "r+") as file:
            file["data"].attrs["env_args"] = text
        with DemoFile(path) as file:
            return file.env_meta

    where = f"{path}: attribute 'env_args' of group 'data'"
    assert meta('{"env_name": "x"}') == {"env_name": "x"}
    assert meta('{"env_kwargs": null}') == {"env_kwargs": {}}
    assert meta('{"env_kwargs": {"a": 1}}') == {"env_kwargs": {"a": 1}}
    with refused(f"{where} is not a JSON object (begins '[{'1, ' * 13}'): write one"):
        meta(json.dumps([1] * 50))
    with refused(f"{path}: 'type' in attribute 'env_args' of group 'data' is 'x': write a whole"):
        meta('{"type": "x"}')
    with refused("not a JSON object"):
        meta('{"a":' * 100_000)
    meta('{"a":' * 50 + "1" + "}" * 50)
    with refused(f"{where}: is nested deeper than 100 levels", error=FileError):
        meta('{"a":' * 150 + "1" + "}" * 150)


def test_attributes(demo_file):
    path = demo_file(num_demos=2)
    with h5py.File(path, "r+") as file:
        demo = file["data/demo_0"]
        demo.attrs["raw"] = np.bytes_(b"a\xff")
        demo.attrs["list"] = [1, 2]
        demo.attrs["success"] = [1]
        file["data/demo_1"].attrs["success"] = [0, 0]
        file["data"].attrs["n"] = np.int64(5)
        file["data"].attrs["fields"] = np.zeros(2, [("a", "i4"), ("b", "i4")])
    with DemoFile(path) as file:
        found = file.attrs("demo_0", ["raw", "list", "num_samples", "missing"])
        assert found.pop("list").tolist() == [1, 2]
        assert found == {"raw": "a\ufffd", "num_samples": 12} and type(found["num_samples"]) is int
        assert (
            file.file_attrs["fields"] == "[(0, 0) (0, 0)]"
        )  # arrays with fields cannot be compared with numbers
        assert file.file_attrs["n"] == 5 and "n" not in file.attrs("demo_0")
        assert file.success("demo_0") is True
        with refused("attribute 'success' cannot be read|it is '[0 0]', not true or false"):
            file.success("demo_1")


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        *((name, b"", True) for name in ("a.hdf5", "a.h5", "a.partial")),
        ("a.bin", b"", False),
        ("a.hdf5", None, False),
        ("a.bin", "HDF5", True),
        ("missing.hdf5", ..., False),
    ],
)
def test_files_that_are_opened_as_hdf5(tmp_path, name, content, found):
    path = tmp_path / name
    if content is None:
        path.mkdir()
    elif content == "HDF5":
        h5py.File(path, "w").close()
    elif content is not ...:
        path.write_bytes(content)
    assert is_hdf5(path) is found


def test_a_file_that_is_being_changed(tmp_path, monkeypatch):
    def locked(*_, **__):
        raise OSError("unable to lock file")

    path = tmp_path / "a.hdf5"
    writer = JournaledFile(path)
    writer.write(b"no HDF5")
    with refused(f"{path}: is not an HDF5 file"):  # whoever writes it
        DemoFile(path)
    monkeypatch.setattr(module, "ConfinedFile", locked)
    with refused(f"{path}: another process is changing it: try again when that process has ended"):
        DemoFile(path)
    writer.close()
    with refused(f"{path}: is not an HDF5 file"):
        DemoFile(path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "a.bin"
    path.write_bytes(b"x")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert is_hdf5(path)
    monkeypatch.setattr(module, "ConfinedFile", refuse)
    with refused(f"{path}: this user has no permission to read it: change its permissions"):
        DemoFile(path)


# ---- observations by their modality --------------------------------------------------------------

STEP = {
    "joints": np.zeros(3),
    "pose": np.zeros((4, 4)),
    "count": np.zeros((), dtype=np.int64),
    "camera_image": np.zeros((8, 6, 3), dtype=np.uint8),
    "camera_depth": np.zeros((8, 6, 1), dtype=np.float32),
    "lidar_scan": np.zeros((16, 1), dtype=np.float32),
    "video": np.zeros((2, 8, 6, 3), dtype=np.uint8),
}


def write(path, keys):
    return write_demos(path, [episode(3, {key: np.stack([STEP[key]] * 3) for key in keys})])


def test_keys_by_modality(tmp_path):
    path = write(tmp_path / "a.hdf5", [key for key in STEP if key != "video"])
    with DatasetFile(path) as file:
        found = observed([(file, "demo_0")])
    assert found.keys("low_dim") == ["count", "joints", "pose"]
    assert (found.keys("rgb"), found.keys("depth")) == (["camera_image"], ["camera_depth"])
    assert (found.keys("scan"), found.left_out) == (["lidar_scan"], {})
    assert "joints (3,)" in found.words


def test_what_is_in_every_file_counts(tmp_path):
    first = write(tmp_path / "a.hdf5", ["joints", "count"])
    second = write(tmp_path / "b.hdf5", ["joints", "pose"])
    third = write(tmp_path / "c.hdf5", ["count"])
    with DatasetFile(first) as a, DatasetFile(second) as b, DatasetFile(third) as c:
        assert list(observed([(a, "demo_0"), (b, "demo_0")]).modalities) == ["joints"]
        with pytest.raises(DatasetError, match="have no observation in common"):
            observed([(b, "demo_0"), (c, "demo_0")])


def test_observations_in_a_group_within_the_group_have_a_path(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((2, 1))
        for key in ("obs/arm/left/q", "obs/arm/grip", "obs/pos"):
            demo[key] = np.ones((2, 3))
    with DemoFile(tmp_path / "a.hdf5") as file:
        assert file.obs_keys("demo_0") == ["arm/grip", "arm/left/q", "pos"]
        assert file.shape("demo_0", "obs/arm/left/q") == (2, 3)
