"""Select observations of demonstrations on which a bundle's predictions are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.dataset_file import DatasetFile
from imitate.data.language import LANGUAGE_KEY
from imitate.errors import BundleError, DatasetError
from imitate.policy.rollout_policy import RolloutPolicy

Raw = dict[str, NDArray[Any]]


def demonstrated_observations(
    policy: RolloutPolicy, path: str | Path, count: int
) -> list[dict[str, Raw]]:
    """Return observations of a file's first demo, evenly spread, with the policy's first instruction.

    Args:
        policy: policy whose observations are read.
        path: file of demonstrations.
        count: number of observations.

    Raises:
        BundleError: the policy has goals, or an observation is missing in the file or has another shape.
        DatasetError: the file cannot be read, or has no steps.
    """
    if policy.goal_keys:
        raise BundleError("it has goals, which demonstrations do not contain: leave --dataset out")
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
                raise BundleError(f"{path} lacks the policy's observation '{key}'")
            shape = file.shape(demo, f"obs/{key}")[1:]
            if tuple(shape) != tuple(shapes[key]):
                raise BundleError(
                    f"'{key}' is {tuple(shape)} in {path}, but the policy takes "
                    f"{tuple(shapes[key])}"
                )
            read[key] = [_stored(file.read(demo, f"obs/{key}", s, s + 1)[0]) for s in steps]
    return [
        {"obs": {**{key: values[row] for key, values in read.items()}, **fixed}, "goal": {}}
        for row in range(count)
    ]


def _stored(value: NDArray[Any]) -> NDArray[Any]:
    """Convert a value to a type of bundles: uint8, int64 or float32."""
    if value.dtype.kind in "iub":
        return value if value.dtype == np.uint8 else value.astype(np.int64)
    return np.asarray(value, dtype=np.float32)
