"""HDF5 files of other toolkits: heaps that never end, sizes of rows, arrays by path, attributes as plain values."""

import struct

import h5py
import numpy as np
import pytest

from imitate.data.formats import hdf5_tree as module
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos
from tests.refusals import refused


def heap(*objects, size=None):
    """A heap of objects (number, size); each is followed by its data, in multiples of 8 bytes."""
    data = b""
    for number, length in objects:
        room = max(0, length - 16) if number == 0 else (length + 7) // 8 * 8 % 2**64
        data += struct.pack("<HHIQ", number, 1, 0, length) + bytes(room if room < 2**20 else 0)
    return b"GCOL\x01\0\0\0" + struct.pack("<Q", 16 + len(data) if size is None else size) + data


WRAPS = (1, 2**64 - 16)  # header and data have 2**64 bytes together, which is 0
GOOD = heap((1, 1), (2, 8), (3, 9), (4, 112), (0, 32), (5, 0))


@pytest.mark.parametrize(
    ("content", "at"),
    [
        (b"", None),
        (bytes(16), None),
        (GOOD[:12], None),
        (GOOD, None),
        (heap((0, 0)), 0),
        (heap((1, 0), (0, 0)), 0),
        (heap((1, 8), (0, 0)), 0),  # at the very end
        (heap((1, 8), (0, 0))[:-1], None),  # is not whole
        (heap((1, 9), (3, 1), (0, 16), (0, 0)), 0),
        (heap(WRAPS), 0),
        (heap((0, 0), size=31), None),  # beyond the heap's size
        (heap((0, 0), size=32), 0),
        (heap((0, 0), size=10**6), 0),  # the heap's size is beyond the file
        (heap((1, 8), size=10**6), None),
        (GOOD + bytes(3) + heap((0, 0)) + bytes(5), len(GOOD) + 3),
    ],
)
def test_heaps_that_never_end(tmp_path, content, at):
    path = tmp_path / "a"
    path.write_bytes(content)
    if at is None:
        module.check_heaps(path)
    else:
        with refused(f"{path}: the texts that begin at byte {at} are damaged"):
            module.check_heaps(path)


def test_only_the_start_of_a_large_file_is_searched(tmp_path, monkeypatch):
    assert module.SEARCHED_BYTES == 1024**3
    path = tmp_path / "a"
    path.write_bytes(GOOD + heap((0, 0)))
    monkeypatch.setattr(module, "SEARCHED_BYTES", len(GOOD) + 7)
    module.check_heaps(path)
    monkeypatch.setattr(module, "SEARCHED_BYTES", len(GOOD) + 8)  # the whole signature
    with refused(f"at byte {len(GOOD)} "):
        module.check_heaps(path)


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["g/two"], file["g/h/rows"], file["one"] = 2.5, np.arange(12.0).reshape(6, 2), [1, 2]
        file["g/none"], file["empty"] = np.zeros((0, 3)), h5py.Empty("f8")
        file["type"] = np.dtype("f4")
        attrs = {"name": "ä", "bytes": np.bytes_(b"b\xff"), "number": np.int64(3), "many": [1, 2]}
        file.attrs.update(attrs)
    return tmp_path / "a.hdf5"


def test_files_are_opened_and_closed(path, tmp_path, monkeypatch):
    assert [module.looks_like(p) for p in (path, tmp_path, tmp_path / "no")] == [True, False, False]
    with module.opened(path) as file:
        assert sorted(file) == ["empty", "g", "one", "type"]
    with module.peeked(path) as file:
        assert sorted(file) == ["empty", "g", "one", "type"]
    assert not file.id.valid
    content = path.read_bytes()
    (tmp_path / "text").write_text("not HDF5 but a text that is longer than 8 letters")
    (tmp_path / "short").write_bytes(content[:100])
    for name in ("text", "short"):
        words = "is not an HDF5 file, or is cut short or damaged (|): copy it again"
        with refused(words), module.opened(tmp_path / name):
            pass
        with module.peeked(tmp_path / name) as file:
            assert file == {}
    path.write_bytes(content + heap((0, 0)))
    with refused(f"begin at byte {len(content)} "), module.opened(path):
        pass

    def refuse(path):
        raise DatasetError("interrupted")

    monkeypatch.setattr(module, "refuse_interrupted", refuse)
    with refused("interrupted"), module.opened(path):
        pass


@pytest.mark.parametrize(
    ("key", "part", "values", "claimed"),
    [
        ("g/h/rows", (), np.arange(12.0).reshape(6, 2), (96, 96)),
        ("g/h/rows", (1, 3), [[2, 3], [4, 5]], (96, 32)),
        ("g/h/rows", (-1,), [[10, 11]], (96, 16)),
        ("g/h/rows", (5, 99), [[10, 11]], (96, 16)),
        ("g/two", (), 2.5, (8,)),
        ("g/none", (), np.zeros((0, 3)), (0,)),
        ("empty", (), h5py.Empty("f8"), (0,)),
    ],
)
def test_rows_and_the_bytes_that_they_claim(path, monkeypatch, key, part, values, claimed):
    seen = []
    monkeypatch.setattr(module, "check_ratio", lambda where, n, stored: seen.append((n, stored)))
    monkeypatch.setattr(module, "check_room", lambda where, n: seen.append(n))
    with h5py.File(path) as file:
        found = module.rows(file[key], *part)
        np.testing.assert_array_equal(found, np.asarray(values))
    assert seen == [(claimed[0], path.stat().st_size), *claimed[1:]]


def test_arrays_and_attributes_by_name(path):
    with h5py.File(path) as file:
        found = module.leaves(file)
        assert list(found) == ["empty", "g/h/rows", "g/none", "g/two", "one"]
        assert found["one"] == file["one"] == module.wanted(file, "one", "a")
        attrs = module.attributes(file)
        assert attrs.pop("many").tolist() == [1, 2]
        assert attrs == {"name": "ä", "bytes": "b\ufffd", "number": 3}
        assert type(attrs["number"]) is int
        assert module.texts(attrs, "number", "no", "bytes", "name") == "b\ufffd"
        assert module.texts(attrs, "number", "no") is None
        with refused("a: has no array 'g' (found: empty, g, one, type)"):
            module.wanted(file, "g", "a")
        with refused("a: has no array 'x' (found: nothing)"):
            module.wanted({}, "x", "a")
    assert module.plain("a\udcff") == "a\ufffd"


def test_frames_are_decoded_or_named(tmp_path):
    grey = np.full((2, 4, 4, 3), 80, np.uint8)
    path = write_demos(tmp_path / "a.hdf5", [episode(2, {"i": grey})], image_storage="jpeg")
    with h5py.File(path, "a") as file:
        images = file["data/demo_0/obs/i"]
        file.create_dataset("bytes", data=images[:], dtype=images.dtype)
        found = [module.is_encoded(file[k]) for k in (images.name, "bytes", "data/demo_0/actions")]
        assert found == [True, False, False]
        np.testing.assert_array_equal(module.frame_rows(images), grey)
        images[1] = images[1][:20]
        with refused(f"{path}: '/data/demo_0/obs/i' at step 1 cannot be decoded"):
            module.frame_rows(images)


def test_arrays_below_a_group_and_groups_without_end(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("b/c", "b-", "b/a/x", "a"):
            file[f"g/{name}"] = 1
        file["g/s"] = h5py.SoftLink("/g/b")
        assert list(module.leaves(file["g"])) == ["a", "b/a/x", "b/c", "b-", "s/a/x", "s/c"]
        inside = file.create_group("wide")
        for _ in range(7):  # 6^6 paths
            inside, held = file.create_group(f"held{_}"), inside
            for number in range(6):
                inside[str(number)] = held
        with pytest.raises(DatasetError, match="a.hdf5: groups of '/held6' are nested without end"):
            module.leaves(inside)
        deep = file.create_group("deep")
        deep["deep"] = deep
        with pytest.raises(DatasetError, match="groups of '/deep' are nested without end"):
            module.leaves(deep)
