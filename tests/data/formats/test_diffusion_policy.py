"""Diffusion Policy's zarr: episode_ends, frames, codecs."""

import bz2
import gzip
import lzma
import os
import shutil
import struct
import sys
import types
import zipfile
import zlib

import numcodecs
import numpy as np
import pytest
import zarr

from imitate.data.formats import diffusion_policy as module
from imitate.data.formats.base import ConversionReport, NamedDemo, OpenedDataset, Options
from imitate.data.formats.convert import convert
from imitate.data.formats.diffusion_policy import StoredFiles
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos
from tests.refusals import refused


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


def test_an_episode_may_have_a_single_row(converted, tmp_path):
    report, file = converted(push_t(tmp_path / "p.zarr", ends=(1, 4)))
    assert (report.demos, [file.length(demo) for demo in file.demos()]) == (2, [1, 3])


@pytest.mark.parametrize("ends", [(3, 3, 7), (5, 3, 7), (3, 6), (0, 7)])
def test_ends_that_do_not_fit_are_refused(tmp_path, ends):
    path = push_t(tmp_path / "p.zarr")
    root = zarr.open_group(str(path), mode="a", zarr_format=2)
    del root["meta/episode_ends"]
    root.create_array("meta/episode_ends", data=np.array(ends))
    with pytest.raises(DatasetError, match="does not divide the 7 rows"):
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


# ---- sizes of chunks -----------------------------------------------------------------------------


def chunked(count, *codecs, dtype="u1"):
    """A description of an array whose chunks have so many numbers."""
    listed = {"filters": None, "compressor": None}
    if codecs:
        listed = {"filters": [{"id": c} for c in codecs[1:]], "compressor": {"id": codecs[0]}}
    metadata = types.SimpleNamespace(to_dict=lambda: listed)
    return types.SimpleNamespace(chunks=(count, 1), dtype=np.dtype(dtype), metadata=metadata)


def stored(folder, name, content, how="folder"):
    """A dataset with one file: a folder, or an archive."""
    path = folder / ("d.zarr" if how == "folder" else "d.zarr.zip")
    if how == "folder":
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, content)
    return path


PACK = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bz2": bz2.compress,
    "lzma": lzma.compress,
    "zstd": numcodecs.Zstd().encode,
    "lz4": numcodecs.LZ4().encode,
    "blosc": numcodecs.Blosc().encode,
}


@pytest.mark.parametrize("how", ["folder", "archive"])
@pytest.mark.parametrize("codec", [None, *PACK])
@pytest.mark.parametrize("size", [240, 8_000, 80_000])
def test_a_chunk_is_at_most_eight_times_as_large_as_its_values(
    tmp_path, monkeypatch, codec, size, how
):
    monkeypatch.setattr(module, "ALWAYS_BYTES", 0)
    monkeypatch.setattr(module, "_PART", 1000)
    pack = PACK.get(codec, bytes)
    codecs = [] if codec is None else [codec]
    path = stored(tmp_path, "data/n/0.0", pack(bytes(size)), how)
    for count, dtype in ((size // 8, "u1"), (size // 16, "u2")):
        StoredFiles(path).check_chunks({"data/n": chunked(count, *codecs, dtype=dtype)})
    path = stored(tmp_path, "data/n/0.0", pack(bytes(size + 1)), how)
    words = f"{path}: data/n/0.0 takes |at most |are expected: the dataset is damaged"
    with refused(words):
        StoredFiles(path).check_chunks({"data/n": chunked(size // 8, *codecs)})
    StoredFiles(path).check_chunks({"data/m": chunked(1, *codecs), "data": chunked(size, *codecs)})
    monkeypatch.setattr(module, "ALWAYS_BYTES", size + 1)
    StoredFiles(path).check_chunks({"data/n": chunked(1, *codecs)})


def test_streams_that_follow_each_other_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ALWAYS_BYTES", 0)
    for codec in ("gzip", "bz2", "lzma"):
        path = stored(tmp_path, "n/0", PACK[codec](bytes(4000)) + PACK[codec](bytes(4000)))
        StoredFiles(path).check_chunks({"n": chunked(1000, codec)})
        with refused("n/0 takes "):
            StoredFiles(path).check_chunks({"n": chunked(999, codec)})


def frame(flags, *parts):
    return struct.pack("<IB", 0xFD2FB528, flags) + b"".join(parts)


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (frame(0x20, struct.pack("<B", 200)), 200),
        (frame(0x21, b"\xff", struct.pack("<B", 200)), 200),  # with a number of a dictionary
        (frame(0x60, struct.pack("<H", 7744)), 8000),  # 256 less are written
        (frame(0x40, b"\xff", struct.pack("<H", 7744)), 8000),  # with a size of the window
        (frame(0x42, b"\xff" * 3, struct.pack("<H", 7744)), 8000),
        (frame(0xA0, struct.pack("<I", 80_000)), 80_000),
        (frame(0x83, b"\xff" * 5, struct.pack("<I", 80_000)), 80_000),
        (frame(0xC3, b"\xff" * 5, struct.pack("<Q", 80_000)), 80_000),
        (frame(0x00, b"\xff", bytes(9)), None),  # without a size
    ],
)
def test_the_size_of_a_frame_of_zstd(tmp_path, monkeypatch, head, size):
    monkeypatch.setattr(module, "ALWAYS_BYTES", 0)
    path = stored(tmp_path, "n/0", head + bytes(20))
    if size is not None:
        StoredFiles(path).check_chunks({"n": chunked(size // 8, "zstd")})
    with refused("n/0 takes "):
        StoredFiles(path).check_chunks(
            {"n": chunked(10**6 if size is None else size // 8 - 1, "zstd")}
        )


def test_codecs_that_cannot_be_measured(tmp_path):
    path = stored(tmp_path, "n/0", b"")
    files = StoredFiles(path)
    files.check_chunks({"n": chunked(1, "delta", "shuffle")})
    stored(tmp_path, "n/0", PACK["zlib"](b"1"))
    files.check_chunks({"n": chunked(1, "zlib", "delta")})
    for codecs, words in (
        (("zlib", "gzip"), "gzip and zlib"),
        (("odd", "zlib", "new"), "new and odd"),
    ):
        with refused(f"{path}: 'n' is packed by {words}, which is not read: store it with one of"):
            files.check_chunks({"n": chunked(1, *codecs)})
    listed = {"codecs": [{"name": "bytes"}, {"name": "strange"}]}  # of format 3
    array = chunked(1)
    array.metadata.to_dict = lambda: listed
    with refused("is packed by strange,"):
        files.check_chunks({"n": array})


def test_descriptions_are_not_chunks_and_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ALWAYS_BYTES", 0)
    monkeypatch.setattr(module, "MAX_TEXT", 100)
    for how in ("folder", "archive"):
        path = stored(tmp_path, "n/.zarray", bytes(100), how)
        StoredFiles(path).check_chunks({"n": chunked(1)})
    path = stored(tmp_path, "n/.zarray", bytes(101), "archive")
    with refused(f"{path}: n/.zarray takes "):
        StoredFiles(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("n/", b"")
        archive.writestr("nn/0", bytes(101))
    StoredFiles(path).check_chunks({"n": chunked(1)})


# ---- what is read and written --------------------------------------------------------------------


def test_what_is_recognised(tmp_path):
    recognises = module.FORMAT.recognises
    for name in ("meta/episode_ends", "data"):
        assert not recognises(tmp_path)
        (tmp_path / name).mkdir(parents=True)
    assert recognises(tmp_path)
    assert recognises(tmp_path / "a.zarr.zip") and not recognises(tmp_path / "a.zip")


@pytest.mark.parametrize("lacking", ["meta/episode_ends", "data/action"])
def test_arrays_that_are_needed(tmp_path, lacking):
    path = push_t(tmp_path / "p.zarr")
    del zarr.open_group(str(path), mode="a", zarr_format=2)[lacking]
    with refused(f"{path}: has no 'meta/episode_ends' or no 'data/action', so it is not"):
        convert(path, tmp_path / "o.hdf5", from_format="diffusion-policy")


def test_sizes_that_are_claimed(tmp_path, monkeypatch):
    claims = []
    monkeypatch.setattr(
        module, "check_claim", lambda where, size, stored: claims.append((where, size))
    )
    path = push_t(tmp_path / "p.zarr", n=np.zeros((7, 3), np.float64))
    convert(path, tmp_path / "o.hdf5")
    # the longest episode has 4 rows; chunks have all 7
    assert dict(claims) == {
        f"{path}: 'meta/episode_ends'": 2 * 8,
        f"{path}: 'action'": 7 * 2 * 4,
        f"{path}: 'img'": 7 * 6 * 6 * 3 * 4,
        f"{path}: 'n'": 7 * 3 * 8,
        f"{path}: 'state'": 7 * 5 * 4,
    }
    claims.clear()
    root = zarr.open_group(str(path), mode="a", zarr_format=2)
    root.create_array("data/c", data=np.zeros((7, 3), "u1"), chunks=(1, 3))
    convert(path, tmp_path / "o.hdf5", overwrite=True)
    assert dict(claims)[f"{path}: 'c'"] == 4 * 3
    del root["meta/episode_ends"]
    root.create_array("meta/episode_ends", data=np.arange(1, 9))
    with refused(f"{path}: 'meta/episode_ends' claims more episodes than there are rows"):
        convert(path, tmp_path / "o.hdf5", overwrite=True)


FRAMES = np.full((7, 4, 5, 3), 2.0, np.float32)


@pytest.mark.parametrize(
    ("values", "change"),
    [
        (FRAMES, "float32 frames -> uint8"),
        (FRAMES[..., :1].astype(np.float64), "float64 frames -> uint8"),
        (FRAMES + np.float32([0, 0, 0, 0, 0, 0, 0.4])[:, None, None, None], "float32 frames -> uint8, rounded"),
        (FRAMES + np.float32([0, 0, 0, 0, 0, 0, 254])[:, None, None, None], "float32 frames -> uint8, rounded"),
        (FRAMES / 2, None),  # not above 1: a share
        (FRAMES + 0.5, None),
        (FRAMES[..., :2], None),
        (FRAMES[..., 0], None),
        (FRAMES.astype(np.uint8), None),
    ],
)  # fmt: skip
def test_frames_in_floats(converted, tmp_path, values, change):
    report, file = converted(push_t(tmp_path / "p.zarr", img=values), fps=9.0, language="push")
    assert report.changed.get("obs/img") == change
    found = file.read("demo_1", "obs/img")
    assert found.dtype == (values.dtype if change is None else np.uint8)
    wanted = values if change is None else np.clip(np.rint(values), 0, 255)
    np.testing.assert_array_equal(found, wanted[3:])
    assert file.control_freq == 9.0 and file.attrs("demo_0")["language"] == "push"
    assert report.renamed == {"action": "actions", "img": "obs/img", "state": "obs/state"}


def test_demos_with_other_arrays_are_refused(tmp_path):
    x = np.zeros((2, 3))
    source = OpenedDataset({"env_name": "a", "type": 4, "env_kwargs": {}}, iter(()))
    for other, words in (
        ({"x": x, "y": x}, "demo 'd1': not every demo has 'obs/y': give it in each or in none"),
        ({"x": x[:, :2]}, "a step of 'x' has shape (2,), but (3,) in earlier demos; see imitate"),
    ):
        path = tmp_path / "a.zarr"
        write = module.FORMAT.write(path, source, Options(), ConversionReport())
        with refused(f"{path}: |{words}"), write as append:
            append(NamedDemo("d0", episode(2, {"x": x})))
            append(NamedDemo("d1", episode(2, other)))
        assert "episode_ends" not in zarr.open_group(str(path), mode="r")["meta"]


def test_chunks_of_a_megabyte_and_ends(tmp_path):
    sizes = {"small": 1, "wide": 70_000, "huge": 2**18}
    arrays = {name: np.zeros((2, size)) for name, size in sizes.items()}
    arrays["action"] = np.zeros((2, 1))  # its name is taken
    path = write_demos(tmp_path / "a.hdf5", [episode(2, arrays), episode(2, arrays)])
    report = convert(path, tmp_path / "a.zarr")
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="r")
    chunks = {name: array.chunks for name, array in root["data"].arrays()}
    assert chunks == {
        **{"action": (4096, 2), "small": (4096, 1)},
        **{"wide": (1, 70_000), "huge": (1, 2**18)},
    }
    assert root["meta/episode_ends"][:].tolist() == [2, 4]
    assert len([note for note in report.notes if note.startswith("rewards, ends, states and")]) == 1
