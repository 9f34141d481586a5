"""Datasets of growing size for :mod:`benchmarks.scaling`, in demonstrations of 100 steps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.demos import ACTION_DIM, OBS_DIMS
from benchmarks.images import IMAGES, scene
from imitate.data import DatasetWriter, Episode
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert

DEMO_STEPS = 100
STEP_BYTES = 4 * (sum(OBS_DIMS.values()) + ACTION_DIM + 2)
"""A step of the vectors as float32: observations, action, reward, end."""
IMAGE_BYTES = len(IMAGES) * 84 * 84 * 3
_SCENES = 16
"""Different demonstrations of images; they come again and again, which a loader does not notice."""


def write_vectors(path: Path, windows: int) -> Path:
    """Write demonstrations with the vectors of Lift; each step is a window."""
    return _write(path, windows // DEMO_STEPS, cameras=False)


def write_images(path: Path, gigabytes: float, form: str) -> Path:
    """Write demonstrations with two cameras of 84 x 84 besides.

    Args:
        path: to write.
        gigabytes: of the images as they are in memory.
        form: 'raw', 'jpeg', or 'video' (a LeRobot folder, h264).
    """
    demos = max(1, round(gigabytes * 1e9 / (DEMO_STEPS * IMAGE_BYTES)))
    if form == "raw":
        return _write(path, demos, cameras=True)
    raw = _write(path.with_suffix(".raw.hdf5"), demos, cameras=True)
    if form == "jpeg":
        convert(raw, path, options=Options(images="jpeg"))
    else:
        convert(raw, path, to_format="lerobot", options=Options(video="h264"))
    raw.unlink()
    return path


def remove(path: Path) -> None:
    """Remove a dataset, be it a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def size_of(path: Path) -> int:
    """Return the bytes of a file or of a folder's files."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _write(path: Path, demos: int, *, cameras: bool) -> Path:
    env_meta = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"]}}
    with DatasetWriter(path, env_meta, overwrite=True, control_freq=20) as writer:
        for episode in _episodes(demos, cameras=cameras):
            writer.append_episode(episode)
    return path


def _episodes(demos: int, *, cameras: bool) -> Iterator[Episode]:
    random = np.random.default_rng(0)
    shown = [
        {key: scene(random, DEMO_STEPS) for key in IMAGES}
        for _ in range(min(demos, _SCENES) if cameras else 0)
    ]
    last = np.arange(DEMO_STEPS) == DEMO_STEPS - 1
    for number in range(demos):
        vectors = {
            key: random.standard_normal((DEMO_STEPS, dim), np.float32)
            for key, dim in OBS_DIMS.items()
        }
        yield Episode(
            obs={**vectors, **(shown[number % len(shown)] if shown else {})},
            actions=random.uniform(-1, 1, (DEMO_STEPS, ACTION_DIM)).astype(np.float32),
            rewards=last.astype(np.float32),
            terminals=last,
            timeouts=np.zeros(DEMO_STEPS, bool),
        )
