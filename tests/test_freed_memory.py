"""Pages that a process asks the kernel for, in a process of its own."""

import subprocess
import sys

import pytest

PAGES = """
import resource, sys
import numpy as np
from imitate.freed_memory import keep_freed_memory

def update():
    parts = [np.ones(2**20) for _ in range(8)]  # 64 MB

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(3):
    update()
before = pages()
for _ in range(5):
    update()
print((pages() - before) // 5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's memory")
def test_memory_that_was_freed_is_used_again():
    assert _pages("given back") > 1000
    assert _pages("kept") < 10


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's memory")
def test_thresholds_of_the_environment_stay(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")
    assert _pages("kept") > 1000


def _pages(kind):
    return int(subprocess.run([sys.executable, "-c", PAGES, kind], check=True, stdout=-1).stdout)
