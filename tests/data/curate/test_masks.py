"""Splits: disjoint, complete, of the wanted size."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
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
