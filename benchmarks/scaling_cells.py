"""One measurement of :mod:`benchmarks.scaling`, in a process of its own; prints a line of JSON. Linux only.

    python -m benchmarks.scaling_cells '{"kind": "load", "data": "demos.hdf5"}'

Times are CPU seconds of this process on one thread, the median of three rounds after one that warms up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import image_step
from benchmarks.demos import OBS_KEYS
from benchmarks.measuring import Contestant, compare, timed
from benchmarks.trained import BATCH_SIZE, batches_of, make_setup
from imitate.data import SequenceDataset, ShuffledBatches, build_datasets
from imitate.evaluation.evaluate import evaluate
from imitate.train.loading import make_loader
from imitate.train.setup import Setup, build

SEQ_LENGTH = 10
ROUNDS = 3
EVAL_STEPS, EVAL_EPISODES = 100, 10
Figures = dict[str, float]


def load(data: Path, images: str | None) -> Figures:
    """Open a dataset, draw batches of windows of 10 steps: 100 of vectors, or 16 of images."""
    start_mb = memory_mb("VmHWM")
    began = time.process_time()
    if images is None:
        dataset = SequenceDataset(data, OBS_KEYS, seq_length=SEQ_LENGTH, hdf5_cache_mode="all")
        batch_size, n = BATCH_SIZE, 2000
    else:
        dataset = _image_set(data, images)
        batch_size, n = image_step.BATCH_SIZE, 100
    opened = time.process_time() - began
    spent = compare({"": _batches(dataset, batch_size)}, n, ROUNDS)[""]
    return {
        "windows": len(dataset),
        "opening_cpu_s": opened,
        "batches_per_cpu_s": 1 / spent.cpu_s,
        "start_mb": start_mb,
        "peak_mb": memory_mb("VmHWM"),
    }


def cold(data: Path) -> Figures:
    """Draw batches of images from a file that is not in the page cache; by the wall clock."""
    draw = _batches(_image_set(data, "file"), image_step.BATCH_SIZE)
    draw(10)
    spent = []
    for _ in range(ROUNDS):
        with data.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        spent.append(draw(20).wall_s / 20)
    return {"cold_batches_per_s": 1 / sorted(spent)[ROUNDS // 2]}


def train(data: Path, images: str | None) -> Figures:
    """Train BC as ``imitate train`` does: 2x1024 on vectors, or a ResNet-18 on each of two cameras."""
    began = time.process_time()
    if images is None:
        setup, n = make_setup(data, recurrent=False), 100
        batches = batches_of(setup)
    else:
        setup, n = _image_setup(data, images), 2
        order = ShuffledBatches(len(setup.train_set), image_step.BATCH_SIZE, seed=0)
        batches = iter(make_loader(setup.train_set, order, 0, setup.device))
    opened = time.process_time() - began
    spent = compare({"": _updates(setup, batches)}, n, ROUNDS)[""]
    return {
        "training_opening_cpu_s": opened,
        "updates_per_cpu_s": 1 / spent.cpu_s,
        "training_peak_mb": memory_mb("VmHWM"),
    }


def play(checkpoint: Path, workers: int) -> Figures:
    """Play episodes of 100 steps on Lift in worker processes; time to the first one, and the rate after it."""
    began, cpu, ends = time.perf_counter(), sum(os.times()[:4]), []
    evaluate(
        checkpoint,
        episodes=EVAL_EPISODES * workers,
        horizon=EVAL_STEPS,
        workers=workers,
        mode="processes",
        terminate_on_success=False,
        step_timeout_s=60.0,
        on_episode=lambda _: ends.append(time.perf_counter() - began),
    )
    return {
        "first_episode_s": ends[0],
        "episodes_per_s": (len(ends) - workers) / (ends[-1] - ends[workers - 1]),
        "cpu_s_per_episode": (sum(os.times()[:4]) - cpu) / len(ends),
    }


def memory_mb(field: str) -> float:
    """Return a field of this process's status, such as ``VmHWM``, the peak of its resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"the kernel does not tell {field}")


def _image_set(data: Path, place: str) -> SequenceDataset:
    """All windows of 10 steps, with the images in RAM ('ram') or in the file ('file')."""
    config = image_step.config_of(
        data, "fp32", seq_length=SEQ_LENGTH, hdf5_cache_mode=_cache_mode(place)
    )
    return build_datasets(config)[0]


def _image_setup(data: Path, place: str) -> Setup:
    torch.manual_seed(0)
    config = image_step.config_of(data, "fp32", hdf5_cache_mode=_cache_mode(place))
    return build(config, torch.device("cpu"))


def _cache_mode(place: str) -> str:
    return {"ram": "all", "file": "low_dim"}[place]


def _batches(dataset: SequenceDataset, batch_size: int) -> Contestant:
    batches = _endless(dataset, batch_size)

    def iterate(n: int) -> None:
        for _ in range(n):
            next(batches)

    return timed(iterate)


def _endless(dataset: SequenceDataset, batch_size: int) -> Iterator[Any]:
    order = ShuffledBatches(len(dataset), batch_size, seed=0)
    return iter(make_loader(dataset, order, 0, torch.device("cpu")))


def _updates(setup: Setup, batches: Iterator[Any]) -> Contestant:
    algo = setup.algo
    algo.set_train()

    def iterate(n: int) -> None:
        for _ in range(n):
            algo.train_on_batch(algo.process_batch_for_training(next(batches)), 1)

    return timed(iterate)


def main() -> None:
    """Measure what the argument asks for."""
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    kind, data = asked.pop("kind"), Path(asked.pop("data"))
    kinds = {"load": load, "cold": cold, "train": train, "play": play}
    print(json.dumps(kinds[kind](data, **asked)), flush=True)


if __name__ == "__main__":
    main()
