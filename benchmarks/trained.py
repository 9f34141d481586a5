"""Trainings for the benchmarks, with robomimic's sizes and the benchmarks' data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.demos import OBS_KEYS
from benchmarks.measuring import Contestant, drawn
from benchmarks.peer import Bench
from imitate.config import Config, load_config
from imitate.data import ShuffledBatches
from imitate.models.precision import begin_compiled_step
from imitate.train.batch_source import make_loader
from imitate.train.loss_guard import LossGuard
from imitate.train.metrics import EpochMeans
from imitate.train.setup import Setup, build, resolve

BATCH_SIZE = 100
IMITATE = (sys.executable, "-m", "imitate.cli.main")


def config_of(data: Path, algo_name: str, train: dict[str, Any], **sections: Any) -> Config:
    """Return a configuration for the benchmarks' observations, with options of ``train``, or with other sections."""
    tree = {
        "algo_name": algo_name,
        "experiment": {"name": "benchmark", "rollout": {"enabled": False}},
        "train": {"cuda": False, **train},
        "observation": {"modalities": {"obs": {"low_dim": list(OBS_KEYS)}}},
        **sections,
    }
    return resolve(load_config(tree), data, None)


def make_config(data: Path, *, recurrent: bool, precision: str = "fp32") -> Config:
    """Return the configuration of BC 2x1024, or of BC-RNN-GMM 2x400 over 10 steps, with normalized observations."""
    algo: dict[str, Any] = {"actor_layer_dims": [1024, 1024]}
    if recurrent:
        algo = {
            "actor_layer_dims": [],
            "rnn": {"enabled": True, "hidden_dim": 400, "num_layers": 2, "horizon": 10},
            "gmm": {"enabled": True},
        }
    train = {
        "batch_size": BATCH_SIZE,
        "seq_length": 10 if recurrent else 1,
        "obs_normalization": "mean_std",
        "precision": precision,
    }
    return config_of(data, "bc", train, algo=algo)


def setup_of(config: Config) -> Setup:
    """Build data and algorithm as ``imitate train`` does."""
    torch.manual_seed(0)
    return build(config, torch.device("cpu"))


def make_setup(data: Path, *, recurrent: bool, precision: str = "fp32") -> Setup:
    """Build data and algorithm of :func:`make_config`."""
    return setup_of(make_config(data, recurrent=recurrent, precision=precision))


def train_command(bench: Bench, *options: str) -> list[str]:
    """Return the command that trains BC on Lift without rollouts."""
    command = [*IMITATE, "train", "--quiet", "--config", "robosuite/lift/bc", *options]
    command += ["--dataset", str(bench.data), "--output-dir", str(bench.folder / "runs")]
    return [*command, "--set", "experiment.rollout.enabled=false"]


def batches_of(setup: Setup, **options: Any) -> Iterator[Any]:
    """Yield batches as ``imitate train`` draws them; options of ``ShuffledBatches``."""
    size = setup.config.train.batch_size
    order = ShuffledBatches(len(setup.train_set), size, seed=0, **options)
    return iter(make_loader(setup.train_set, order, 0, setup.device))


def data_alone(setup: Setup) -> Contestant:
    """Draw batches and do nothing with them."""
    return drawn(batches_of(setup))


def steps_of(setup: Setup, **options: Any) -> Callable[[int], None]:
    """Run ``n`` steps as ``imitate train`` does: batch, preparation, update, statistics."""
    algo, batches = setup.algo, batches_of(setup, **options)
    means, guard = EpochMeans(), LossGuard(setup.device)
    algo.set_train()

    def iterate(n: int) -> None:
        for step in range(n):
            raw = next(batches)
            batch = algo.process_batch_for_training(raw)
            if setup.config.train.compile:
                begin_compiled_step(setup.device)
            info = algo.train_on_batch(batch, 1)
            means.add(info)
            guard.add(step, info, raw.get("index"))

    return iterate
