"""Trainings for the benchmarks, with robomimic's sizes and the benchmarks' data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.demos import OBS_KEYS
from imitate.config import Config, load_config
from imitate.data import ShuffledBatches
from imitate.train.batch_source import make_loader
from imitate.train.setup import Setup, build, resolve

BATCH_SIZE = 100


def make_config(data: Path, *, recurrent: bool, precision: str = "fp32") -> Config:
    """Return the configuration of BC 2x1024, or of BC-RNN-GMM 2x400 over 10 steps, with normalized observations."""
    algo: dict[str, Any] = {"actor_layer_dims": [1024, 1024]}
    if recurrent:
        algo = {
            "actor_layer_dims": [],
            "rnn": {"enabled": True, "hidden_dim": 400, "num_layers": 2, "horizon": 10},
            "gmm": {"enabled": True},
        }
    config = load_config(
        {
            "algo_name": "bc",
            "experiment": {"name": "benchmark", "rollout": {"enabled": False}},
            "train": {
                "batch_size": BATCH_SIZE,
                "seq_length": 10 if recurrent else 1,
                "obs_normalization": "mean_std",
                "precision": precision,
                "cuda": False,
            },
            "algo": algo,
            "observation": {"modalities": {"obs": {"low_dim": list(OBS_KEYS)}}},
        }
    )
    return resolve(config, data, None)


def make_setup(data: Path, *, recurrent: bool, precision: str = "fp32") -> Setup:
    """Build data and algorithm as ``imitate train`` does."""
    torch.manual_seed(0)
    return build(make_config(data, recurrent=recurrent, precision=precision), torch.device("cpu"))


def batches_of(setup: Setup) -> Iterator[Any]:
    """Yield batches as ``imitate train`` draws them."""
    order = ShuffledBatches(len(setup.train_set), BATCH_SIZE, seed=0)
    return iter(make_loader(setup.train_set, order, 0, setup.device))
