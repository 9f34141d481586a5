"""Running statistics of online RL; those that a policy uses are part of its ``Preprocess`` and so of checkpoints."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.config import Config
from imitate.data.batches.rewards import RewardTransform
from imitate.errors import ConfigError
from imitate.functional.normalization import mean_std_with_floor
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import load_checkpoint
from imitate.system.ranks import ALONE, Ranks

logger = logging.getLogger(__name__)

Numbers = NDArray[np.float32]


class RunningMoments:
    """Mean and variance of all rows seen so far, merged batch by batch in float64 (Chan et al. 1979).

    Args:
        shape: shape of a row.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.count = 0
        self.mean = np.zeros(shape)
        self._squares = np.zeros(shape)

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation of the rows; 1 before there are two."""
        if self.count < 2:
            return np.ones_like(self.mean)
        deviation: NDArray[np.float64] = np.sqrt(self._squares / self.count)
        return deviation

    def add(self, rows: NDArray[Any]) -> None:
        """Add rows (B, ...)."""
        if not len(rows):
            return
        rows = rows.astype(np.float64)
        mean = rows.mean(0)
        self._merge(len(rows), mean, np.square(rows - mean).sum(0))

    def _merge(self, count: int, mean: NDArray[Any], squares: NDArray[Any]) -> None:
        """Add ``count`` rows with this mean and this sum of squared deviations."""
        difference, total = mean - self.mean, self.count + count
        self._squares = self._squares + squares + difference**2 * (self.count * count / total)
        self.mean = self.mean + difference * (count / total)
        self.count = total

    def flat(self) -> NDArray[np.float64]:
        """Return count, mean and squares in one array, for :func:`merge_all`."""
        return np.concatenate([[self.count], self.mean.ravel(), self._squares.ravel()])

    def merge_flat(self, numbers: NDArray[np.float64]) -> None:
        """Add the rows of other moments, given by their :meth:`flat`."""
        if numbers[0] > 0:
            mean, squares = np.split(numbers[1:], 2)
            shape = self.mean.shape
            self._merge(int(numbers[0]), mean.reshape(shape), squares.reshape(shape))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain lists and scalars."""
        return {
            "count": self.count,
            "mean": self.mean.tolist(),
            "squares": self._squares.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self.count = int(state["count"])
        self.mean, self._squares = np.array(state["mean"]), np.array(state["squares"])


def merge_all(
    moments: Sequence[RunningMoments], own: Sequence[RunningMoments], ranks: Ranks
) -> None:
    """Add the new rows of all ranks, so that moments stay equal on all ranks.

    Args:
        moments: moments of all rows so far.
        own: moments of this rank's new rows, one for each of ``moments``.
        ranks: the processes that train together.
    """
    rows = [each.flat() for each in own]
    edges = np.cumsum([len(row) for row in rows])[:-1]
    for seen in ranks.table(np.concatenate(rows)):
        for each, numbers in zip(moments, np.split(seen, edges), strict=True):
            each.merge_flat(numbers)


GROWTH = 0.01
"""Running statistics are applied again when the number of observations has grown by this share."""


class ObsNormalizer:
    """Moments of all vector observations.

    Args:
        shapes: shape of one step of each vector observation.
        sources: by key, the observation whose moments it shares; a missing key has its own.
        ranks: the processes whose observations count together.

    Attributes:
        is_running: true to update the moments during the whole training; false: only until the first update.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        sources: Mapping[str, Sequence[str]] = MappingProxyType({}),
        *,
        is_running: bool = True,
        ranks: Ranks = ALONE,
    ) -> None:
        self.is_running, self._ranks = is_running, ranks
        self._applied = 0
        self._moments = {key: RunningMoments(shape) for key, shape in shapes.items()}
        self._sources = {key: sources.get(key, (key,)) for key in shapes}

    def add(self, obs: Mapping[str, NDArray[Any]]) -> None:
        """Add observations (*B, ...) by key; other keys are ignored."""
        self.add_all([obs])

    def add_all(self, seen: Iterable[Mapping[str, NDArray[Any]]]) -> None:
        """Add several observations and those of the other ranks, which must call this equally often."""
        if self._ranks.world == 1:
            _add_to(self._moments, self._sources, seen)
            return
        own = {key: RunningMoments(moments.mean.shape) for key, moments in self._moments.items()}
        _add_to(own, self._sources, seen)
        if own:
            merge_all(list(self._moments.values()), list(own.values()), self._ranks)

    @property
    def count(self) -> int:
        """Number of observations seen, for the key with the most."""
        return max((moments.count for moments in self._moments.values()), default=0)

    @property
    def has_grown(self) -> bool:
        """True if enough observations were added since the moments were last applied."""
        return self.count > self._applied * (1.0 + GROWTH)

    def apply(self, preprocess: Preprocess) -> None:
        """Normalize observations for networks to mean 0 and standard deviation 1 (divisor not below 0.01)."""
        self._applied = self.count
        for key, moments in self._moments.items():
            offset, scale = mean_std_with_floor(
                torch.from_numpy(moments.mean), torch.from_numpy(moments.std)
            )
            preprocess.set_obs_normalization(key, offset.float(), scale.float())

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain lists and scalars."""
        return {
            "moments": {key: moments.state_dict() for key, moments in self._moments.items()},
            "applied": self._applied,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`; statistics of versions that did not update them stay fixed."""
        if "applied" not in state:
            state, self.is_running = {"moments": state, "applied": 0}, False
        self._applied = int(state["applied"])
        for key, moments in self._moments.items():
            moments.load_state_dict(state["moments"][key])


def _add_to(
    moments: Mapping[str, RunningMoments],
    sources: Mapping[str, Sequence[str]],
    seen: Iterable[Mapping[str, NDArray[Any]]],
) -> None:
    for obs in seen:
        for key, each in moments.items():
            for source in sources[key]:
                each.add(obs[source].reshape(-1, *each.mean.shape))


class RewardScaler:
    """Transforms rewards and divides them by 1 or by the standard deviation of discounted returns so far.

    Args:
        transform: transform applied before the division.
        num_envs: number N of environments.
        discount: discount of the returns, or None for a divisor of 1.
        ranks: the processes whose returns count together; each has ``num_envs`` environments.
    """

    def __init__(
        self,
        transform: RewardTransform,
        num_envs: int,
        discount: float | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._transform, self._discount, self._ranks = transform, discount, ranks
        self._moments = RunningMoments()
        self._returns = np.zeros(num_envs)

    def __call__(
        self,
        rewards: Numbers,
        ends: NDArray[np.bool_],
        lanes: NDArray[np.int64],
        mask: NDArray[np.bool_] | None = None,
    ) -> Numbers:
        """Return the scaled rewards (T, K) of a rollout.

        Args:
            rewards: (T, K) rewards of the environment.
            ends: (T, K) true where episodes ended.
            lanes: (K,) numbers of the environments.
            mask: (T, K) false where there is no experience, which does not count; None if there is experience
                everywhere.
        """
        transform = self._transform
        if self._discount is not None:
            returns = np.empty(rewards.shape)
            running = self._returns[lanes]
            for step, (reward, end) in enumerate(zip(rewards, ends, strict=True)):
                returns[step] = reward + self._discount * running
                running = np.where(end, 0.0, returns[step])
            self._returns[lanes] = running
            own = RunningMoments()
            own.add(returns.reshape(-1) if mask is None else returns[mask])
            merge_all([self._moments], [own], self._ranks)
            transform = replace(transform, divisor=max(float(self._moments.std), 1e-6))
        return transform(rewards).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain lists and scalars."""
        return {"moments": self._moments.state_dict(), "returns": self._returns.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self._moments.load_state_dict(state["moments"])
        self._returns = np.array(state["returns"])


def with_rewards_as_before(config: Config) -> Config:
    """Return the configuration with the reward scale that the training of ``ckpt_path`` fitted to demonstrations.

    It is unchanged without a checkpoint, a reward normalization, or a fitted scale.
    """
    reward, path = config.train.reward, config.experiment.ckpt_path
    if reward.normalization is None or path is None:
        return config
    fitted = load_checkpoint(path)["provenance"].get("reward") or {}
    if "divisor" not in fitted:
        return config
    scale = float(f"{reward.scale / fitted['divisor']:.6g}")
    logger.warning(
        "train.reward: scale %g in place of '%s', as in %s", scale, reward.normalization, path
    )
    return config.with_overrides({"train.reward.normalization": None, "train.reward.scale": scale})


def fixed_rewards(config: Config) -> RewardTransform:
    """Return the reward transform of ``train.reward`` for training without data to fit it to.

    Raises:
        ConfigError: the transform needs to be fitted.
    """
    reward = config.train.reward
    if reward.normalization is not None:
        raise ConfigError(
            f"train.reward.normalization: '{reward.normalization}' is fitted to demonstrations, not to a replay "
            "buffer: add --set train.reward.normalization=null --set train.reward.scale=SCALE"
        )
    return RewardTransform(reward.scale, reward.shift, clip=reward.clip)
