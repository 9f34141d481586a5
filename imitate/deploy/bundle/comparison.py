"""Comparison of a bundle with its original policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.data.language import LANGUAGE_KEY
from imitate.deploy.bundle.network import TOLERANCE
from imitate.deploy.bundle.noise import NoiseSource
from imitate.deploy.bundle.policy import BundlePolicy
from imitate.deploy.bundle.spec import BundleSpec, Noise
from imitate.deploy.bundle.tracing import Draws, Numbers
from imitate.errors import BundleError
from imitate.policy.rollout_policy import RolloutPolicy

Raw = dict[str, NDArray[Any]]
_COMPARED_STEPS = 24


def random_observations(policy: RolloutPolicy, count: int, seed: int) -> list[dict[str, Raw]]:
    """Draw observations and goals within the range of the data, without instruction embeddings."""
    preprocess, generator = policy.algo.preprocess, np.random.default_rng(seed)
    statistics = preprocess.to_dict()["obs"]
    vector = None if policy.instructions is None else policy.instructions.vectors[0]

    def value(key: str) -> NDArray[Any]:
        shape = preprocess.raw_shapes[key]
        if key == LANGUAGE_KEY and vector is not None:
            return np.asarray(vector)
        if preprocess.modalities[key] == "rgb":
            return generator.integers(0, 256, shape, dtype=np.uint8)
        if preprocess.modalities[key] != "low_dim":
            return generator.random(shape, dtype=np.float32)
        numbers = generator.standard_normal(shape)
        offset, scale = (np.asarray(statistics[key][name]) for name in ("offset", "scale"))
        fits = offset.shape == shape
        return np.asarray(offset + scale * numbers if fits else numbers, dtype=np.float32)

    algo = policy.algo
    return [
        {
            "obs": {key: value(key) for key in algo.obs_shapes},
            "goal": {key: value(key) for key in algo.goal_shapes},
        }
        for _ in range(count)
    ]


class SameNoise:
    """Random numbers for a torch policy, equal to those that a bundle draws from the same seed."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self._source, self._numbers = NoiseSource(noise, seed), Numbers({})

    def __call__(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        """Return the next numbers."""
        if not self._numbers.left:  # the next prediction begins
            self._numbers = Numbers(
                {
                    name.removeprefix("noise/"): torch.from_numpy(value)
                    for name, value in self._source.draw().items()
                }
            )
        return self._numbers(kind, shape)


def compare(policy: RolloutPolicy, bundle: BundlePolicy, spec: BundleSpec) -> tuple[int, float]:
    """Let both act in two episodes and discard a plan once; return the steps and the largest difference.

    Raises:
        BundleError: they act differently.
    """
    execution = spec.execution
    steps = max(_COMPARED_STEPS, 2 * (execution.execute if execution else 0) + 4)
    largest, names = 0.0, () if policy.instructions is None else policy.instructions.names
    bundle.seed(7)
    same = SameNoise(spec.noise, 7)
    for episode in range(2):
        lang = names[-1 - episode % len(names)] if names else None
        for actor in (policy, bundle):
            actor.start_episode(lang)
        for step, observation in enumerate(random_observations(policy, steps, seed=2 + episode)):
            obs = {k: v for k, v in observation["obs"].items() if k in policy.obs_keys}
            goal = observation["goal"] or None
            with Draws(same):
                expected = policy(obs, goal)
            difference = np.abs(bundle(obs, goal) - expected) / np.maximum(np.abs(expected), 1.0)
            largest = max(largest, float(difference.max()))
            if not largest <= TOLERANCE:
                raise BundleError(
                    f"the exported network acts differently in step {step} of an episode "
                    f"({largest:.2g} away): its computation depends on values in a way that "
                    "the export does not capture, or it chooses among nearly equal "
                    "alternatives"
                )
            if step == 2 * steps // 3:
                policy.cut_plan()
                bundle.cut_plan()
    return 2 * steps, largest
