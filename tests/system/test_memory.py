"""Memory that is free and memory that files claim: exact limits, and control groups of both versions."""

import os
import zipfile

import numpy as np
import pytest

from imitate.errors import DatasetError
from imitate.system import memory as module
from tests.refusals import refused


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A root with 1000 kB available, and a function that writes files below it."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)

    def write(**files):
        there = {"proc/meminfo": "MemTotal: 9 kB\n\nMemAvailable: 1000 kB", **files}
        for name, text in there.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))
        return tmp_path

    return write


def group(folder, most, used, inactive, version=2):
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    stat = f"anon 5\n{names[2]} {inactive}"
    values = {names[0]: most, names[1]: used, "memory.stat": stat}
    return {f"sys/fs/cgroup/{folder}{name}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("own", "groups", "free"),
    [
        (None, {}, 1_024_000),
        ("0::/a/b", group("a/b/", 5000, 3000, 1000), 3000),
        ("0::/a/b", group("a/", 5000, 3000, 1000), 3000),
        ("0::/a/b", group("", 5000, 3000, 1000), 3000),
        ("0::/a/b", group("a/b/", "max", 3000, 1000) | group("a/", 900, 100, 1), 801),
        ("0::/", group("", 100, 900, 0), 0),
        ("0::/a", group("a/", 2_000_000, 0, 0), 1_024_000),
        ("0::/a", group("c/", 5, 0, 0), 1_024_000),
        ("3:cpu:/a\n4:cpu,memory:/a", group("memory/a/", 700, 100, 50, 1), 650),
        ("3:cpu,pids:/a", group("memory/a/", 700, 100, 50, 1), 1_024_000),
        ("4:memory:/a", group("", 10, 1, 1), 1_024_000),
    ],
)
def test_free_memory(root, own, groups, free, monkeypatch):
    files = {} if own is None else {"proc/self/cgroup": own}
    there = root(**files, **groups)
    assert module.free_memory(there) == free
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert module.free_memory(there) == free // 3


def test_free_memory_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    sizes = {"SC_PHYS_PAGES": 40, "SC_PAGE_SIZE": 10}
    monkeypatch.setattr(os, "sysconf", sizes.get)
    assert module.free_memory(tmp_path) == 100
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert module.free_memory(tmp_path) == 200


@pytest.mark.parametrize(
    ("claimed", "stored", "free", "words"),
    [
        (64 * 2**20, 0, 0, None),
        (64 * 2**20 + 1, 0, 1e9, "x claims 67.1 MB in a file of 0 kB: the file is damaged"),
        (1100 * 10**6, 10**6, 1.1e9, None),
        (1100 * 10**6 + 1, 10**6, 2e9, "x claims 1.1 GB in a file of 1 MB"),
        (10**9, 10**9, 999_999_999, "x takes 1 GB of memory, of which 1 GB are free"),
        (10**9, 10**9, 10**9, None),
    ],
)
def test_claims(monkeypatch, claimed, stored, free, words):
    monkeypatch.setattr(module, "free_memory", lambda: int(free))
    if words is None:
        module.check_claim("x", claimed, stored)
        return
    with refused(words):
        module.check_claim("x", claimed, stored)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (10**6, "1 MB"),
        (1_234_567, "1.23 MB"),
        (999_499_999, "999 MB"),
        (999_999_999, "1 GB"),
        (10**9, "1 GB"),
        (1_234 * 10**9, "1.23 TB"),
        (10**27, "1e+15 TB"),
        (10**27 + 1, "more than 10^15 TB"),
    ],
)
def test_sizes_in_words(count, words):
    assert module.gigabytes(count) == words


def test_arrays_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(4), b=np.zeros((2, 3)), c=np.zeros(2))
    seen = []
    monkeypatch.setattr(module, "check_claim", lambda *words: seen.append(words))
    found = module.read_arrays(path, ["a", "b", "no"])
    assert list(found) == ["a", "b"] and found["a"].tolist() == [0, 1, 2, 3]
    assert seen == [(f"{path}:", 32 + 48, path.stat().st_size)]
    with zipfile.ZipFile(path, "w") as archive, archive.open("two.npy", "w") as file:
        np.lib.format.write_array(file, np.ones(3), version=(2, 0))
    assert module.read_arrays(path, ["two"])["two"].tolist() == [1, 1, 1]

    def claim(held):
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }".ljust(117) + b"\n"
        start = b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", start + bytes(held - len(start)))

    claim(200)
    assert module.read_arrays(path, ["a"])["a"].tolist() == [0, 0, 0]
    with zipfile.ZipFile(path) as archive:
        body = archive.read("a.npy").replace(b"(3,), ", b"(26,),")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", body)
    with refused(
        f"{path}: the header of 'a.npy' names 208 bytes, but only 200 are stored",
        error=DatasetError,
    ):
        module.read_arrays(path, ["a"])
    module.return_freed_memory()
