"""Speed at which doctor, statistics and trainings read an uncompressed file in the page cache, on one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.demos import OBS_KEYS, made_up
from benchmarks.row import Row
from imitate.config import load_config
from imitate.data import DatasetFile, build_datasets
from imitate.data.curate.summary import summarize
from imitate.data.doctor.diagnosis import diagnose
from imitate.train.setup import resolve

WANTED_MB_PER_S = 500
WANTED_DEMOS_PER_S = 200
REPEATS = 3
FILES = {
    "two cameras 84x84, 100 demos of 40 steps": ([40] * 100, ("front_image", "side_image")),
    "low-dim, 20 demos of 40,000 steps": ([40_000] * 20, ()),
    "low-dim, 500 demos of 40 steps": ([40] * 500, ()),
}


def run(bench: Bench) -> list[Row]:
    """Megabytes of the file per CPU second; of many short demos, which are bound by the number of arrays, demos."""
    return [row for name in FILES for row in rows_of(name, bench)]


def rows_of(name: str, bench: Bench) -> list[Row]:
    """Rows of one of :data:`FILES`."""
    lengths, images = FILES[name]
    path = made_up(bench.folder / "curation.hdf5", lengths, images)
    size_mb, rows = path.stat().st_size / 1e6, []
    are_short = len(lengths) > 100
    for tool, work in (TOOLS | OPENING if are_short else TOOLS).items():
        seconds = _seconds(work, path)
        note = f"{size_mb:.0f} MB in {seconds:.2f} CPU s"
        if are_short:
            row = Row(
                f"{tool}, {name}", len(lengths) / seconds, "demos/s", WANTED_DEMOS_PER_S, note=note
            )
        else:
            row = Row(f"{tool}, {name}", size_mb / seconds, "MB/s", WANTED_MB_PER_S, note=note)
        rows.append(row)
    return rows


def _training_set(path: Path) -> None:
    """Read and check the file for a training."""
    modalities = {"obs": {"low_dim": list(OBS_KEYS)}}
    tree = {"algo_name": "bc", "observation": {"modalities": modalities}}
    build_datasets(resolve(load_config(tree), path, None))


def _fingerprint(path: Path) -> None:
    with DatasetFile(path) as file:
        file.fingerprint()


TOOLS: dict[str, Callable[[Path], Any]] = {"doctor": diagnose, "stats": summarize}
OPENING: dict[str, Callable[[Path], Any]] = {
    "training set": _training_set,
    "fingerprint": _fingerprint,
}


def _seconds(work: Callable[[Path], Any], path: Path) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work(path)
        times.append(time.process_time() - start)
    return min(times)
