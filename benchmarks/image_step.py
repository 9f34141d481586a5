"""Training steps on two cameras with one thread: ours, as in ``imitate train``, and robomimic's.

The sizes are those of robomimic's image experiments: 16 samples, two cameras of 84x84, crops of 76x76, each with a
ResNet-18 and spatial softmax.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.demos import made_up
from benchmarks.measuring import Contestant, compare, timed
from benchmarks.peer import Bench
from benchmarks.peer_cases import CAMERAS, CROP, IMAGE_BATCH_SIZE, LOW_DIM
from benchmarks.row import Row
from benchmarks.trained import config_of, data_alone, setup_of, steps_of
from imitate.config import Config
from imitate.models.precision import has_fast_bf16

CASE = "step_image"
ROUNDS = 15
"""Number of rounds; there are many because figures vary by 10 % on a shared machine."""
BATCHES = 50
"""Number of batches drawn per round to measure data loading alone; a step needs one."""


def run(bench: Bench) -> list[Row]:
    """Measure steps per CPU second, and the part of the fastest step that waits for data."""
    torch.set_num_threads(1)
    data = made_up(bench.folder / "images.hdf5", [42] * 20, CAMERAS)
    precisions = ("fp32", "bf16") if has_fast_bf16(torch.device("cpu")) else ("fp32",)
    contestants: dict[str, Contestant] = {
        name: timed(steps_of(setup_of(image_config(data, name)))) for name in precisions
    }
    contestants["data"] = data_alone(setup_of(image_config(data, "fp32")))
    contestants |= bench.peer.contestants(CASE, data)
    n = dict.fromkeys(contestants, 1) | {"data": BATCHES}
    spent = compare(contestants, n, ROUNDS)
    peer, source = bench.peer.per_s(CASE, spent), bench.peer.source_of(CASE)
    rows = []
    for name in precisions:
        ours = 1 / spent[name].cpu_s
        rows.append(Row(f"image BC, {name}", ours, "steps/CPU s", None, False, peer, source))
        wanted = 1.3 if name == precisions[-1] else 1.0
        rows.append(Row(f"image BC, {name}: times robomimic's fp32", ours / peer, "x", wanted))
    waiting = 100 * spent["data"].wall_s / min(spent[name].wall_s for name in precisions)
    rows.append(Row("image BC: data, part of the fastest step", waiting, "%", 5.0, at_most=True))
    return rows


def image_config(data: Path, precision: str) -> Config:
    """Return BC from two cameras with robomimic's encoder."""
    encoder = {
        "core_class": "VisualCore",
        "core_kwargs": {
            "backbone_class": "ResNet18Conv",
            "pool_class": "SpatialSoftmax",
            "feature_dimension": 64,
        },
        "obs_randomizer_class": "CropRandomizer",
        "obs_randomizer_kwargs": {"crop_height": CROP, "crop_width": CROP},
    }
    observation = {
        "modalities": {"obs": {"low_dim": list(LOW_DIM), "rgb": list(CAMERAS)}},
        "encoder": {"rgb": encoder},
    }
    train = {"batch_size": IMAGE_BATCH_SIZE, "precision": precision}
    return config_of(data, "bc", train, observation=observation)
