"""Selection of demos for training, and weights of their steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from imitate.config.train import SampleWeightConfig
from imitate.data.batches.rewards import returns_of, returns_to_go
from imitate.data.batches.sequence_dataset import SequenceDataset
from imitate.data.batches.store import DataSource
from imitate.data.file.fields import Field, read_steps
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError

_REWARD = Field("rewards", (), slice(0, 1), np.dtype(np.float32))


def best_demos(
    sources: Sequence[DataSource], fraction: float, files: DataFiles
) -> list[DataSource]:
    """Restrict the sources to this fraction of all their demos, at least one: the demos with the highest returns.

    If returns are equal, the shorter demo is preferred.

    Raises:
        DatasetError: a file has no rewards for the comparison.
    """
    ranked = []
    for number, source in enumerate(sources):
        file = files.open(source.path)
        for demo in source.chosen(file):
            if not file.has(demo, "rewards"):
                raise DatasetError(
                    f"{source.path}: demo '{demo}' has no 'rewards', which train.filter_best compares: set it to "
                    "null, or write rewards"
                )
            length = file.length(demo)
            total = float(read_steps(file, demo, _REWARD, 0, length).sum(dtype=np.float64))
            ranked.append((-total, length, number, demo))
    ranked.sort(key=lambda entry: entry[:2])
    kept = ranked[: max(1, math.floor(fraction * len(ranked) + 1e-9))]
    chosen = [frozenset(demo for *_, n, demo in kept if n == i) for i in range(len(sources))]
    return [
        dataclasses.replace(source, demos=demos)
        for source, demos in zip(sources, chosen, strict=True)
    ]


def weight_keys(config: SampleWeightConfig) -> tuple[str, ...]:
    """Return the step arrays from which the weights are computed."""
    if config.kind is None:
        return ()
    if config.kind == "interventions":
        return ("interventions",)
    return (config.key,) if config.key is not None else ("rewards",)


def step_weights(dataset: SequenceDataset, config: SampleWeightConfig) -> NDArray[np.float32]:
    """Compute the weight (N,) of each step of the training demos, with mean 1.

    Raises:
        DatasetError: the array of weights has negative values, or only zeros.
    """
    store = dataset.store
    if config.kind is None:
        return np.ones(len(store), dtype=np.float32)
    values = dataset.numbers.array(weight_keys(config)[0]).astype(np.float64)
    if config.kind == "key":
        weights = values.reshape(-1)
        if len(weights) != len(store) or weights.min() < 0 or weights.max() == 0:
            raise DatasetError(
                f"{dataset.hdf5_path}: '{config.key}' (train.sample_weight.key) needs one number per step, none below "
                f"0 and not all 0; found values from {values.min():g} to {values.max():g}"
            )
    elif config.kind == "interventions":
        weights = _by_hand(values.reshape(-1) > 0, config.policy_share, str(dataset.hdf5_path))
    else:
        rewards = dataset.numbers.reward(values.astype(np.float32))
        if config.kind == "return":
            lengths = store.demo_end - store.demo_start
            quality = np.repeat(returns_of(rewards, store.demo_start), lengths)
        else:
            never = np.zeros_like(rewards)
            quality = returns_to_go(
                rewards, never, store.demo_start, store.demo_end, config.discount
            ).astype(np.float64)
        spread = max(float(np.ptp(quality)), 1e-8)
        weights = np.exp((quality - quality.max()) / spread / config.temperature)
    scaled: NDArray[np.float32] = (weights / weights.mean()).astype(np.float32)
    return scaled


def _by_hand(by_hand: NDArray[np.bool_], policy_share: float, path: str) -> NDArray[np.float64]:
    """Return weights such that steps of the policy have this fraction of the total weight, if there are any."""
    total, own = len(by_hand), int(by_hand.sum())
    if own == 0:
        raise DatasetError(
            f"{path}: 'interventions' is 0 everywhere, so that nothing has a weight: set train.sample_weight.kind to "
            "null"
        )
    if own == total:
        return np.ones(total)
    return np.where(by_hand, (1.0 - policy_share) / own, policy_share / (total - own))
