"""Training steps with a frozen image encoder: on images, and on features that were computed once.

BC from one camera of 84x84, 16 samples, one thread, as ``imitate train`` does them; beside them the same step where the
ResNet-18 learns. Weights are random: time does not depend on them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import Bench
from benchmarks.demos import made_up
from benchmarks.measuring import Contestant, compare, timed
from benchmarks.row import Row
from imitate.config import load_config
from imitate.data import ShuffledBatches
from imitate.models.resnet import ResNet18Conv
from imitate.models.vit import DINOv2
from imitate.train.features import use_features
from imitate.train.loading import make_loader
from imitate.train.setup import build, resolve

CAMERA, LOW_DIM, BATCH_SIZE = "agentview_image", "robot0_eef_pos", 16
ROUNDS = 3
STEPS_ON_FEATURES = 20
TRUNKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNet-18": ("ResNet18Conv", {}),
    "DINOv2 tiny, 98 pixels": ("DINOv2", {"size": "tiny", "image_size": 98}),
}


def run(bench: Bench) -> list[Row]:
    """CPU milliseconds per step, and how many times faster features make it."""
    torch.set_num_threads(1)
    os.environ["IMITATE_CACHE"] = str(bench.folder / "cache")
    data = made_up(bench.folder / "camera.hdf5", [40] * 4, (CAMERA,))
    files = {name: bench.folder / f"{number}.pth" for number, name in enumerate(TRUNKS)}
    torch.save(ResNet18Conv().state_dict(), files["ResNet-18"])
    tiny = DINOv2(**TRUNKS["DINOv2 tiny, 98 pixels"][1])
    torch.save(tiny.state_dict(), files["DINOv2 tiny, 98 pixels"])
    contestants: dict[str, Contestant] = {}
    for name, file in files.items():
        contestants[f"{name}, learning"] = _steps(data, name, file, freeze=False, cached=False)
        contestants[f"{name}, frozen"] = _steps(data, name, file, freeze=True, cached=False)
        contestants[f"{name}, features"] = _steps(data, name, file, freeze=True, cached=True)
    n = {name: STEPS_ON_FEATURES if "features" in name else 1 for name in contestants}
    spent = compare(contestants, n, ROUNDS)
    rows = [Row(name, 1e3 * cost.cpu_s, "CPU ms/step") for name, cost in spent.items()]
    for name in TRUNKS:
        ratio = spent[f"{name}, frozen"].cpu_s / spent[f"{name}, features"].cpu_s
        rows.append(Row(f"{name}: features, times frozen", ratio, "x", 5.0))
    return rows


def _steps(data: Path, name: str, file: Path, *, freeze: bool, cached: bool) -> Contestant:
    """Return training steps on batches of a setup."""
    backbone, options = TRUNKS[name]
    core = {
        "backbone_class": backbone,
        "backbone_kwargs": {**options, "pretrained": str(file), "freeze": freeze},
        "pool_class": "QueryPool",
        "feature_dimension": 64,
    }
    tree = {
        "algo_name": "bc",
        "experiment": {"name": "benchmark", "rollout": {"enabled": False}},
        "train": {"batch_size": BATCH_SIZE, "cuda": False, "cache_features": cached},
        "observation": {
            "modalities": {"obs": {"low_dim": [LOW_DIM], "rgb": [CAMERA]}},
            "encoder": {"rgb": {"core_class": "VisualCore", "core_kwargs": core}},
        },
    }
    torch.manual_seed(0)
    setup = build(resolve(load_config(tree), data, None), torch.device("cpu"))
    use_features(setup, print)
    setup.algo.set_train()
    batches = ShuffledBatches(len(setup.train_set), BATCH_SIZE, 0)
    loader = iter(make_loader(setup.train_set, batches, 0, setup.device))

    def iterate(n: int) -> None:
        for _ in range(n):
            batch = setup.algo.process_batch_for_training(next(loader))
            setup.algo.train_on_batch(batch, 1)

    return timed(iterate)
