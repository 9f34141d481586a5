"""Free memory: the kernel's word, or a control group's where that is less."""

from pathlib import Path

import pytest

from imitate.data.batches.free_memory import free_memory, gigabytes

MB = 10**6


def machine(root, files):
    """A file system with these files."""
    for name, text in {
        "proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable:  4000000 kB\n",
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/slice/job\n",
    "sys/fs/cgroup/slice/job/memory.max": "max\n",
    "sys/fs/cgroup/slice/job/memory.current": str(500 * MB),
    "sys/fs/cgroup/slice/memory.max": str(2000 * MB),
    "sys/fs/cgroup/slice/memory.current": str(900 * MB),
    "sys/fs/cgroup/slice/memory.stat": f"anon 1\nfile 2\ninactive_file {300 * MB}\nactive_file 7\n",
}
V1 = {
    "proc/self/cgroup": "9:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(1000 * MB),
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(700 * MB),
    "sys/fs/cgroup/memory/job/memory.stat": f"cache 5\ntotal_inactive_file {100 * MB}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": str(900 * MB),
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
}
# Without a name space for control groups the path is the host's, and the container's group lies at the top.
CONTAINER = {
    "proc/self/cgroup": "0::/docker/0123abc\n",
    "sys/fs/cgroup/memory.max": str(600 * MB),
    "sys/fs/cgroup/memory.current": str(650 * MB),
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
        ({**V2, "sys/fs/cgroup/slice/memory.stat": "torn"}, 4096 * MB),
    ],
    ids=["no limit", "version 2", "version 1", "over the limit", "machine is fuller", "torn file"],
)
def test_free_memory(tmp_path, files, free):
    assert free_memory(machine(tmp_path, files)) == free


def test_elsewhere_half_of_what_the_machine_has(tmp_path):
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert abs(free_memory(tmp_path) - total // 2) < 0.01 * total


def test_here_it_is_less_than_the_machine_has():
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < free_memory() < total


@pytest.mark.parametrize(
    ("count", "words"),
    [(1_234_567_890, "1.23 GB"), (120 * 10**9, "120 GB"), (84_672_000, "84.7 MB"), (500, "0.5 kB")],
)
def test_words(count, words):
    assert gigabytes(count) == words


def test_processes_of_one_machine_share_its_memory(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = free_memory()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert free_memory() < alone / 100
