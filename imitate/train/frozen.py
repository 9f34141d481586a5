"""Find images with frozen encoders, whose cached features a run can learn from instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from imitate.algo.base.algo import Algo
from imitate.data import SequenceDataset
from imitate.models.key_encoder import KeyEncoder
from imitate.models.observation import ObservationEncoder


def put_blank_features(algo: Algo, data: SequenceDataset, raw: dict[str, Any]) -> None:
    """Replace the images of a raw batch by zeros in the shape of their features, if a run would use cached features.

    An update then takes the time that it takes in the run, without computing any feature.

    Args:
        algo: algorithm with any weights; the shapes are added to its ``preprocess``.
        data: dataset from which the batch is.
        raw: the batch, changed in place.
    """
    for key, nets in frozen_networks(algo).items():
        shape = nets[0].frozen_shape
        if shape is None or obstacle(algo, key, nets, data) is not None:
            continue
        algo.preprocess.feature_shapes[key] = shape
        for group in ("obs", "next_obs", "goal_obs"):
            if key in (raw.get(group) or {}):
                images = raw[group][key]
                raw[group][key] = torch.zeros(*images.shape[:-3], *shape, dtype=torch.float16)


def frozen_networks(algo: Algo) -> dict[str, list[KeyEncoder]]:
    """Return the encoders of each image key whose trunk is frozen in all of them."""
    found: dict[str, list[KeyEncoder]] = {}
    for encoder in _encoders(algo):
        for key, net in encoder.networks_of_keys().items():
            found.setdefault(key, []).append(net)
    return {
        key: nets
        for key, nets in found.items()
        if all(getattr(net.core, "frozen_shape", None) is not None for net in nets)
    }


def _encoders(algo: Algo) -> Iterator[ObservationEncoder]:
    averaged = [] if algo.ema is None else list(algo.ema.module.modules())
    for module in (*algo.nets.modules(), *averaged):
        if isinstance(module, ObservationEncoder):
            yield module


def obstacle(algo: Algo, key: str, nets: list[KeyEncoder], data: Any) -> str | None:
    """Return the reason why features cannot replace the images of a key, or None if they can."""
    if any(net.frozen_shape is None for net in nets):
        return "obs_randomizer_class changes images at random"
    if algo.learners != (algo,) or algo.frozen is not None or key in algo.subgoal_shapes:
        return f"{algo.global_config.algo_name} has parts that see images"
    if not isinstance(data, SequenceDataset):
        return "train.shard_window reads shards in turn"
    return None
