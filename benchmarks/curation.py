"""How fast the doctor and the statistics read an uncompressed file that is in the page cache, on one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.demos import made_up
from benchmarks.row import Row
from imitate.data.curate.summary import summarize
from imitate.data.doctor.diagnosis import diagnose

WANTED_MB_PER_S = 500
REPEATS = 3
FILES = {
    "two cameras 84x84, 100 demos of 40 steps": ([40] * 100, ("front_image", "side_image")),
    "low-dim, 20 demos of 40,000 steps": ([40_000] * 20, ()),
    "low-dim, 500 demos of 40 steps": ([40] * 500, ()),
}


def run(bench: Bench) -> list[Row]:
    """Megabytes of the file per CPU second; many short demos are bound by the number of arrays."""
    rows = []
    for name, (lengths, images) in FILES.items():
        path = made_up(bench.folder / "curation.hdf5", lengths, images)
        for tool, work in (("doctor", diagnose), ("stats", summarize)):
            size_mb, seconds = path.stat().st_size / 1e6, _seconds(work, path)
            target = None if len(lengths) > 100 else WANTED_MB_PER_S
            note = f"{size_mb:.0f} MB in {seconds:.2f} CPU s"
            rows.append(Row(f"{tool}, {name}", size_mb / seconds, "MB/s", target, note=note))
    return rows


def _seconds(work: Callable[[Path], Any], path: Path) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work(path)
        times.append(time.process_time() - start)
    return min(times)
