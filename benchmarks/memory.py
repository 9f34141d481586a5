"""Benchmark of the memory of a dataset, compared with its raw bytes, and of a low-dim training. Linux only.

The HDF5 library keeps some memory once it has read a file. This memory is measured first and reported
separately, since it depends on the number of arrays in the file, not on their content.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.demos import ACTION_DIM, OBS_DIMS, OBS_KEYS, made_up
from benchmarks.measuring import peak_bytes
from benchmarks.peer import Bench
from benchmarks.row import Row
from benchmarks.trained import train_command

IMAGES = ("agentview_image", "robot0_eye_in_hand_image")

_GROWTH = """
import sys
from pathlib import Path
from imitate.data import DatasetFile, SequenceDataset

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def load(path):
    dataset = SequenceDataset(path, sys.argv[3].split(","), seq_length=10, load_next_obs=False)
    dataset.__getitems__(list(range(16)))
    return dataset

load(sys.argv[1])  # so that code and libraries are in memory already
before = rss()
with DatasetFile(sys.argv[2]) as file:
    for demo in file.demos():
        for key in file.keys(demo):
            file.shape(demo, key)
seen = rss()
kept = load(sys.argv[2])
print(rss() - seen, seen - before)
"""

_PEAK = """
import sys
import torch
from torch.utils.data import DataLoader
from imitate.data import SequenceDataset, ShuffledBatches

torch.set_num_threads(1)
path, keys, seq_length, mode = sys.argv[1:]
dataset = SequenceDataset(path, keys.split(","), seq_length=int(seq_length), hdf5_cache_mode=mode)
batches = iter(DataLoader(dataset, batch_sampler=ShuffledBatches(len(dataset), 16, seed=0)))
for _ in range(100):
    next(batches)
"""


def run(bench: Bench) -> list[Row]:
    """Measure the growth of resident memory by loading, peaks of loading images, and the peak of ``imitate train``."""
    rows = []
    for name, lengths, images in (
        ("low-dim, 200 demos of 4,000 steps", [4000] * 200, ()),
        ("low-dim, 1,000 demos of 400 steps", [400] * 1000, ()),
        ("two cameras 84x84, 100 demos of 40 steps", [40] * 100, IMAGES),
    ):
        path = made_up(bench.folder / "memory.hdf5", lengths, images)
        small = made_up(bench.folder / "small.hdf5", [40], images)
        per_step = 4 * (sum(OBS_DIMS.values()) + ACTION_DIM + 2) + len(images) * 84 * 84 * 3
        raw = per_step * sum(lengths)
        growth, library = _growth(small, path, (*OBS_KEYS, *images))
        note = f"{growth / 1e6:.1f} MB for {raw / 1e6:.1f} MB; HDF5 itself keeps {library / 1e6:.1f} MB"
        rows.append(
            Row(
                f"dataset, {name}: times raw bytes", growth / raw, "x", 1.1, at_most=True, note=note
            )
        )
    rows += _image_peaks(bench)
    peak = peak_bytes(train_command(bench, "--epochs", "2"))
    rows.append(Row("training of BC on Lift, peak", peak / 1e6, "MB", 700, at_most=True))
    return rows


def _growth(small: Path, path: Path, keys: tuple[str, ...]) -> tuple[int, int]:
    """Return the bytes by which resident memory grows when the file is loaded, and when HDF5 first opens it."""
    command = [sys.executable, "-c", _GROWTH, str(small), str(path), ",".join(keys)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    growth, library = map(int, done.stdout.split())
    return growth, library


def _image_peaks(bench: Bench) -> list[Row]:
    """Return the peak memory of a process that loads 100 batches of 16 windows of any length."""
    steps, rows = [40] * 75, []
    path = made_up(bench.folder / "peaks.hdf5", steps, IMAGES)
    raw = len(IMAGES) * 84 * 84 * 3 * sum(steps)
    for mode, place in (("all", "in RAM"), ("low_dim", "in the file")):
        for seq_length in (1, 10, 50):
            arguments = [str(path), ",".join((*OBS_KEYS, *IMAGES)), str(seq_length), mode]
            command = [sys.executable, "-c", _PEAK, *arguments]
            peak = peak_bytes(command)
            name = f"{raw / 1e6:.0f} MB of images {place}, sequence {seq_length}, peak"
            wanted = (1.1 * raw if mode == "all" else 0) / 1e6 + 300
            rows.append(Row(name, peak / 1e6, "MB", wanted, at_most=True))
    return rows
