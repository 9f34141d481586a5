"""Where the data lie: in RAM as wanted, with 'auto' as much as fits; once for all workers; buffers used again."""

import math
import pickle
import subprocess
import sys
import tracemalloc
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from imitate.data import SequenceDataset
from imitate.data.batches.placement import check_steps, place
from imitate.data.batches.store import Buffers, DataSource, Store
from imitate.data.file.fields import Field
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.system.memory import free_memory, gigabytes
from tests.demo_files import episode, write_demos

# 1,000 steps of 10 columns: 40 kB; images of 30 kB and 12 kB a step: 30 MB and 12 MB.
FIELDS = {
    "obs/x": Field("obs/x", (6,), slice(0, 6), np.dtype(np.float32)),
    "actions": Field("actions", (4,), slice(6, 10), np.dtype(np.float32)),
    "obs/front": Field("obs/front", (100, 100, 3), None, np.dtype(np.uint8)),
    "obs/wrist": Field("obs/wrist", (100, 40, 3), None, np.dtype(np.uint8)),
}
PATH = Path("a.hdf5")
IN_RAM = "images: 42 MB in RAM (of {} free)"
IN_FILE = "images stay in the file: 42 MB, {} free"
PARTLY = "images: {} in RAM ({} MB of {} free), the others stay in the file ({} MB)"
MB = 10**6


@pytest.mark.parametrize(
    ("mode", "free", "packed", "images", "words"),
    [
        ("all", 43 * MB, True, "front wrist", IN_RAM.format("43 MB")),
        ("low_dim", 43 * MB, True, "", IN_FILE.format("43 MB")),
        (None, 1_000, False, "", IN_FILE.format("1 kB")),
        (None, 0, False, "", IN_FILE.format("0 kB")),
        ("auto", 60 * MB, True, "front wrist", IN_RAM.format("60 MB")),
        # Of the free memory four fifths are taken at most: 40 MB of 50.
        ("auto", 50 * MB, True, "front", PARTLY.format("front", 30, "50 MB", 12)),
        ("auto", 20 * MB, True, "wrist", PARTLY.format("wrist", 12, "20 MB", 30)),
        ("auto", 60_000, True, "", IN_FILE.format("60 kB")),
        ("auto", 50_000, True, "", IN_FILE.format("50 kB")),  # just what the columns take
        ("auto", 52_550_000, True, "front wrist", IN_RAM.format("52.5 MB")),
        ("all", 42_040_000, True, "front wrist", IN_RAM.format("42 MB")),
        ("low_dim", 40_000, True, "", IN_FILE.format("40 kB")),
        ("auto", 49_000, False, "", IN_FILE.format("49 kB")),
    ],
)
def test_placement(mode, free, packed, images, words):
    placement = place(FIELDS, 1000, mode, free, PATH)
    assert placement.packed_in_ram is packed
    assert placement.apart_in_ram == {f"obs/{name}" for name in images.split()}
    assert placement.words == words


@pytest.mark.parametrize(
    ("steps", "free", "taken"),
    [
        *((1000, 0, 0), (2**19, 0, 0)),  # 64 MiB are always there
        (2**19 + 1, 68 * MB, 128 * (2**19 + 1)),
        *((10**6, 128 * MB, 128 * MB), (10**6, 128 * MB - 1, None)),
    ],
)
def test_the_memory_of_steps_besides_their_data(steps, free, taken):
    if taken is not None:
        assert check_steps(steps, free, PATH) == taken
        return
    with pytest.raises(DatasetError, match=r"1000000 steps take 128 MB .* use fewer demos"):
        check_steps(steps, free, PATH)


def test_small_images_may_fit_where_columns_do_not():
    fields = {
        "obs/x": Field("obs/x", (100,), slice(0, 100), np.dtype(np.float32)),
        "obs/i": Field("obs/i", (2, 2, 2), None, np.dtype(np.uint8)),
    }
    found = place(fields, 1, "auto", 10, PATH)  # 8 of 10 bytes
    assert (found.packed_in_ram, found.apart_in_ram) == (False, {"obs/i"})
    assert place(fields, 1, "auto", 9, PATH).apart_in_ram == frozenset()


def test_without_images_there_is_nothing_to_say():
    fields = {key: field for key, field in FIELDS.items() if field.columns}
    assert place(fields, 1000, "auto", 10**9, PATH).words == ""


@pytest.mark.parametrize(
    ("mode", "free", "words", "other"),
    [
        ("all", 41 * MB, "42 MB of RAM and 41 MB are free", "'low_dim'"),
        ("low_dim", 39_000, "40 kB of RAM and 39 kB are free", "null"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_read(mode, free, words, other):
    with pytest.raises(DatasetError) as error:
        place(FIELDS, 1000, mode, free, PATH)
    assert str(error.value) == (
        f"a.hdf5: train.hdf5_cache_mode is '{mode}', but that takes {words}: set it to 'auto' or {other}, so that "
        "what does not fit stays in the file"
    )


# ---- one copy for all workers --------------------------------------------------------------------


def pictures(path, steps):
    frames = (np.full((steps, 100, 100, 3), number + 1, np.uint8) for number in range(4))
    return write_demos(path, (episode(steps, {"camera": images}) for images in frames))


def test_a_dataset_is_sent_to_a_worker_without_its_values(tmp_path):
    """They lie in a block of memory that both processes see; what is sent is its handle."""
    path = pictures(tmp_path / "a.hdf5", steps=5)
    data = SequenceDataset(path, ("camera",), hdf5_cache_mode="all")
    sent = ForkingPickler.dumps(data)
    assert len(sent) < 20_000 < data.store.num_bytes
    received = pickle.loads(sent)
    data.store.apart["obs/camera"][7] = 99
    assert received[[7]]["obs"]["camera"].unique().tolist() == [99]
    data.store.packed[3] = 5
    assert received[[3]]["actions"].unique().tolist() == [5]


LOADING = """
import os, sys
from pathlib import Path
from torch.utils.data import DataLoader
import torch
from imitate.data import SequenceDataset

def proportional_set_size(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    # Not of mapped files: their share depends on the other processes of the machine that use the same libraries.
    own = ("Pss_Anon:", "Pss_Shmem:")
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(own))

def main(path, context):
    torch.set_num_threads(1)
    data = SequenceDataset(path, ("camera",), hdf5_cache_mode="all")
    loader = DataLoader(
        data, batch_size=8, num_workers=2, multiprocessing_context=context, persistent_workers=True,
        prefetch_factor=1,
    )
    total = 0
    for batch in loader:  # both workers touch all that they will touch
        total += int(batch["obs"]["camera"].numpy()[:, 0, 50, 50, 1].sum())
    workers = [worker.pid for worker in loader._iterator._workers]
    print(sum(map(proportional_set_size, (os.getpid(), *workers))), total)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_two_workers_take_no_memory_of_their_own_for_the_data(tmp_path, context):
    script = tmp_path / "loading.py"
    script.write_text(LOADING)

    def taken(steps):
        path = pictures(tmp_path / f"{steps}.hdf5", steps)
        command = [sys.executable, str(script), str(path), context]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd())
        size, total = map(int, done.stdout.split())
        assert total == steps * (1 + 2 + 3 + 4)
        return size

    raw = 4 * 1000 * 100 * 100 * 3  # 120 MB, against 2 MB that only show what the processes take
    growth = taken(1000) - taken(16)
    # A little less is other memory that the larger run happened not to take.
    assert 0.95 * raw < growth < 1.1 * raw + 25 * MB, (
        f"{growth / MB:.0f} MB for {raw / MB:.0f} MB of images"
    )


# ---- free memory: the kernel's word, or a control group's where that is less ---------------------


def machine(root, files):
    """A file system with these files, and what the kernel says."""
    meminfo = "MemTotal: 9000000 kB\nMemAvailable:  4000000 kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


SLICE = "sys/fs/cgroup/slice"
V2 = {
    "proc/self/cgroup": "0::/slice/job\n",
    f"{SLICE}/job/memory.max": "max\n",
    f"{SLICE}/job/memory.current": 500 * MB,
    f"{SLICE}/memory.max": 2000 * MB,
    f"{SLICE}/memory.current": 900 * MB,
    f"{SLICE}/memory.stat": f"anon 1\nfile 2\ninactive_file {300 * MB}\nactive_file 7\n",
}
GROUP = "sys/fs/cgroup/memory"
V1 = {
    "proc/self/cgroup": "9:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
    f"{GROUP}/job/memory.limit_in_bytes": 1000 * MB,
    f"{GROUP}/job/memory.usage_in_bytes": 700 * MB,
    f"{GROUP}/job/memory.stat": f"cache 5\ntotal_inactive_file {100 * MB}\n",
    f"{GROUP}/memory.limit_in_bytes": 9223372036854771712,
    f"{GROUP}/memory.usage_in_bytes": 900 * MB,
    f"{GROUP}/memory.stat": "total_inactive_file 0\n",
}
# Without a name space for control groups the path is the host's, and the container's group is at the top.
CONTAINER = {
    "proc/self/cgroup": "0::/docker/0123abc\n",
    "sys/fs/cgroup/memory.max": 600 * MB,
    "sys/fs/cgroup/memory.current": 650 * MB,
    "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 4096 * MB),
        (V2, (2000 - 900 + 300) * MB),
        (V1, (1000 - 700 + 100) * MB),
        (CONTAINER, 0),
        ({**V2, "proc/meminfo": "MemAvailable: 1000000 kB\n"}, 1024 * MB),
        ({**V2, f"{SLICE}/memory.stat": "torn"}, 4096 * MB),
    ],
    ids=["no limit", "version 2", "version 1", "over the limit", "machine is fuller", "torn file"],
)
def test_free_memory(tmp_path, files, free):
    assert free_memory(machine(tmp_path, files)) == free


def test_free_memory_of_this_machine(tmp_path, monkeypatch):
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert 0 < free_memory() < total
    elsewhere = free_memory(tmp_path)  # where the kernel says nothing: half of what the machine has
    assert abs(elsewhere - total // 2) < 0.01 * total
    machine(tmp_path, {})
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")  # processes of one machine share its memory
    assert free_memory(tmp_path) == 4096 * MB // 1000


@pytest.mark.parametrize(
    ("count", "words"),
    [(1_234_567_890, "1.23 GB"), (120 * 10**9, "120 GB"), (84_672_000, "84.7 MB"), (500, "0.5 kB")],
)
def test_words(count, words):
    assert gigabytes(count) == words


# ---- memory that is used again: never while somebody can still see it ----------------------------

SHAPE, UINT8 = (16, 10, 32, 32, 3), np.dtype(np.uint8)


def test_memory_comes_back_when_the_tensor_is_gone():
    buffers = Buffers()
    tensor = buffers.empty(SHAPE, UINT8)
    assert (tuple(tensor.shape), tensor.dtype) == (SHAPE, torch.uint8)
    address = tensor.data_ptr()
    assert buffers.empty(SHAPE, UINT8).data_ptr() != address
    del tensor
    floats = buffers.empty((16, 10, 32, 8, 3), np.dtype(np.float32))  # as many bytes
    assert floats.dtype == torch.float32
    again = buffers.empty(SHAPE, UINT8)
    assert address in (floats.data_ptr(), again.data_ptr())


VIEWS = {
    "row": lambda t: t[3],
    "view": lambda t: t.view(160, -1)[5:7],
    "numpy": lambda t: t.numpy()[2:4],
    "slice of numpy": lambda t: np.asarray(t)[0, 0].reshape(-1),
    "memoryview": lambda t: memoryview(t.numpy()),
    "permuted": lambda t: t.permute(0, 1, 4, 2, 3),
    "storage": lambda t: t.untyped_storage(),
    "dlpack": lambda t: torch.from_dlpack(t),
}


@pytest.mark.parametrize("kept", VIEWS.values(), ids=VIEWS.keys())
def test_whatever_still_looks_at_a_batch_keeps_its_memory(kept):
    buffers = Buffers()
    tensor = buffers.empty(SHAPE, UINT8)
    tensor.fill_(7)
    address = tensor.data_ptr()
    view = kept(tensor)
    del tensor
    others = [buffers.empty(SHAPE, UINT8) for _ in range(6)]
    assert address not in [other.data_ptr() for other in others]
    del view
    assert buffers.empty(SHAPE, UINT8).data_ptr() == address


def test_few_are_kept_and_none_is_pickled():
    buffers = Buffers()
    tracemalloc.start()
    try:
        held = [buffers.empty(SHAPE, UINT8) for _ in range(10)]
        del held
        batch = math.prod(SHAPE)
        assert tracemalloc.get_traced_memory()[0] == pytest.approx(4 * batch, rel=0.05)
        for size in range(200_000, 200_020):
            buffers.empty((size,), UINT8)
        # At most eight sizes: those of the large batches are gone, too.
        assert tracemalloc.get_traced_memory()[0] < 9 * 200_020
    finally:
        tracemalloc.stop()
    assert len(pickle.dumps(buffers)) < 200
    assert pickle.loads(pickle.dumps(buffers)).empty(SHAPE, UINT8).shape == SHAPE


def stored(path, mode="all", goal_keys=(), demos=None):
    with DataFiles() as files:
        source = DataSource(path, demos=demos)
        assert source.weight == 1.0  # as other files
        keys = ("obs/x", "obs/front", "actions")
        return Store([source], keys, files, goal_keys=goal_keys, cache_mode=mode)


@pytest.fixture
def scenes(tmp_path):
    """Two demos of three and two steps."""
    draw = np.random.default_rng(0)
    steps = [
        {"x": draw.normal(size=(n, 2)), "front": draw.integers(0, 255, (n, 4, 4, 3), np.uint8)}
        for n in (3, 2)
    ]
    demos = [episode(len(obs["x"]), obs, 2) for obs in steps]
    return steps, write_demos(
        tmp_path / "a.hdf5", demos, {"env_name": "x", "type": 4, "env_kwargs": {}}
    )


def test_bytes_of_all_arrays_are_counted(scenes):
    steps, path = scenes
    images, numbers, goals = 5 * 48, 5 * 4 * 4, 2 * 2 * 4
    assert stored(path, goal_keys=("x",)).num_bytes == images + numbers + goals
    assert stored(path, "low_dim").num_bytes == numbers and stored(path, None).num_bytes == 0


@pytest.mark.parametrize("mode", ["all", "low_dim"])
def test_images_are_replaced_by_their_features_wherever_they_lie(scenes, mode):
    store, features = stored(scenes[1], mode), torch.arange(10.0).view(5, 2)
    store.replace("obs/front", features, "features")
    assert store.rows("obs/front", np.array([4, 0])).tolist() == [[8, 9], [0, 1]]
    assert store.notes == ["features"] and not store.from_file
    store.to("meta")
    assert store.rows("obs/front", np.array([4, 0])).shape == (2, 2)
    store.replace("obs/front", features, "again")
    assert store.apart["obs/front"].device.type == "meta"


def test_a_goal_that_is_not_finite_is_told_with_its_step(scenes):
    with h5py.File(scenes[1], "a") as file:
        file["data/demo_1/next_obs/x"] = np.array([[0, 0], [0, np.nan]])
    with pytest.raises(DatasetError, match="'next_obs/x' is nan at step 1"):
        stored(scenes[1], goal_keys=("x",))


def test_a_part_without_demos_is_empty_and_a_file_without_is_refused(scenes):
    assert len(stored(scenes[1], demos=frozenset({"demo_1"}))) == 2
    with h5py.File(scenes[1], "a") as file:
        file["mask/none"] = np.zeros(0, "S6")
    with DataFiles() as files, pytest.raises(DatasetError, match="selects no demo"):
        Store([DataSource(scenes[1], "none")], ("actions",), files)
