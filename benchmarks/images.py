"""Images through a standard DataLoader: from RAM and from files of each storage, with and without workers.

Two cameras of 84 x 84, sequences of 10, batches of 16, in 50 demonstrations of 40 steps: 85 MB of images. They compress
about as simulated scenes do: a shaded floor, a wall, some coloured boxes that move, faint noise.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from benchmarks.bench import Bench
from benchmarks.demos import OBS_KEYS, made_up
from benchmarks.measuring import Contestant, Spent, compare, timed
from benchmarks.row import Row
from imitate.data import DatasetFile, SequenceDataset, ShuffledBatches
from imitate.data.file.image_codec import STORAGES, ImageStorage

IMAGES = ("agentview_image", "robot0_eye_in_hand_image")
LENGTHS = [40] * 50
BATCH_SIZE = 16
SEQ_LENGTH = 10
RAW_BYTES = sum(LENGTHS) * len(IMAGES) * 84 * 84 * 3


def run(bench: Bench) -> list[Row]:
    """Batches per second, sizes, and what decoding costs."""
    torch.set_num_threads(1)
    paths = {
        storage: made_up(
            bench.folder / f"{storage}.hdf5", LENGTHS, IMAGES, image_of=scene, image_storage=storage
        )
        for storage in STORAGES
    }
    with _cache(bench.folder / "cache"):
        sets = {
            "in RAM": _dataset(paths["raw"], "all"),
            "raw, in the file": _dataset(paths["raw"], "low_dim"),
            "jpeg, decoded once": _dataset(paths["jpeg"], "low_dim"),
        }
        decoding = [_decoding(storage, paths[storage]) for storage in ("gzip", "lzf", "jpeg")]
    with _cache(Path(os.devnull)):  # so that every batch is decoded
        sets |= {
            f"{storage}, decoded for each batch": _dataset(paths[storage], "low_dim")
            for storage in ("gzip", "lzf", "jpeg")
        }
    return [*_alone(sets), *_with_workers(sets), *decoding, *_sizes(paths)]


def scene(random: np.random.Generator, steps: int) -> NDArray[np.uint8]:
    """A camera's images: (steps, 84, 84, 3)."""
    row, column = np.mgrid[0:84, 0:84]
    still = (
        np.where(row[..., None] < 35, [180, 190, 200], [120, 100, 80])
        + (column - row)[..., None] / 4
    )
    images = np.repeat(still[None], steps, axis=0) + random.integers(-1, 2, (steps, 84, 84, 1))
    for _ in range(5):
        colour, size = random.integers(0, 256, 3), random.integers(6, 20)
        place, pace = random.integers(0, 60, 2), random.uniform(-0.5, 0.5, 2)
        for step in range(steps):
            top, left = (place + pace * step).clip(0, 80).astype(int)
            images[step, top : top + size, left : left + size] = colour
    return images.clip(0, 255).astype(np.uint8)


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """Decode into this folder."""
    before = os.environ.get("IMITATE_CACHE")
    os.environ["IMITATE_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["IMITATE_CACHE"]
        else:
            os.environ["IMITATE_CACHE"] = before


def _dataset(path: Path, cache_mode: str) -> SequenceDataset:
    keys = (*OBS_KEYS, *IMAGES)
    return SequenceDataset(path, keys, seq_length=SEQ_LENGTH, hdf5_cache_mode=cache_mode)


def _alone(sets: dict[str, SequenceDataset]) -> list[Row]:
    wanted = {"in RAM": 1500.0, "raw, in the file": 500.0, "jpeg, decoded once": 500.0}
    counts = {name: 150 if name in wanted else 20 for name in sets}
    spent = compare({name: _batches(dataset, 0) for name, dataset in sets.items()}, counts)
    return [_row(name, spent[name], wanted.get(name)) for name in sets]


def _with_workers(sets: dict[str, SequenceDataset]) -> list[Row]:
    """By the wall clock: the CPU time of the workers is not this process's."""
    rows = []
    for name, dataset in sets.items():
        spent = compare({name: _batches(dataset, 2)}, 40, rounds=3)[name]
        rows.append(Row(f"{name}, 2 workers", 1 / spent.wall_s, "batches/s"))
    return rows


def _batches(dataset: SequenceDataset, workers: int) -> Contestant:
    sampler = ShuffledBatches(len(dataset), BATCH_SIZE, seed=0)
    loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
    batches = iter(loader)

    def iterate(n: int) -> None:
        for _ in itertools.islice(batches, n):
            pass

    return timed(iterate)


def _row(name: str, spent: Spent, wanted: float | None) -> Row:
    note = f"wall {1 / spent.wall_s:,.0f}/s"
    return Row(name, 1 / spent.cpu_s, "batches/CPU s", wanted, note=note)


def _decoding(storage: ImageStorage, path: Path) -> Row:
    """Decoding all images once, into RAM."""
    began = time.perf_counter(), time.process_time()
    _dataset(path, "all")
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    note = f"wall {RAW_BYTES / 1e6 / wall:,.0f} MB/s"
    return Row(f"{storage}, decoded into RAM", RAW_BYTES / 1e6 / cpu, "MB/CPU s", note=note)


def _sizes(paths: dict[ImageStorage, Path]) -> list[Row]:
    return [
        Row(f"{storage}, size of raw bytes", _stored(path) / RAW_BYTES, "x")
        for storage, path in paths.items()
        if storage != "raw"
    ]


def _stored(path: Path) -> int:
    """Bytes of the file without the vectors, which no storage changes."""
    with DatasetFile(path) as file:
        vectors = sum(
            file.read(demo, key).nbytes
            for demo in file.demos()
            for key in file.keys(demo)
            if not key.endswith("_image")
        )
    return path.stat().st_size - vectors
