"""Splits: disjoint, complete, of the wanted size."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imitate.data import DatasetFile
from imitate.data.curate.masks import split
from imitate.data.curate.target import Target


def bare_file(path, demos):
    with h5py.File(path, "w") as file:
        for number in range(demos):
            file[f"data/demo_{number}/actions"] = np.zeros((1, 1))


def test_the_copy_says_how_far_it_is(tmp_path):
    source, seen = tmp_path / "a.hdf5", []
    with h5py.File(source, "w") as file:
        for number in range(2):
            file[f"data/demo_{number}/actions"] = np.zeros((2_500_000, 1))
    split(source, Target(tmp_path / "b.hdf5"), ratio=0.5, on_mb=lambda *at: seen.append(at))
    assert seen == [(16, 40), (33, 40), (40, 40)]


@settings(max_examples=20, deadline=None)
@given(demos=st.integers(2, 30), ratio=st.floats(0.01, 0.99), seed=st.integers(0, 100))
def test_split_parts_the_demos(demos, ratio, seed):
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "a.hdf5"), Path(folder, "b.hdf5")
        bare_file(source, demos)
        masks = split(source, Target(out), ratio=ratio, seed=seed)
        train, valid = set(masks["train"]), set(masks["valid"])
        assert not train & valid
        assert len(train | valid) == demos
        assert len(valid) == min(max(1, round(ratio * demos)), demos - 1)
        with DatasetFile(out) as file:
            assert file.filter_keys() == masks


KILLED = """
import os, signal, sys
from pathlib import Path
from imitate.data.file import journal
from imitate.data.curate.masks import split
from imitate.data.curate.target import Target

left, write = int(sys.argv[2]), journal._write_all

def counted(*args):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    write(*args)

journal._write_all = counted
split(Path(sys.argv[1]), Target(None, Path(sys.argv[1])), ratio=0.5, overwrite=True)
"""


@pytest.mark.parametrize("writes", [1, 2, 3, 5, 8, 12])
def test_a_kill_in_place_leaves_all_or_nothing(demo_file, writes):
    file = demo_file(num_demos=6, filter_keys={"train": [0, 1], "valid": [2], "mine": [5]})
    before = file.read_bytes()
    with DatasetFile(file) as opened:
        masks = opened.filter_keys()
    command = [sys.executable, "-c", KILLED, str(file), str(writes)]
    assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGKILL
    with DatasetFile(file) as opened:
        assert opened.filter_keys() == masks
    assert file.read_bytes() == before, "and the size is the one that it had"
    assert [path.name for path in file.parent.iterdir()] == ["demos.hdf5"]
    split(file, Target(None, file), ratio=0.5, overwrite=True)
    with DatasetFile(file) as opened:
        assert len(opened.filter_keys()["train"]) == 3
        assert opened.filter_keys()["mine"] == ["demo_5"]


def test_what_a_killed_copy_left_goes_with_the_next(demo_file, tmp_path):
    file = demo_file(num_demos=4)
    killed = """
import os, signal, sys
from pathlib import Path
from imitate.data.curate.masks import split
from imitate.data.curate.target import Target
split(Path(sys.argv[1]), Target(Path(sys.argv[2])), ratio=0.5, on_mb=lambda *at: os.kill(os.getpid(), signal.SIGKILL))
"""
    out = tmp_path / "out.hdf5"
    subprocess.run([sys.executable, "-c", killed, str(file), str(out)], timeout=120, check=False)
    (left,) = tmp_path.glob("out.hdf5.part-*")
    ours = out.with_name("out.hdf5.part-1")  # of a process that lives
    ours.write_text("")
    split(file, Target(out), ratio=0.5)
    assert not left.exists()
    assert out.exists() and ours.exists()
