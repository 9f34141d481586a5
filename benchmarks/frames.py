"""Measurement of the stack frames between ``train()`` and an optimizer's step, in small trainings."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks.demos import OBS_KEYS, made_up
from imitate.train.trainer import train

PACKAGE = Path(__file__).resolve().parent.parent / "imitate"
ALGORITHMS = ("bc", "iql", "sac")


def frames_to_the_optimizer(name: str, folder: Path) -> list[str]:
    """Train for a few steps; return the longest call stack from ``train`` on, as ``file:function``.

    Args:
        name: one of :data:`ALGORITHMS`. ``sac`` learns online, the others from a file.
        folder: folder for data and runs.
    """
    ways: list[list[str]] = []
    handle = register_optimizer_step_pre_hook(lambda *_: ways.append(_way(sys._getframe())))
    try:
        train(_config(name, folder), output_dir=folder, quiet=True)
    finally:
        handle.remove()
    return max(ways, key=len)


def measured_frames() -> dict[str, list[str]]:
    """Return the call stacks of all :data:`ALGORITHMS`."""
    with TemporaryDirectory() as folder:
        return {name: frames_to_the_optimizer(name, Path(folder)) for name in ALGORITHMS}


def _way(frame: FrameType | None) -> list[str]:
    """Return the package's frames from ``train`` to this one, without those of the optimizer."""
    way: list[str] = []
    while frame is not None:
        code = frame.f_code
        path = Path(code.co_filename)
        if PACKAGE in path.parents and not isinstance(frame.f_locals.get("self"), Optimizer):
            way.append(f"{path.relative_to(PACKAGE)}:{code.co_name}")
            if way[-1] == "train/trainer.py:train":
                break
        frame = frame.f_back
    return way[::-1]


def _config(name: str, folder: Path) -> dict[str, Any]:
    small = {"layer_dims": [8]}
    layers: dict[str, Any] = {"actor_layer_dims": [8]}
    tree: dict[str, Any] = {
        "algo_name": name,
        "experiment": {
            "name": name,
            "epoch_every_n_steps": 8,
            "validate": False,
            "logging": {"log_tb": False},
            "rollout": {"enabled": False},
            "save": {"enabled": False},
        },
        "train": {"batch_size": 4, "num_epochs": 1, "num_threads": 1, "cuda": False},
        "algo": layers if name == "bc" else {"actor": small, "critic": small},
    }
    if name == "sac":
        tree["train"]["online"] = {"env": "Pendulum-v1", "warmup_steps": 2}
        keys = ["flat"]
    else:
        tree["train"]["data"] = str(made_up(folder / "demos.hdf5", [20, 20]))
        keys = list(OBS_KEYS)
    tree["observation"] = {"modalities": {"obs": {"low_dim": keys}}}
    return tree
