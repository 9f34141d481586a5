"""The data of all benchmarks: 200 demonstrations of Lift, or random arrays of the same shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from imitate.data import DatasetFile, DatasetWriter, Episode

OBS_DIMS = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "object": 10}
OBS_KEYS = tuple(OBS_DIMS)
ACTION_DIM = 7
SCRIPTED = Path("datasets/lift/scripted.hdf5")


def find_or_make(folder: Path, given: Path | None = None) -> Path:
    """Return the file to measure on: the given one, the collected one, or one with random numbers in ``folder``."""
    if given is not None:
        return given
    if SCRIPTED.is_file():
        return SCRIPTED
    return made_up(folder / "made_up.hdf5", [42] * 200)


def made_up(path: Path, lengths: list[int], image_keys: tuple[str, ...] = ()) -> Path:
    """Write random numbers in the shapes of Lift, float32, with 84 x 84 images of noise on request."""
    random = np.random.default_rng(0)
    env_meta = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"]}}
    with DatasetWriter(path, env_meta, overwrite=True) as writer:
        for steps in lengths:
            obs = {
                key: random.standard_normal((steps, dim), np.float32)
                for key, dim in OBS_DIMS.items()
            }
            images = {
                key: random.integers(0, 256, (steps, 84, 84, 3), np.uint8) for key in image_keys
            }
            last = np.arange(steps) == steps - 1
            writer.append_episode(
                Episode(
                    obs={**obs, **images},
                    actions=random.uniform(-1, 1, (steps, ACTION_DIM)).astype(np.float32),
                    rewards=last.astype(np.float32),
                    terminals=last,
                    timeouts=np.zeros(steps, bool),
                )
            )
    return path


def words(path: Path) -> str:
    """Describe the data."""
    with DatasetFile(path) as file:
        demos = file.demos()
        steps = sum(map(file.length, demos))
    kind = "random numbers in the shapes of Lift" if path.name == "made_up.hdf5" else str(path)
    return f"{kind}: {len(demos)} demos, {steps} steps"
