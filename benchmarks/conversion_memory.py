"""Peak memory of conversions between HDF5 and LeRobot, whatever the size.

    python -m benchmarks.conversion_memory                    a small set and one of 1 GB
    python -m benchmarks.conversion_memory --gb 4 --video h264

Each way runs as ``imitate dataset convert`` in a process of its own. A small set with episodes of the same
length is converted too: what the large one needs more is what grows with size. Wanted: less than 300 MB. Linux only.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from benchmarks.measuring import peak_bytes
from benchmarks.row import Row, table
from imitate.data import DatasetWriter, Episode

STEPS, SIDE = 100, 240
MAX_GROWTH_MB = 300


def main() -> int:
    """Measure; 1 if memory grew more than wanted."""
    parser = argparse.ArgumentParser("python -m benchmarks.conversion_memory", description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0, help="size of the large set")
    parser.add_argument("--video", choices=["h264", "av1"], help="images as videos")
    parser.add_argument("--folder", type=Path, help="where there is room for three such sets")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < 3.2e9 * args.gb:
            parser.error(f"{folder}: less than {3.2 * args.gb:.1f} GB are free: choose a --folder")
        small = _both_ways(folder / "small", 0.1, args.video)
        large = _both_ways(folder / "large", args.gb, args.video)
    rows = []
    for way, before, after in zip(
        ("HDF5 -> LeRobot", "LeRobot -> HDF5"), small, large, strict=True
    ):
        note = (
            f"{after[0]:.0f} MB at {args.gb:g} GB, {before[0]:.0f} MB at 0.1 GB; {after[1]:.0f} s"
        )
        growth = after[0] - before[0]
        rows.append(
            Row(f"{way}: growth of peak RSS", growth, "MB", MAX_GROWTH_MB, at_most=True, note=note)
        )
    print(table("conversion_memory", rows))
    return 1 if any(row.met is False for row in rows) else 0


def _both_ways(folder: Path, gb: float, video: str | None) -> list[tuple[float, float]]:
    """Peak MB and seconds, there and back; the set is removed."""
    folder.mkdir()
    source, middle, back = folder / "a.hdf5", folder / "lerobot", folder / "b.hdf5"
    _make(source, max(2, round(gb * 1e9 / (STEPS * SIDE * SIDE * 3))))
    options = ["--video", video] if video else []
    found = [_convert(source, middle, "--to", "lerobot", *options), _convert(middle, back)]
    if video is None:
        _compare(source, back)
    shutil.rmtree(folder)
    return found


def _make(path: Path, demos: int) -> None:
    """Frames that are half noise, so that nothing compresses well."""
    random = np.random.default_rng(0)
    with DatasetWriter(path, {"env_name": "Lift", "type": 1}, control_freq=20) as writer:
        for _ in range(demos):
            frames = np.zeros((STEPS, SIDE, SIDE, 3), np.uint8)
            frames[:, : SIDE // 2] = random.integers(0, 256, (STEPS, SIDE // 2, SIDE, 3), np.uint8)
            last = np.arange(STEPS) == STEPS - 1
            writer.append_episode(
                Episode(
                    obs={"agentview_image": frames, "object": random.normal(size=(STEPS, 10))},
                    actions=random.uniform(-1, 1, (STEPS, 7)),
                    rewards=last,
                    terminals=last,
                    timeouts=np.zeros(STEPS),
                )
            )


def _convert(source: Path, target: Path, *options: str) -> tuple[float, float]:
    """Peak resident MB of the process, and its seconds."""
    command = [sys.executable, "-m", "imitate.cli.main", "dataset", "convert"]
    started = time.monotonic()
    peak = peak_bytes([*command, str(source), str(target), *options])
    return peak / 1e6, time.monotonic() - started


def _compare(first: Path, second: Path) -> None:
    """The images of the last demo are equal, as a sample."""
    with h5py.File(first) as a, h5py.File(second) as b:
        assert len(a["data"]) == len(b["data"])
        place = f"data/demo_{len(a['data']) - 1}/obs/agentview_image"
        np.testing.assert_array_equal(a[place][()], b[place][()])


if __name__ == "__main__":
    sys.exit(main())
