"""Loading, training and memory over the size of the dataset, and evaluation over workers: measured, then drawn.

    python -m benchmarks scaling                              measure what scaling.json lacks, draw
    python -m benchmarks scaling --draw                       draw alone
    python -m benchmarks scaling --again --json out.json --picture out.png
    python -m benchmarks scaling --peer-python PEER/bin/python --peer-source ROBOMIMIC

Vectors: 1 k to 1 M windows of Lift's observations and actions, in demonstrations of 100 steps. Images: two cameras of
84 x 84, 0.25 to 2 GB as they are in memory; in RAM, in the file as they are, as JPEG, and as the videos of a LeRobot
folder (h264). Each measurement is a process of its own, and is saved as soon as it is there, so that an interrupted run
resumes. Costs an estimated 20 minutes of one core that is free (80 minutes beside other jobs), 7 GB of disk and 3 GB of
RAM, with robomimic. Runs on Linux; evaluation needs robosuite.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import scaling_data
from benchmarks.demos import made_up
from benchmarks.scaling_picture import draw

FIGURES = Path(__file__).with_name("scaling.json")
PICTURE = Path("docs/images/scaling.png")
WINDOWS = (1_000, 10_000, 100_000, 1_000_000)
PEER_WINDOWS = 100_000
"""robomimic keeps each window in RAM by itself, 4 kB of them."""
GIGABYTES = (0.25, 0.75, 2.0)
FORMS = ("ram", "raw", "jpeg", "video")
WORKERS, EVAL_ROUNDS = (1, 2), 3
Figures = dict[str, float]


@dataclass
class Study:
    """The cells and what is known of them.

    Args:
        target: JSON file; figures of a cell are added as soon as they are measured.
        cells: by name, such as ``vectors 1000`` or ``jpeg 0.5``.
        folder: for datasets.
        peer: interpreter with robomimic and its source folder.
    """

    target: Path
    cells: dict[str, Figures]
    folder: Path
    peer: tuple[Path, Path | None] | None
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cache = {"IMITATE_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}
        self.environ = {**os.environ, **cache}

    def measure(self, names: list[str]) -> None:
        """Measure the named cells; a dataset is kept while consecutive cells use it."""
        kept: tuple[tuple[str, str], Path] | None = None
        for name in tqdm(names, desc="cells", unit="cell"):
            kind, size = name.removeprefix("robomimic, ").split()
            form = {"ram": "raw", "images": "raw"}.get(kind, kind)
            if kept is None or kept[0] != (form, size):
                if kept is not None:
                    scaling_data.remove(kept[1])
                kept = (form, size), self._write(form, size)
            data = kept[1]
            if name.startswith("robomimic"):
                figures = self._peer(data, "vectors" if kind == "vectors" else "images")
            else:
                figures = MEASURES[kind](self, data, size)
            self._save(name, figures)

    def _write(self, form: str, size: str) -> Path:
        path = self.folder / (form if form == "video" else f"{form}.hdf5")
        if form == "vectors":
            return scaling_data.write_vectors(path, int(size))
        if form == "evaluation":
            return made_up(path, [100] * 20)
        return scaling_data.write_images(path, float(size), form)

    def vectors(self, data: Path, size: str) -> Figures:
        """Vectors, in RAM."""
        found = self._ours(kind="load", data=str(data), images=None)
        return found | self._ours(kind="train", data=str(data), images=None)

    def ram(self, data: Path, size: str) -> Figures:
        """Images in RAM."""
        return self._ours(kind="load", data=str(data), images="ram")

    def raw(self, data: Path, size: str) -> Figures:
        """Images as they are in the file, in the page cache and not."""
        return self._from_file(data) | self._ours(kind="cold", data=str(data))

    def compressed(self, data: Path, size: str) -> Figures:
        """Compressed images, decoded once: the first opening and later ones."""
        first = self._ours(kind="load", data=str(data), images="file")
        found = self._from_file(data)
        scaling_data.remove(self.folder / "cache")
        return found | {"first_opening_cpu_s": first["opening_cpu_s"]}

    def evaluation(self, data: Path, size: str) -> Figures:
        """Episodes on Lift with worker processes: the fastest round, as other jobs only slow them down."""
        command = [sys.executable, "-m", "imitate.cli.main", "train", "--config"]
        command += ["robosuite/lift/bc", "--dataset", str(data), "--epochs", "1", "--quiet"]
        command += ["--json", "--output-dir", str(self.folder / "runs")]
        command += ["--set", "experiment.rollout.enabled=false"]
        checkpoint = json.loads(self._output(command))["checkpoint"]
        played = [
            self._ours(kind="play", data=checkpoint, workers=int(size)) for _ in range(EVAL_ROUNDS)
        ]
        return max(played, key=lambda figures: figures["episodes_per_s"])

    def _from_file(self, data: Path) -> Figures:
        found = self._ours(kind="load", data=str(data), images="file")
        found |= self._ours(kind="train", data=str(data), images="file")
        return found | {"dataset_bytes": scaling_data.size_of(data)}

    def _ours(self, **asked: Any) -> Figures:
        command = [sys.executable, "-m", "benchmarks.scaling_cells", json.dumps(asked)]
        return _last_line(self._output(command))

    def _peer(self, data: Path, kind: str) -> Figures:
        assert self.peer is not None
        python, source = self.peer
        script = Path(__file__).with_name("peer_scaling.py")
        environ = {**self.environ} | ({} if source is None else {"PYTHONPATH": str(source)})
        return _last_line(self._output([str(python), str(script), str(data), kind], environ))

    def _output(self, command: list[str], environ: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            command, env=environ or self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return done.stdout

    def _save(self, name: str, figures: Figures) -> None:
        load = os.getloadavg()[0]
        self.cells[name] = {key: float(f"{x:.4g}") for key, x in figures.items()} | {"load": load}
        partial = self.target.with_suffix(".partial")
        partial.write_text(
            json.dumps({"machine": _machine(), "cells": self.cells}, indent=2) + "\n"
        )
        partial.replace(self.target)


MEASURES: dict[str, Callable[[Study, Path, str], Figures]] = {
    "vectors": Study.vectors,
    "ram": Study.ram,
    "raw": Study.raw,
    "jpeg": Study.compressed,
    "video": Study.compressed,
    "evaluation": Study.evaluation,
}


def names_of_cells(windows: list[int], gigabytes: list[float], *, with_peer: bool) -> list[str]:
    """Return the names of all cells, those that share a dataset beside each other."""
    names = []
    for number in windows:
        names.append(f"vectors {number}")
        if with_peer and number <= PEER_WINDOWS:
            names.append(f"robomimic, vectors {number}")
    for size in gigabytes:
        names += [f"ram {size:g}", f"raw {size:g}"]
        names += [f"robomimic, images {size:g}"] if with_peer else []
        names += [f"jpeg {size:g}", f"video {size:g}"]
    return [*names, *(f"evaluation {workers}" for workers in WORKERS)]


def _last_line(text: str) -> Figures:
    """Read the figures that a process printed at its end."""
    found: Figures = json.loads(text.strip().splitlines()[-1])
    return found


def _machine() -> dict[str, Any]:
    from benchmarks.__main__ import machine

    return machine()


def main(words: list[str] | None = None) -> int:
    """Measure what is missing, print it, draw."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, default=FIGURES, metavar="FILE", help="of the figures")
    parser.add_argument("--picture", type=Path, default=PICTURE, metavar="FILE", help="to draw")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--again", action="store_true", help="measure anew what is known")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="cells whose name begins so"
    )
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, help="sizes of vectors")
    parser.add_argument(
        "--gigabytes", type=float, nargs="+", default=GIGABYTES, help="sizes of images"
    )
    parser.add_argument("--folder", type=Path, help="for the datasets; default: the temporary one")
    parser.add_argument("--peer-python", type=Path, metavar="PATH", help="has robomimic")
    parser.add_argument("--peer-source", type=Path, metavar="PATH", help="robomimic's checkout")
    args = parser.parse_args(words)
    cells: dict[str, Figures] = {}
    with suppress(FileNotFoundError):
        cells = json.loads(args.json.read_text())["cells"]
    names = names_of_cells(args.windows, args.gigabytes, with_peer=args.peer_python is not None)
    wanted = [
        name
        for name in names
        if name.startswith(tuple(args.only)) and (args.again or name not in cells)
    ]
    if not args.draw:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            peer = None if args.peer_python is None else (args.peer_python, args.peer_source)
            Study(args.json, cells, Path(folder), peer).measure(wanted)
    for name, figures in cells.items():
        print(name, json.dumps(figures))
    draw(cells, args.picture)
    print(args.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
