"""The file that grows demo by demo, without a simulator."""

import json

import h5py
import numpy as np
import pytest

from imitate.collect.recorded import Drawn
from imitate.collect.render import RenderedFile, RenderedLayout, finished_demos
from imitate.data import DatasetFile
from imitate.errors import DatasetError

META = {"env_name": "Lift", "type": 1, "env_kwargs": {"camera_names": ["front"]}}
LAYOUT = RenderedLayout({"source_sha256": "abc", "cameras": {"camera_heights": 4}}, META)


@pytest.fixture
def source(tmp_path):
    """A file as robomimic writes it: float64 rewards, int64 dones, no terminals; things nobody here knows."""
    path = tmp_path / "source.hdf5"
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(
            {"total": 9, "env_args": json.dumps({"env_name": "Lift"}), "note": "mine"}
        )
        for number in range(3):
            demo = data.create_group(f"demo_{number}")
            demo.attrs.update({"num_samples": 3, "model_file": f"<mujoco number='{number}'/>"})
            demo["actions"] = random.normal(size=(3, 2))
            demo["rewards"] = random.normal(size=3)
            demo["dones"] = np.array([0, 0, 1])
            demo["states"] = random.normal(size=(3, 5))
            demo["datagen_info/subtask"] = random.normal(size=(3, 4))
            demo["obs/object"] = random.normal(size=(3, 2)).astype(np.float32)
            demo["obs/front_image"] = np.zeros((3, 2, 2, 3), np.uint8)
            demo["next_obs/object"] = random.normal(size=(3, 2)).astype(np.float32)
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
        file["mask/valid"] = np.array([b"demo_1"])
    with DatasetFile(path) as opened:
        yield opened


def drawn(number, next_obs=False):
    ramp = np.linspace(0, 200, 16 * 16 * 3).reshape(16, 16, 3)
    images = np.stack([ramp + number, ramp + 10, ramp + 20]).astype(np.uint8)
    obs = {
        "front_image": images,
        "front_depth": np.full((3, 16, 16, 1), 1.5, np.float32),
        "front_segmentation": np.full((3, 16, 16, 1), number, np.uint8),
    }
    return Drawn(obs, obs if next_obs else None, {"front": {"frame": "world"}})


def make(path, source, layout=LAYOUT, demos=(0, 1, 2), **options):
    given = {"overwrite": False, "resume": False, **options}
    with RenderedFile(path, source, layout, **given) as target:
        for number in demos:
            if f"demo_{number}" not in target.done:
                target.add(f"demo_{number}", drawn(number))


def contents(path):
    """All arrays and attributes."""
    found = {}

    def note(name, item):
        found.update({f"{name}@{key}": str(value) for key, value in item.attrs.items()})
        if isinstance(item, h5py.Dataset):
            found[name] = (str(item.dtype), np.asarray(item[()]).tobytes())

    with h5py.File(path) as file:
        file.visititems(note)
    return found


def test_all_else_is_copied_as_it_is(source, tmp_path):
    make(tmp_path / "out.hdf5", source)
    old, new = contents(source.path), contents(tmp_path / "out.hdf5")
    added = {
        "data/demo_1/obs/front_depth",
        "data/demo_1/obs/front_segmentation",
        "data/demo_1@camera_info",
    }
    assert {key for key in new if key.startswith("data/demo_1")} - old.keys() == added
    changed = {key for key in old if old[key] != new.get(key)}
    assert changed == {"data@env_args", *(f"data/demo_{i}/obs/front_image" for i in range(3))}
    assert new["data/demo_0/rewards"][0] == "float64"
    assert new["data/demo_0/dones"][0] == "int64"
    with DatasetFile(tmp_path / "out.hdf5") as file:
        assert file.env_meta == META and file.file_attrs["total"] == 9
        assert json.loads(file.file_attrs["rendered"]) == LAYOUT.settings
        assert json.loads(file.attrs("demo_2")["camera_info"]) == {"front": {"frame": "world"}}
        assert file.filter_keys() == {"train": ["demo_0", "demo_2"], "valid": ["demo_1"]}
        np.testing.assert_array_equal(
            file.read("demo_1", "obs/front_image"), drawn(1).obs["front_image"]
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.hdf5", "source.hdf5"]


def test_left_out_groups_and_masks_of_fewer_demos(source, tmp_path):
    layout = RenderedLayout({}, META, drop=["obs", "next_obs"])
    make(tmp_path / "out.hdf5", source, layout, demos=[0, 2])
    with DatasetFile(tmp_path / "out.hdf5") as file:
        assert file.demos() == ["demo_0", "demo_2"]
        assert file.obs_keys("demo_0") == ["front_depth", "front_image", "front_segmentation"]
        assert file.obs_keys("demo_0", "next_obs") == []
        assert file.filter_keys() == {"train": ["demo_0", "demo_2"]}
        assert file.file_attrs["total"] == 6


def test_next_obs_beside_the_recorded_ones(source, tmp_path):
    with RenderedFile(
        tmp_path / "out.hdf5", source, LAYOUT, overwrite=False, resume=False
    ) as target:
        target.add("demo_0", drawn(0, next_obs=True))
    with DatasetFile(tmp_path / "out.hdf5") as file:
        assert file.obs_keys("demo_0", "next_obs") == file.obs_keys("demo_0")


@pytest.mark.parametrize("storage", ["gzip", "lzf", "jpeg"])
def test_storage_of_images(source, tmp_path, storage):
    make(tmp_path / "out.hdf5", source, RenderedLayout({}, META, storage=storage, quality=90))
    with DatasetFile(tmp_path / "out.hdf5") as file:
        assert file.storage("demo_1", "obs/front_image") == storage
        lossless = "gzip" if storage == "jpeg" else storage
        for key in ("front_depth", "front_segmentation"):
            assert file.storage("demo_1", f"obs/{key}") == lossless
            np.testing.assert_array_equal(file.read("demo_1", f"obs/{key}"), drawn(1).obs[key])
        images = file.read("demo_1", "obs/front_image").astype(int)
        difference = np.abs(images - drawn(1).obs["front_image"]).max()
        assert difference <= (8 if storage == "jpeg" else 0)
        assert file.storage("demo_1", "obs/object") == "raw"


def test_interrupted_and_resumed_equals_uninterrupted(source, tmp_path):
    make(tmp_path / "whole.hdf5", source)
    path = tmp_path / "out.hdf5"

    def interrupt():
        with RenderedFile(path, source, LAYOUT, overwrite=False, resume=True) as target:
            number = len(target.done)
            target.add(f"demo_{number}", drawn(number))
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        assert not path.exists()
    with DatasetFile(tmp_path / "out.hdf5.partial") as file:
        assert file.demos() == ["demo_0", "demo_1"]
    with pytest.raises(DatasetError, match=r"out.hdf5.partial: the file is left .*--resume"):
        make(path, source)
    make(path, source, resume=True)
    assert contents(path) == contents(tmp_path / "whole.hdf5")
    assert not list(tmp_path.glob("out.hdf5.*"))


def test_interrupted_while_it_took_over(source, tmp_path):
    """Killed during a resume, the demos of the first run lie in the file that was set aside."""
    path = tmp_path / "out.hdf5"
    make(path, source, demos=[0, 1])
    path.rename(tmp_path / "out.hdf5.earlier")
    (tmp_path / "out.hdf5.partial").write_bytes(b"\x89HDF\r\n\x1a\n and then the power failed")
    with pytest.raises(DatasetError, match="--resume"):
        make(path, source)
    seen = []
    with RenderedFile(path, source, LAYOUT, overwrite=False, resume=True) as target:
        seen += target.done
    assert seen == ["demo_0", "demo_1"]
    assert not list(tmp_path.glob("out.hdf5.*"))


def test_resumed_with_the_same_settings_only(source, tmp_path):
    path = tmp_path / "out.hdf5"
    make(path, source, demos=[0])
    path.rename(tmp_path / "out.hdf5.partial")
    other = RenderedLayout({**LAYOUT.settings, "cameras": {"camera_heights": 5}}, META)
    with pytest.raises(DatasetError, match=r"cameras = .*4.*, but now cameras is .*5.*--overwrite"):
        make(path, source, other, resume=True)
    make(path, source, other, overwrite=True)
    with DatasetFile(path) as file:
        assert len(file.demos()) == 3
        assert json.loads(file.file_attrs["rendered"])["cameras"] == {"camera_heights": 5}


def test_a_name_that_is_taken(source, tmp_path):
    path = tmp_path / "out.hdf5"
    path.write_text("precious")
    with pytest.raises(DatasetError, match="exists already"):
        make(path, source)
    with pytest.raises(DatasetError, match="exists already"):
        make(path, source, resume=True)
    with pytest.raises(DatasetError, match="the input file cannot be the output file"):
        make(source.path, source, overwrite=True)
    assert path.read_text() == "precious"
    make(path, source, overwrite=True)
    with DatasetFile(path) as file:
        assert len(file.demos()) == 3


def test_without_a_demo_nothing_is_left(source, tmp_path):
    path = tmp_path / "out.hdf5"

    def fail():
        with RenderedFile(path, source, LAYOUT, overwrite=False, resume=False):
            raise DatasetError("none could be drawn")

    with pytest.raises(DatasetError, match="none could be drawn"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["source.hdf5"]


def test_demos_of_a_finished_file(source, tmp_path):
    path = tmp_path / "out.hdf5"
    make(path, source, demos=[0, 2])
    assert finished_demos(path, LAYOUT) == ["demo_0", "demo_2"]
    other = RenderedLayout({**LAYOUT.settings, "source_sha256": "abd"}, META)
    with pytest.raises(DatasetError, match="source_sha256 = 'abc', but now source_sha256 is 'abd'"):
        finished_demos(path, other)
    with pytest.raises(DatasetError, match=r"exists already and was not rendered.*--overwrite"):
        finished_demos(source.path, LAYOUT)
