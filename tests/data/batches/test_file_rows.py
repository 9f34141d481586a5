"""Rows that stay in their files: exact values from each layout, and what is read again, refused or forgotten."""

import itertools
import os
import pickle

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.batches import file_rows as module
from imitate.data.batches.file_rows import DemoOrigin, FileRows
from imitate.data.file.fields import lay_out
from tests.demo_files import episode, write_demos
from tests.refusals import refused

KEYS = ["obs/s", "obs/wide", "obs/packed", "obs/none", "rewards", "interventions"]
STARTS = np.array([0, 3, 7])


@pytest.fixture
def paths(tmp_path):
    """Two files with demos of 3, 4 and 2 steps; number r of ``s`` is (r, r + 0.5), in all layouts."""
    rows = np.stack([np.arange(9), np.arange(9) + 0.5], 1)
    for name, bounds in (("a.hdf5", ((0, 3), (3, 7))), ("b.hdf5", ((7, 9),))):
        parts = [
            episode(stop - start, {"s": rows[start:stop]}, rewards=np.arange(start, stop) / 8)
            for start, stop in bounds
        ]
        path = write_demos(tmp_path / name, parts)
        with h5py.File(path, "a") as file:
            for demo, (start, stop) in zip(sorted(file["data"]), bounds, strict=True):
                obs = file[f"data/{demo}/obs"]
                obs["wide"] = rows[start:stop]
                obs.create_dataset("packed", data=rows[start:stop], compression="gzip")
                obs.create_dataset("none", (stop - start, 2), "f4", fillvalue=3)
    return [tmp_path / "a.hdf5", tmp_path / "b.hdf5"]


@pytest.fixture
def fields(paths):
    with DatasetFile(paths[0]) as file:
        return lay_out(file, "demo_0", KEYS)


def reader(paths, decoded=None, swmr=False):
    demos = [DemoOrigin(0, "demo_0", 3), DemoOrigin(0, "demo_1", 4), DemoOrigin(1, "demo_0", 2)]
    return FileRows(paths, demos, STARTS, decoded or {}, swmr)


def read(rows_of, field, rows, dtype=np.float32):
    out = np.full((len(rows), *field.shape), np.nan, dtype)
    rows_of.read(field, np.array(rows), out)
    return out


# one; in order over all demos; padded on both sides; twice at a start; backwards; the last of each demo; anew
ROWS = ([0], [8], range(9), [3, 3, 3, 4, 5, 6, 6], [7, 7], [2, 1, 0], [2, 6, 8], [1, 2, 3, 3, 4, 0])


@pytest.mark.parametrize("key", KEYS)
def test_rows_of_all_layouts(paths, fields, key):
    rows_of = reader(paths)
    for rows, dtype in itertools.product(ROWS, (np.float32, np.float64)):
        at = np.array(rows, float)
        pairs = np.stack([at, at + 0.5], 1)
        expected = {"rewards": at / 8, "interventions": at**0, "obs/none": 0 * pairs + 3}
        found = read(rows_of, fields[key], rows, dtype)
        np.testing.assert_array_equal(found, expected.get(key, pairs))


def test_a_column_of_a_larger_array_is_filled(paths, fields):
    out = np.zeros((2, 5), np.float32)
    reader(paths).read(fields["obs/s"], np.array([4, 5]), out[:, 1:3])
    assert out.tolist() == [[0, 4, 4.5, 0, 0], [0, 5, 5.5, 0, 0]]


def test_only_arrays_without_chunks_are_read_beside_hdf5(paths, fields, monkeypatch):
    through_hdf5 = []
    monkeypatch.setattr(module, "read_steps", lambda *words: through_hdf5.append(words[2].key) or 0)
    rows_of = reader(paths)
    for key in KEYS:
        read(rows_of, fields[key], [0, 1])
    assert through_hdf5 == ["obs/packed", "obs/none", "interventions"]


def test_each_row_is_requested_from_hdf5_once(paths, fields, monkeypatch):
    asked, original = [], module.read_steps
    monkeypatch.setattr(module, "read_steps", lambda *a: asked.append(a[3:]) or original(*a))
    rows = [1, 1, 2, 3, 4, 4, 0]
    assert read(reader(paths), fields["obs/packed"], rows)[:, 0].tolist() == rows
    assert asked == [(0, 3), (0, 2)]


def test_padding_is_copied(paths, fields, monkeypatch):
    asked, original = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *a: asked.append(len(a[1][0])) or original(*a))
    assert read(reader(paths), fields["obs/s"], [3, 3, 3, 4, 4])[:, 0].tolist() == [3, 3, 3, 4, 4]
    assert asked == [1, 2]  # rows of the first request and of the run that follows


def test_decoded_arrays_are_read_from_their_file(paths, fields, tmp_path):
    """The file begins with row 3; that of a source that is not named is read as it is."""
    values = np.arange(8, dtype=np.float32).reshape(4, 2) + 100
    (tmp_path / "rows").write_bytes(values.tobytes())
    decoded = {(0, "obs/packed"): (tmp_path / "rows", 3)}
    found = read(reader(paths, decoded), fields["obs/packed"], [4, 5, 7])
    assert found.tolist() == [[102, 103], [104, 105], [7, 7.5]]
    (tmp_path / "rows").write_bytes(values.tobytes()[:-1])
    with refused(f"{tmp_path / 'rows'}: demo 'demo_1', 'obs/packed' cannot be read"):
        read(reader(paths, decoded), fields["obs/packed"], [6])
    (tmp_path / "rows").unlink()
    with refused("cannot be opened (No such file|although it existed when the training began"):
        read(reader(paths, decoded), fields["obs/packed"], [6])


def test_files_are_opened_once_and_again_in_another_process(paths, fields, monkeypatch):
    opened, now = [], [os.getpid()]

    class Watched(DatasetFile):
        def __init__(self, path, *, swmr):
            opened.append((path.name, swmr))
            super().__init__(path, swmr=swmr)

    monkeypatch.setattr(module, "DatasetFile", Watched)
    monkeypatch.setattr(os, "getpid", lambda: now[0])
    rows_of = reader(paths, swmr=True)
    for _ in range(2):
        read(rows_of, fields["obs/s"], [0, 7])
    assert opened == [("a.hdf5", True), ("b.hdf5", True)]
    now[0] += 1
    for _ in range(2):
        assert read(rows_of, fields["obs/s"], [0]).tolist() == [[0, 0.5]]
    assert opened[2:] == [("a.hdf5", True)]
    sent = pickle.loads(pickle.dumps(rows_of))
    assert read(sent, fields["obs/packed"], [7]).tolist() == [[7, 7.5]]
    assert opened[3:] == [("b.hdf5", True)]


@pytest.mark.parametrize(("kept", "located"), [(1, 3), (2, 2)])
def test_locations_of_arrays_are_kept(paths, fields, monkeypatch, kept, located):
    assert module.KEPT_PLACES == 65536
    monkeypatch.setattr(module, "KEPT_PLACES", kept)
    asked, original = [], DatasetFile.storage
    monkeypatch.setattr(DatasetFile, "storage", lambda *a: asked.append(a[1]) or original(*a))
    rows_of = reader(paths)
    for row in (0, 3, 0):
        read(rows_of, fields["obs/s"], [row])
    assert len(asked) == located
