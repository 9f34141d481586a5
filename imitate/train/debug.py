"""Histograms and the gradient noise scale of a training, for TensorBoard: ``experiment.logging.debug``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, Batch
from imitate.algo.slots.density import own_distribution
from imitate.models.actor import Actor, PolicyAndValue

SHOWN = ("actions", "rewards", "returns", "advantages", "values")
"""Parts of a batch whose histograms are written."""


class NoiseScale:
    """Gradient noise scale of one network, of McCandlish et al. 2018 (arXiv:1812.06162), appendix A.

    It is the number of samples at which the noise of a batch's gradient is as large as the gradient: tr(S) / |G|^2,
    with the covariance S of one sample's gradient and the true gradient G. With the gradients g and h of two batches of
    B samples, |g - h|^2 / 2 estimates tr(S) / B, and g h estimates |G|^2, both without bias. The two batches are those
    of consecutive updates, between which the weights hardly change.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._first: Tensor | None = None
        self._noise = self._signal = 0.0

    def add(self, gradient: Tensor) -> None:
        """Add the gradient (D,) of an update."""
        if self._first is None:
            self._first = gradient
            return
        first, self._first = self._first, None
        self._noise += float((first - gradient).square().sum() / 2.0)
        self._signal += float(first @ gradient)

    def value(self) -> float | None:
        """Return the scale of the updates so far, and forget them; None if their noise hides the gradient."""
        noise, signal, self._noise, self._signal = self._noise, self._signal, 0.0, 0.0
        return self._batch_size * noise / signal if signal > 0 else None


class Debug:
    """Numbers of an epoch that only TensorBoard gets.

    Args:
        algo: the algorithm in training; its optimizers are watched.
        batch_size: samples of an update.
    """

    def __init__(self, algo: Algo, batch_size: int) -> None:
        self._algo, self._batch_size = algo, batch_size
        self._scales: dict[str, NoiseScale] = {}
        self._batch: Batch | None = None
        for learner in algo.learners:
            learner.optimization.watch = self._watch

    def add(self, batch: Batch) -> None:
        """Remember the batch of the latest update."""
        self._batch = batch

    def scalars(self) -> dict[str, float]:
        """Return the gradient noise scale of each network in the epoch."""
        found = {name: scale.value() for name, scale in self._scales.items()}
        return {f"Debug/Gradient_Noise_Scale/{k}": x for k, x in found.items() if x is not None}

    def histograms(self) -> dict[str, Tensor]:
        """Return values of the latest batch: actions, rewards and others, and the policy's standard deviations."""
        batch = self._batch or {}
        shown = {f"Debug/{key.title()}": batch[key] for key in SHOWN if key in batch}
        stds = policy_stds(self._algo, batch.get("obs", {}))
        return shown if stds is None else {**shown, "Debug/Policy_Std": stds}

    def _watch(self, name: str, weights: Sequence[nn.Parameter], norm: Tensor) -> None:
        """Add the gradient of a step, as it was before clipping."""
        parts = [weight.grad.flatten() for weight in weights if weight.grad is not None]
        gradient = torch.cat(parts).float()
        scale = norm / gradient.norm().clamp(min=torch.finfo(torch.float32).tiny)
        self._scales.setdefault(name, NoiseScale(self._batch_size)).add(gradient * scale)


@torch.no_grad()
def policy_stds(algo: Algo, obs: Mapping[str, Any]) -> Tensor | None:
    """Return the standard deviations (B, ..., A) of the policy, before a tanh; None for a policy without any."""
    net = dict(algo.nets.items()).get(algo.main_net)
    plain = not algo.goal_shapes and getattr(algo, "memory", None) is None
    if not obs or not plain or not isinstance(net, Actor | PolicyAndValue):
        return None
    frames = {
        key: x if x.dim() > 1 + len(algo.obs_shapes[key]) else x.unsqueeze(1)
        for key, x in obs.items()
        if key in algo.obs_shapes
    }
    policy = own_distribution(algo, frames)
    stds: Tensor | None = getattr(getattr(policy, "base", policy), "stds", None)
    return stds
