"""Command line of the benchmarks: speed and memory compared with robomimic's, as tables and as JSON.

    python -m benchmarks                                  all of them
    python -m benchmarks loader train_step --json out.json
    python -m benchmarks gpu --help                       training steps on a GPU
    python -m benchmarks --peer-python PEER/bin/python --peer-source ROBOMIMIC

The peer is robomimic in a separate Python environment with torch (of our version), numpy<2, h5py, psutil, tqdm,
termcolor, six, and robomimic itself, by `pip install --no-deps robomimic` or as a checkout given by --peer-source.
Without --peer-python the table contains recorded figures of the peer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import imitate
from benchmarks.demos import find_or_make, words
from benchmarks.peer import Bench, Peer
from benchmarks.row import Row, table

SUBJECTS = (
    "loader",
    "train_step",
    "image_step",
    "offline_step",
    "policy_latency",
    "memory",
    "evaluation",
    "startup",
)
APART = ("gpu",)
"""Benchmarks with their own command-line options."""


def main() -> int:
    """Run the named benchmarks; return 1 if a target was missed."""
    if sys.argv[1:2] and sys.argv[1] in APART:
        return int(import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:]))
    args = _arguments()
    report: dict[str, Any] = {"machine": machine()}
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        data = find_or_make(Path(folder), args.data)
        with Peer(args.peer_python, args.peer_source, data) as peer:
            report |= {"data": words(data), "peer": peer.words, "subjects": {}}
            for label in ("machine", "data", "peer"):
                print(f"{label}: {report[label]}")
            for name in args.names or SUBJECTS:
                rows: list[Row] = import_module(f"benchmarks.{name}").run(
                    Bench(data, peer, Path(folder))
                )
                print(f"\n{table(name, rows)}", flush=True)
                report["subjects"][name] = [row.to_dict() for row in rows]
                missed += sum(row.met is False for row in rows)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{missed} target(s) missed" if missed else "\nevery target was reached")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", choices=[*SUBJECTS, []], help=", ".join(SUBJECTS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="demonstrations that replace datasets/lift/scripted.hdf5",
    )
    parser.add_argument(
        "--peer-python", type=Path, metavar="PATH", help="interpreter of the peer's environment"
    )
    parser.add_argument(
        "--peer-source",
        type=Path,
        metavar="PATH",
        help="robomimic's checkout, if not installed there",
    )
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """Return the description of this machine and the versions on it."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "imitate": imitate.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
