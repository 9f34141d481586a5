"""Scaling of rewards for training, and returns of demos."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.train import RewardConfig
from imitate.errors import DatasetError

Rewards = TypeVar("Rewards", NDArray[np.float32], Tensor)


@dataclass(frozen=True)
class RewardTransform:
    """Rewards scaled as ``scale * reward / divisor + shift`` and then clipped.

    Attributes:
        scale: factor of the rewards.
        shift: value added to the scaled rewards.
        divisor: scale of the training data found by the normalization; 1 without normalization.
        clip: lower and upper limit of the result; None: no limits.
    """

    scale: float = 1.0
    shift: float = 0.0
    divisor: float = 1.0
    clip: tuple[float, float] | None = None

    @property
    def is_identity(self) -> bool:
        """True if rewards are not changed."""
        return self == RewardTransform()

    def __call__(self, rewards: Rewards) -> Rewards:
        """Transform rewards of any shape."""
        scaled = rewards * (self.scale / self.divisor) + self.shift
        return scaled if self.clip is None else scaled.clip(*self.clip)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for the checkpoint."""
        return asdict(self)


def fit_rewards(
    config: RewardConfig,
    rewards: NDArray[np.float32],
    demo_start: NDArray[np.int64],
    path: str,
) -> RewardTransform:
    """Fit the transform of ``train.reward`` to training demos.

    Args:
        config: section ``train.reward``.
        rewards: (N,) of all steps.
        demo_start: (number of demos,) first row of each.
        path: path of the file, for errors.

    Raises:
        DatasetError: all rewards or returns are equal, so that there is nothing to divide by.
    """
    divisor = 1.0
    if config.normalization is not None:
        if config.normalization == "return_range":
            divisor = float(np.ptp(returns_of(rewards, demo_start)))
        else:
            divisor = float(rewards.astype(np.float64).std())
        if divisor < 1e-8:
            alike = "returns of all demos" if config.normalization == "return_range" else "rewards"
            raise DatasetError(
                f"{path}: the {alike} are equal, so train.reward.normalization '{config.normalization}' has nothing to "
                "divide by: set it to null"
            )
    return RewardTransform(config.scale, config.shift, divisor, config.clip)


def returns_of(rewards: NDArray[np.float32], demo_start: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the sum of each demo's rewards: (number of demos,)."""
    returns: NDArray[np.float64] = np.add.reduceat(rewards.astype(np.float64), demo_start)
    return returns
