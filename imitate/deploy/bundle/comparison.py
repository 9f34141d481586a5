"""Compare the actions of a bundle with those of the policy from which it was exported.

The observations are random, or taken from demonstrations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.data.dataset_file import DatasetFile
from imitate.deploy.bundle.network import TOLERANCE, NoiseSource
from imitate.deploy.bundle.policy import BundlePolicy
from imitate.deploy.bundle.spec import BundleSpec, Noise
from imitate.deploy.bundle.tracing import Draws, Numbers
from imitate.errors import BundleError, DatasetError
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.instructions import LANGUAGE_KEY

Raw = dict[str, NDArray[Any]]
_COMPARED_STEPS = 24


def random_observations(policy: RolloutPolicy, count: int, seed: int) -> list[dict[str, Raw]]:
    """Draw random observations and goals with the mean and spread of the training data."""
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
    """Gives a torch policy the same random numbers that a bundle draws from a seed."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self._source, self._numbers = NoiseSource(noise, seed), Numbers({})

    def __call__(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        """Return the next random numbers as a tensor of ``shape``."""
        if not self._numbers.left:  # all numbers of a prediction are used: draw those of the next
            self._numbers = Numbers(
                {
                    name.removeprefix("noise/"): torch.from_numpy(value)
                    for name, value in self._source.draw().items()
                }
            )
        return self._numbers(kind, shape)


def compare(policy: RolloutPolicy, bundle: BundlePolicy, spec: BundleSpec) -> tuple[int, float]:
    """Compare policy and bundle over two episodes with one discarded plan; return steps and largest difference.

    Raises:
        BundleError: their actions differ by more than :data:`TOLERANCE`.
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
            error = np.abs(bundle(obs, goal) - expected) / np.maximum(np.abs(expected), 1.0)
            difference = float(error.max())
            if not difference <= TOLERANCE:  # true also for NaN
                raise BundleError(
                    f"the exported network acts differently from the policy in step {step} of an episode (difference "
                    f"{difference:.2g}): the policy's Python code branches on values, which the export does not "
                    "capture, or it chooses among nearly equal alternatives; deploy the checkpoint itself, such "
                    "as by imitate serve"
                )
            largest = max(largest, difference)
            if step == 2 * steps // 3:
                policy.cut_plan()
                bundle.cut_plan()
    return 2 * steps, largest


def demonstrated_observations(
    policy: RolloutPolicy, path: str | Path, count: int
) -> list[dict[str, Raw]]:
    """Return evenly spread observations of a file's first demo, together with the policy's first instruction.

    Args:
        policy: policy whose observations are read.
        path: file of demonstrations.
        count: number of observations.

    Raises:
        BundleError: the policy has goals, or an observation is missing in the file or has another shape.
        DatasetError: the file cannot be read, or has no steps.
    """
    if policy.goal_keys:
        raise BundleError(
            "the policy needs goals, which demonstrations do not contain: omit --dataset"
        )
    shapes, known = policy.algo.preprocess.raw_shapes, policy.instructions
    fixed = {} if known is None else {LANGUAGE_KEY: np.asarray(known.vectors[0])}
    with DatasetFile(path) as file:
        demo = next((name for name in file.demos() if file.length(name)), None)
        if demo is None:
            raise DatasetError(f"{path}: the demos have no steps; give a file with recorded steps")
        steps = np.linspace(0, file.length(demo) - 1, count).round().astype(int)
        read = {}
        for key in policy.obs_keys:
            if not file.has(demo, f"obs/{key}"):
                raise BundleError(
                    f"{path} lacks the policy's observation '{key}': name demonstrations that have it"
                )
            shape = file.shape(demo, f"obs/{key}")[1:]
            if tuple(shape) != tuple(shapes[key]):
                raise BundleError(
                    f"'{key}' has shape {tuple(shape)} in {path}, but the policy takes {tuple(shapes[key])}: name "
                    "other demonstrations"
                )
            read[key] = [_stored(file.read(demo, f"obs/{key}", s, s + 1)[0]) for s in steps]
    return [
        {"obs": {**{key: values[row] for key, values in read.items()}, **fixed}, "goal": {}}
        for row in range(count)
    ]


def _stored(value: NDArray[Any]) -> NDArray[Any]:
    """Convert an array to uint8, int64 or float32, the types that a bundle can contain."""
    if value.dtype.kind in "iub":
        return value if value.dtype == np.uint8 else value.astype(np.int64)
    return np.asarray(value, dtype=np.float32)
