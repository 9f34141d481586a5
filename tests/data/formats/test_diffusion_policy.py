"""Diffusion Policy's zarr: episode_ends, frames, codecs."""

import os
import shutil
import sys
import types

import numcodecs
import numpy as np
import pytest
import zarr

from imitate.data.formats.convert import convert
from imitate.errors import DatasetError


def push_t(path, ends=(3, 7), **more):
    """As the format's own ReplayBuffer lays it out."""
    rows = np.arange(ends[-1], dtype=np.float32)
    root = zarr.open_group(str(path), mode="w", zarr_format=2)
    root.create_array("meta/episode_ends", data=np.array(ends, dtype=np.int64))
    arrays = {
        "action": np.stack([rows, -rows], axis=1),
        "state": np.stack([rows] * 5, axis=1),
        "img": np.full((len(rows), 6, 6, 3), 200, dtype=np.float32) + rows[:, None, None, None],
        **more,
    }
    for key, values in arrays.items():
        root.create_array(f"data/{key}", data=values)
    return path


def test_episodes_end_where_episode_ends_says(converted, tmp_path):
    report, file = converted(push_t(tmp_path / "p.zarr"))
    assert (report.source_format, report.demos, report.steps) == ("diffusion-policy", 2, 7)
    assert file.read("demo_0", "obs/state")[:, 0].tolist() == [0, 1, 2]
    assert file.read("demo_1", "actions").tolist() == [[3, -3], [4, -4], [5, -5], [6, -6]]
    assert file.read("demo_1", "timeouts").tolist() == [0, 0, 0, 1]
    image = file.read("demo_1", "obs/img")
    assert (image.dtype, image[0, 0, 0, 0], image[3, 5, 5, 2]) == (np.uint8, 203, 206)
    assert report.changed["obs/img"] == "float32 frames -> uint8"


@pytest.mark.parametrize("ends", [(3, 3, 7), (5, 3, 7), (3, 6)])
def test_ends_that_do_not_fit_are_refused(tmp_path, ends):
    path = push_t(tmp_path / "p.zarr")
    root = zarr.open_group(str(path), mode="a", zarr_format=2)
    del root["meta/episode_ends"]
    root.create_array("meta/episode_ends", data=np.array(ends))
    with pytest.raises(DatasetError, match="does not cut the 7 rows"):
        convert(path, tmp_path / "o.hdf5")


def test_a_zip_is_read_too(converted, tmp_path):
    push_t(tmp_path / "p.zarr")
    shutil.make_archive(str(tmp_path / "p.zarr"), "zip", tmp_path / "p.zarr")
    report, _ = converted(tmp_path / "p.zarr.zip")
    assert report.demos == 2


@pytest.mark.parametrize("codec", ["blosc", "zstd", "lz4", "gzip", "zlib", "bz2", "lzma"])
def test_arrays_are_read_from_each_codec(converted, tmp_path, codec):
    push_t(tmp_path / "p.zarr")
    root = zarr.open_group(str(tmp_path / "p.zarr"), mode="a", zarr_format=2)
    # They repeat themselves, so that slow codecs are soon done.
    numbers = (
        np.tile(np.arange(900, dtype=np.float32), (7, 100)) + np.float32(np.arange(7))[:, None]
    )
    packed = numcodecs.get_codec({"id": codec})
    root.create_array("data/n", data=numbers, chunks=(4, 90_000), compressors=packed)
    assert np.array_equal(converted(tmp_path / "p.zarr")[1].read("demo_1", "obs/n"), numbers[3:])


def test_a_pipe_behind_a_linked_folder_is_not_opened(tmp_path):
    path = push_t(tmp_path / "p.zarr")
    folder = shutil.move(path / "data/state", tmp_path / "elsewhere")
    (path / "data/state").symlink_to(folder)
    (folder / "0.0").unlink()
    os.mkfifo(folder / "0.0")
    with pytest.raises(DatasetError, match="state/0.0: is not a regular file"):
        convert(path, tmp_path / "o.hdf5")


# ---- frames compressed by a codec of imagecodecs -------------------------------------------------


class Twice(numcodecs.abc.Codec):
    """A codec that the registry does not have until a package registers it."""

    codec_id = "imagecodecs_jpegxl"

    def encode(self, buf):
        return bytes(buf) * 2

    def decode(self, buf, out=None):
        data = bytes(buf)[: len(bytes(buf)) // 2]
        return numcodecs.compat.ndarray_copy(np.frombuffer(data, np.uint8), out)


@pytest.fixture
def compressed(tmp_path, monkeypatch):
    """A dataset whose frames need a codec that is not known in this process."""
    known = dict(numcodecs.registry.codec_registry)
    path = push_t(tmp_path / "p.zarr")
    frames = np.arange(7, dtype=np.uint8)[:, None, None, None] + np.zeros((6, 6, 3), np.uint8)
    root = zarr.open_group(str(path), mode="a", zarr_format=2)
    del root["data/img"]
    numcodecs.registry.register_codec(Twice)
    root.create_array("data/img", data=frames, chunks=(1, 6, 6, 3), compressors=Twice())
    numcodecs.registry.codec_registry.clear()
    numcodecs.registry.codec_registry.update(known)
    yield path
    numcodecs.registry.codec_registry.clear()
    numcodecs.registry.codec_registry.update(known)


def test_a_codec_of_imagecodecs_is_asked_for(compressed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecodecs.numcodecs", None)
    words = r"p\.zarr: .*imagecodecs_jpegxl.*pip install imagecodecs"
    with pytest.raises(DatasetError, match=words):
        convert(compressed, tmp_path / "o.hdf5")
    assert not (tmp_path / "o.hdf5").exists()


def test_a_codec_of_imagecodecs_is_used_where_it_is_installed(compressed, converted, monkeypatch):
    package = types.ModuleType("imagecodecs.numcodecs")
    package.register_codecs = lambda verbose: numcodecs.registry.register_codec(Twice)
    monkeypatch.setitem(sys.modules, "imagecodecs", types.ModuleType("imagecodecs"))
    monkeypatch.setitem(sys.modules, "imagecodecs.numcodecs", package)
    _, file = converted(compressed)
    assert file.read("demo_1", "obs/img")[:, 0, 0, 0].tolist() == [3, 4, 5, 6]
