"""The fingerprint of a file follows everything that training reads, and nothing else."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.edit.edits import split
from imitate.data.edit.target import Target
from imitate.data.file import fingerprint as module
from tests.demo_files import episode, write_demos


def fingerprint(path):
    with DatasetFile(path) as file:
        return file.fingerprint()


def filled(key, value, at=...):
    def change(demo):
        demo[key][at] = value

    return change


CHANGES = {
    "observations": filled("obs/object", 1000),
    "one value": filled("obs/object", 0.123, (3, 2)),
    "next observations": filled("next_obs/object", 0),
    "rewards": filled("rewards", -7),
    "ends": filled("terminals", 0),
    "images": filled("obs/agentview_image", 3),
    "weights": lambda demo: demo.create_dataset("weight", data=np.ones(len(demo["actions"]))),
    "success": lambda demo: demo.attrs.update(success=False),
    "instruction": lambda demo: demo.attrs.update(language="lift"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_is_not_an_action_changes_the_content(demo_file, change):
    path = demo_file(image=True)
    before = fingerprint(path)
    with h5py.File(path, "r+") as file:
        change(file["data/demo_1"])
    after = fingerprint(path)
    assert after["content_sha256"] != before["content_sha256"]
    assert after["sha256"] == before["sha256"], "which covers names and actions, as ever"


def test_it_counts_and_covers_actions_and_changes_nothing(demo_file):
    one, same, other = (demo_file(f"{k}.hdf5", seed=seed) for k, seed in enumerate((0, 0, 1)))
    before = one.read_bytes()
    found = fingerprint(one)
    assert (found["num_demos"], found["num_steps"]) == (4, 48)
    assert found["sha256"] == fingerprint(same)["sha256"] != fingerprint(other)["sha256"]
    assert one.read_bytes() == before


@pytest.mark.parametrize("storage", ["gzip", "jpeg"])
def test_packed_images_count(tmp_path, storage):
    def written(name, value):
        demo = episode(40, {"image": np.full((40, 32, 32, 3), value, np.uint8)})
        path = write_demos(tmp_path / name, [demo], image_storage=storage)
        return fingerprint(path)["content_sha256"]

    assert written("a.hdf5", 10) == written("b.hdf5", 10)
    assert written("c.hdf5", 10) != written("d.hdf5", 200)


def test_large_arrays_are_sampled_at_the_same_places(demo_file):
    path = demo_file(num_demos=2, length=4000)
    before = fingerprint(path)
    assert fingerprint(path) == before
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/object"][...] = 1000
    assert fingerprint(path)["content_sha256"] != before["content_sha256"]


def test_a_file_of_very_many_arrays_is_sampled(demo_file, monkeypatch):
    monkeypatch.setattr(module, "_MOST_ARRAYS", 45)
    path = demo_file(num_demos=40, length=3)
    before = fingerprint(path)
    opened = []
    read = module.Extents.of
    patched = lambda self, demo: opened.append(demo) or read(self, demo)  # noqa: E731
    monkeypatch.setattr(module.Extents, "of", patched)
    assert fingerprint(path) == before
    assert set(opened) == {"demo_0", "demo_20", "demo_39"}
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo["obs/object"][...] = 1000
    assert fingerprint(path)["content_sha256"] != before["content_sha256"]


def test_a_filter_key_more_is_the_same_content(demo_file):
    path = demo_file()
    before = fingerprint(path)
    split(path, Target(None, path), ratio=0.5)
    assert {**fingerprint(path), "size_bytes": 0} == {**before, "size_bytes": 0}


def test_a_damaged_array_has_a_fingerprint_too(demo_file):
    path = demo_file(num_demos=1)
    with h5py.File(path, "r+") as file:
        file["data/demo_0"].create_dataset(
            "obs/packed", data=np.arange(9000.0), chunks=(9000,), compression="gzip"
        )
        chunk = file["data/demo_0/obs/packed"].id.get_chunk_info(0)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(bytes(chunk.size))
    assert fingerprint(path) == fingerprint(path)
