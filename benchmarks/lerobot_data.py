"""A LeRobot dataset of videos: conversion, random access and training in place, beside LeRobot itself.

    python -m benchmarks.lerobot_data
    python -m benchmarks.lerobot_data --lerobot /envs/lerobot/bin/python --episodes 20 --steps 75

Two cameras of 640 x 480 in h264, every second frame a key frame as LeRobot writes them. Random access is of batches of
8 samples, one frame of both cameras each, read as training reads them: *cold* from the videos, *warm* from frames that
were decoded once. ACT is trained on the folder with the same sizes (batch 2, chunks of 100, ResNet18 from scratch),
through the cache on disk (``hdf5_cache_mode: low_dim``). Each toolkit runs in a process of its own, one thread, in
turns; times are CPU seconds where nothing else is said. LeRobot decodes by PyAV, or by torchcodec where that loads.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.row import Row, table

HEIGHT, WIDTH, JOINTS = 480, 640, 6
CAMERAS = ("top", "wrist")
BATCH, TRAIN_BATCH, CHUNK = 8, 2, 100
ROUNDS = 3


def main() -> int:
    """Measure; 1 if a wanted figure was not reached."""
    parser = argparse.ArgumentParser("python -m benchmarks.lerobot_data", description=__doc__)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--steps", type=int, default=75, help="of an episode")
    parser.add_argument("--updates", type=int, default=2, help="of ACT in a turn; 0: none")
    parser.add_argument("--lerobot", type=Path, help="Python of an environment with LeRobot")
    parser.add_argument("--folder", type=Path, help="where there is room: 3 GB")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(*args.child)
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        os.environ |= {"OMP_NUM_THREADS": "1", "IMITATE_CACHE": str(folder / "cache")}
        make(folder / "set", args.episodes, args.steps)
        rows = converting(folder) + _in_turns(folder, args.lerobot, args.updates)
    print(table("lerobot_data", rows))
    return 1 if any(row.met is False for row in rows) else 0


def make(target: Path, episodes: int, steps: int) -> None:
    """Write the dataset: cameras that pan over a textured scene."""
    from imitate.data import DatasetWriter, Episode
    from imitate.data.formats.base import Options
    from imitate.data.formats.convert import convert

    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (60, 80, 3)).astype(np.float32)
    scene = np.kron(coarse, np.ones((16, 16, 1))) * 0.8 + random.normal(0, 6, (960, 1280, 3))
    scene = np.clip(scene, 0, 255).astype(np.uint8)
    source = target.with_suffix(".hdf5")
    with DatasetWriter(source, {"env_name": "arm", "type": 4}, control_freq=30) as writer:
        for episode in range(episodes):
            frames = {}
            for number, name in enumerate(CAMERAS):
                at = (np.arange(steps) * (2 + number) + 17 * episode) % (960 - HEIGHT)
                frames[f"{name}_image"] = np.stack(
                    [scene[y : y + HEIGHT, y : y + WIDTH] for y in at]
                )
            state = random.uniform(-1, 1, (2, steps, JOINTS)).astype(np.float32)
            end = np.arange(steps) == steps - 1
            writer.append_episode(
                Episode({"state": state[0], **frames}, state[1], end, np.zeros(steps), end)
            )
    convert(source, target, to_format="lerobot", options=Options(video="h264"))
    source.unlink()
    (target / "meta" / "imitate.hdf5").unlink()


def converting(folder: Path) -> list[Row]:
    """Convert by the command line, in a process of its own."""
    rows = []
    source = _bytes_of(folder / "set")
    for images in ("as-source", "jpeg"):
        target = folder / f"{images}.hdf5"
        command = [sys.executable, "-m", "imitate.cli.main", "dataset", "convert"]
        command += [str(folder / "set"), str(target), "--images", images]
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"imitate dataset convert ended with {process.returncode}")
        cpu_s = usage.ru_utime + usage.ru_stime
        times = target.stat().st_size / source
        note = f"{time.monotonic() - began:.1f} s"
        rows.append(Row(f"convert --images {images}", cpu_s, "CPU s", note=note))
        wanted = 1.5 if images == "as-source" else None
        size = f"{source / 1e6:.1f} MB -> {target.stat().st_size / 1e6:.1f} MB"
        rows.append(Row("  size, of the folder's", times, "times", wanted, at_most=True, note=size))
        if images == "jpeg":
            target.unlink()
    return rows


def _bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class _Child:
    """A process that answers requests with figures."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, case: str, n: int) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"case": case, "n": n}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer
        raise RuntimeError(f"{case}: the process ended; see its errors above")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _in_turns(folder: Path, lerobot: Path | None, updates: int) -> list[Row]:
    own = [sys.executable, "-m", "benchmarks.lerobot_data", "--child"]
    children = {
        "cold": _Child([*own, "cold", str(folder / "as-source.hdf5")]),
        "warm": _Child([*own, "warm", str(folder / "set")]),
    }
    if lerobot is not None:
        peer = Path(__file__).with_name("peer_lerobot_data.py")
        children["LeRobot"] = _Child([str(lerobot), str(peer), str(folder / "set")])
    spent = {name: child.ask("start", 0) for name, child in children.items()}
    load: dict[str, list[float]] = {name: [] for name in children}
    trained: dict[str, list[dict[str, float]]] = {name: [] for name in children if name != "cold"}
    for _ in range(ROUNDS):
        for name, child in children.items():
            load[name].append(child.ask("load", 20 if name == "warm" else 5)["cpu_s"])
        for name in trained if updates else ():
            trained[name].append(children[name].ask("train", updates))
    peak = {name: child.ask("end", 0)["peak_mb"] for name, child in children.items()}
    for child in children.values():
        child.close()
    best = {name: min(found) for name, found in load.items()}
    decoded_mb = sum(f.stat().st_size for f in folder.glob("cache/frames/*")) / 1e6
    rows = [
        Row(
            "first start: copy of the packets, decoding once",
            spent["warm"]["cpu_s"],
            "CPU s",
            note=f"{decoded_mb:.0f} MB of frames in the cache",
        )
    ]
    for name, seconds in best.items():
        rows.append(Row(f"batch of {BATCH}: {name}", 1e3 * seconds, "CPU ms"))
    for name, wanted in (("cold", 1.0), ("warm", 20.0)) if "LeRobot" in best else ():
        times = best["LeRobot"] / best[name]
        rows.append(Row(f"  LeRobot's time, of ours {name}", times, "times", wanted))
    for name, turns in trained.items():
        if turns:
            fastest = min(turns, key=lambda turn: turn["cpu_s"])
            share = 100 * fastest["data_s"] / fastest["cpu_s"]
            title = "LeRobot" if name == "LeRobot" else "imitate"
            note = f"peak {peak[name]:.0f} MB"
            rows.append(Row(f"ACT, update: {title}", fastest["cpu_s"], "CPU s", note=note))
            wanted = None if name == "LeRobot" else 2.0
            rows.append(Row("  share of loading", share, "%", wanted, at_most=True))
    return rows


# ---- a process of ours ---------------------------------------------------------------------------


def serve(kind: str, data: str) -> None:
    """Answer requests on ``data``; 'cold' reads from the videos, 'warm' from decoded frames."""
    import torch

    torch.set_num_threads(1)
    if kind == "cold":
        from imitate.data.batches import store

        store.decode_once = lambda *_: (None, "decoded for each batch")  # type: ignore[assignment]
    began = time.process_time()
    cases = _cases(data)
    started = time.process_time() - began
    for line in sys.stdin:
        asked = json.loads(line)
        answer = {"cpu_s": started} if asked["case"] in ("start", "end") else {}
        answer["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        if asked["case"] in cases:
            answer |= cases[asked["case"]](asked["n"])
        print(json.dumps(answer), flush=True)


def _cases(data: str) -> dict[str, Callable[[int], dict[str, float]]]:
    import torch

    from imitate.config import load_config
    from imitate.data import ShuffledBatches
    from imitate.train.loading import make_loader
    from imitate.train.setup import build, resolve

    tree: dict[str, Any] = {
        "algo_name": "act",
        "experiment": {"name": "benchmark", "rollout": {"enabled": False}},
        "train": {"batch_size": BATCH, "cuda": False, "hdf5_cache_mode": "low_dim"},
        "observation": {
            "modalities": {
                "obs": {"low_dim": ["state"], "rgb": [f"{name}_image" for name in CAMERAS]}
            }
        },
    }
    torch.manual_seed(0)
    setup = build(resolve(load_config(tree), Path(data), None), torch.device("cpu"))
    algo, rows = setup.algo, len(setup.train_set)
    algo.set_train()
    loads, trains = (
        iter(make_loader(setup.train_set, ShuffledBatches(rows, size, seed=0), 0, setup.device))
        for size in (BATCH, TRAIN_BATCH)
    )

    def load(n: int) -> dict[str, float]:
        began = time.process_time()
        for _ in range(n):
            next(loads)
        return {"cpu_s": (time.process_time() - began) / n}

    def train(n: int) -> dict[str, float]:
        began, data_s = time.process_time(), 0.0
        for _ in range(n):
            asked = time.process_time()
            batch = next(trains)
            data_s += time.process_time() - asked
            algo.train_on_batch(algo.process_batch_for_training(batch), 1)
        return {"cpu_s": (time.process_time() - began) / n, "data_s": data_s / n}

    return {"load": load, "train": train}


if __name__ == "__main__":
    sys.exit(main())
