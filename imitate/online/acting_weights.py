"""Weights with which workers act: plain arrays, shared once per version, at most two versions at a time."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from imitate.algo.base.algo import Algo
from imitate.crew.shared import Shared
from imitate.models.preprocess import Preprocess
from imitate.system import clock

MOST_IN_USE = 2
"""Largest number of versions of the weights that exist at a time, here and in each node's memory."""


def acting_weights(algo: Algo) -> dict[str, Any]:
    """Return weights and normalization for a copy of the algorithm that acts elsewhere, as plain arrays."""
    nets = algo.nets if algo.ema is None else algo.ema.module
    names = (algo.main_net, *algo.acting_nets)
    chosen = {name: nets.get_submodule(name).state_dict() for name in names}
    return {"nets": arrays(chosen), "preprocess": arrays(algo.preprocess.to_dict())}


def load_acting_weights(algo: Algo, weights: Mapping[str, Any]) -> None:
    """Load the :func:`acting_weights` of another copy of the algorithm."""
    for name, state in tensors(weights["nets"]).items():
        algo.nets.get_submodule(name).load_state_dict(state)
    algo.preprocess = Preprocess.from_dict(tensors(weights["preprocess"])).to(algo.device)


@dataclass(frozen=True)
class Published:
    """Weights with which workers may act.

    Attributes:
        version: number of updates of the weights.
        shared: the :func:`acting_weights`.
    """

    version: int
    shared: Shared[dict[str, Any]]


class Publisher:
    """Shares the weights of an algorithm, each version once for all workers.

    Args:
        algo: algorithm whose weights are shared.
        every_s: shortest time between two publications, in seconds.
    """

    def __init__(self, algo: Algo, *, every_s: float = 0.0) -> None:
        self._algo, self._every_s = algo, every_s
        self._newest: Published | None = None
        self._normalization = b""
        self._published_s = 0.0

    @property
    def version(self) -> int | None:
        """Version of the newest publication, or None before the first."""
        return None if self._newest is None else self._newest.version

    def newest(self, version: int, in_use: Iterable[Published]) -> Published:
        """Return the newest weights that may be sent, after publishing them if that is due.

        While workers act with :data:`MOST_IN_USE` publications, no new one is made: the newest of them is returned.

        Args:
            version: number of updates of the algorithm's weights so far.
            in_use: publications with which workers act at present.
        """
        newest, now = self._newest, clock.now()
        if newest is not None and (
            len({one.shared.key for one in in_use}) >= MOST_IN_USE
            or now - self._published_s < self._every_s
        ):
            return newest
        normalization = pickle.dumps(arrays(self._algo.preprocess.to_dict()))
        if newest is not None and (version, normalization) == (newest.version, self._normalization):
            return newest
        newest = self._newest = None  # this publication may be freed before there is another
        self._newest = Published(version, Shared(acting_weights(self._algo)))
        self._normalization, self._published_s = normalization, now
        return self._newest


def arrays(tree: Any) -> Any:
    """Return a tree of dictionaries with arrays in place of tensors."""
    if isinstance(tree, Mapping):
        return {key: arrays(value) for key, value in tree.items()}
    return tree.detach().cpu().numpy() if isinstance(tree, torch.Tensor) else tree


def tensors(tree: Any) -> Any:
    """Return a tree of dictionaries with tensors in place of arrays."""
    if isinstance(tree, Mapping):
        return {key: tensors(value) for key, value in tree.items()}
    return torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree
