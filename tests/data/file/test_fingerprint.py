"""The fingerprint of a file follows everything that training reads, and nothing else."""

import hashlib

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


def digest_of(*parts):
    return hashlib.sha256(b"".join(p.encode() if isinstance(p, str) else p for p in parts))


def test_the_digests_exactly(tmp_path):
    """Small arrays are read whole, larger ones at four steps, compressed ones of 25 demos, no steps above 16 MiB."""
    path, actions = tmp_path / "a.hdf5", np.float32([[1], [2]])
    values, packed = np.arange(4097, dtype=np.float32), np.arange(16_385).astype(np.uint8)
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = "{}"
        for number in range(26):
            demo = file.create_group(f"data/d{number}")
            demo.attrs.update(num_samples=2, success=True, language="lift", other=1)
            demo["actions"] = actions
            demo.create_dataset("packed", data=packed, chunks=(16_385,), compression="gzip")
        demo = file["data/d0"]
        demo["few"], demo["many"] = values[:-1], values
        for name, size in (("large", 2**24), ("larger", 2**24 + 1)):
            demo.create_dataset(name, (1, size), "u1", chunks=(1, 2**20))
    with DatasetFile(path) as file:
        found = module.fingerprint(file)
    parts, content = ["{}"], []
    for number in range(26):
        attrs = "[('language', 'lift'), ('num_samples', 2), ('success', True)]"
        parts += [f"d{number} (2, 1) float32", actions.tobytes()]
        content += [f"d{number} {attrs}", "actions (2, 1) <f4", actions.tobytes()]
        if number == 0:
            content += ["few (4096,) <f4", values[:-1].tobytes()]
            content += ["large (1, 16777216) |u1", bytes(2**24), "larger (1, 16777217) |u1"]
            content += ["many (4097,) <f4", values[[0, 1365, 2731, 4096]].tobytes()]
        content += ["packed (16385,) |u1"]
        if number != 13:  # of 26 evenly spread numbers
            content += [packed[[0, 5461, 10923, 16384]].tobytes()]
    assert found == {
        "size_bytes": path.stat().st_size,
        "num_demos": 26,
        "num_steps": 52,
        "sha256": digest_of(*parts).hexdigest(),
        "content_version": 1,
        "content_sha256": digest_of(*content).hexdigest(),
    }


@pytest.mark.parametrize(("arrays", "examined"), [(1000, "012"), (1001, "02")])
def test_of_3000_arrays_at_most_all_are_examined(tmp_path, monkeypatch, arrays, examined):
    path, opened, read = tmp_path / "a.hdf5", set(), module.Extents.of
    with h5py.File(path, "w", libver="latest") as file:
        for number in "012":
            file[f"data/{number}/actions"] = np.zeros((1, 1))
        for number in range(arrays - 1):
            file[f"data/0/a{number}"] = np.zeros((1, 1))
    monkeypatch.setattr(module.Extents, "of", lambda *a: opened.add(a[1]) or read(*a))
    fingerprint(path)
    assert opened == set(examined)
