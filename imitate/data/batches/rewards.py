"""Scaled rewards, n-step rewards, returns and outcomes of samples."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.data_needs import Outcome, Returns, Transitions
from imitate.config.train import RewardConfig
from imitate.data.batches.goals import GoalSampler
from imitate.data.batches.store import DataSource, Store
from imitate.data.batches.windows import (
    Gatherer,
    Rows,
    TransitionPicker,
    TransitionTable,
    WindowRows,
    transition_table,
)
from imitate.data.file.hdf5_format import outcomes
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.functional.transfer import to_device

Rewards = TypeVar("Rewards", NDArray[np.float32], Tensor)


@dataclass(frozen=True)
class RewardTransform:
    """Rewards scaled as ``scale * reward / divisor + shift`` and then clipped.

    Attributes:
        scale: factor of the rewards.
        shift: value added to the scaled rewards.
        divisor: scale of the rewards in the training data, by ``train.reward.normalization``; 1 without normalization.
        clip: lower and upper limit to which the result is clipped; None for no limits.
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
        """Return the attributes as plain numbers, for a checkpoint."""
        return asdict(self)


def fit_rewards(
    config: RewardConfig,
    rewards: NDArray[np.float32],
    demo_start: NDArray[np.int64],
    path: str,
) -> RewardTransform:
    """Return the reward transform that ``train.reward`` describes, fitted to the training demos.

    Args:
        config: section ``train.reward``.
        rewards: (N,) rewards of all steps.
        demo_start: (number of demos,) first row of each demo.
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
    """Compute the sum of the rewards of each demo, (number of demos,)."""
    returns: NDArray[np.float64] = np.add.reduceat(rewards.astype(np.float64), demo_start)
    return returns


def returns_to_go(
    rewards: NDArray[np.float32],
    terminals: NDArray[np.float32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    discount: float,
    *,
    continue_truncated: bool = False,
) -> NDArray[np.float32]:
    """Discounted sum of the rewards from each step to the end of its episode.

    Args:
        rewards: (N,) rewards of several episodes, one after another.
        terminals: (N,) 1 if the step ended the task; later rewards of the episode do not count.
        starts: (M,) index of the first row of each episode.
        ends: (M,) index after the last row of each episode.
        discount: in [0, 1].
        continue_truncated: if the last step of an episode is not terminal, assume that its reward is repeated forever,
            with the sum ``reward / (1 - discount)``, which needs a discount below 1; if false, assume no further
            rewards.

    Returns:
        (N,) float32; computed in float64.
    """
    values = np.zeros(len(rewards), dtype=np.float64)
    goes_on = 1.0 - terminals.astype(np.float64)
    after = np.zeros(len(ends), dtype=np.float64)
    if continue_truncated:
        after = rewards[ends - 1].astype(np.float64) / (1.0 - discount)
    # all episodes are processed together, from their last steps backwards
    row, running = ends - 1, np.arange(len(ends))
    while len(running):
        now = row[running]
        after[running] = rewards[now] + discount * goes_on[now] * after[running]
        values[now] = after[running]
        row = row - 1
        running = running[row[running] >= starts[running]]
    return values.astype(np.float32)


class ReturnTable:
    """Table of the return from each row to its demo's end, and of the index of the row in its demo.

    Args:
        rewards: (N,) rewards of all demos, one after another.
        terminals: (N,) 1 if the step ended the task.
        demo_start: (number of demos,) first row of each demo.
        demo_end: (number of demos,) index after the last row of each demo.
        wanted: discount, and the treatment of truncated demos.

    Attributes:
        best: highest return of a whole demo.
        largest: largest absolute value of the return from any step to the demo's end.
    """

    def __init__(
        self,
        rewards: NDArray[np.float32],
        terminals: NDArray[np.float32],
        demo_start: Rows,
        demo_end: Rows,
        wanted: Returns,
    ) -> None:
        values = returns_to_go(
            rewards,
            terminals,
            demo_start,
            demo_end,
            wanted.discount,
            continue_truncated=wanted.continue_truncated,
        )
        self.best = float(values[demo_start].max())
        self.largest = float(np.abs(values).max())
        self._returns = torch.from_numpy(values)
        number = np.arange(len(values)) - np.repeat(demo_start, demo_end - demo_start)
        self._steps = torch.from_numpy(number)

    def at(self, rows: Rows) -> dict[str, Tensor]:
        """Return ``returns`` float32 and ``step`` int64, with the shape of ``rows``."""
        index = to_device(torch.from_numpy(rows), self._returns.device)
        return {"returns": self._returns[index], "step": self._steps[index]}

    def to(self, device: torch.device | str) -> None:
        """Move the table to a device."""
        self._returns, self._steps = self._returns.to(device), self._steps.to(device)


class StepNumbers:
    """Rewards, returns, transitions and weights of the N steps of a store, computed once and looked up for each batch.

    Args:
        store: the demos, with ``rewards`` and ``terminals`` if transitions or returns are needed.
        transitions: settings of transitions; None if not needed.
        returns: settings of returns; None if not needed.
        frame_stack: number of observations that a policy sees.
        end_is_known: true if the state after a demo's last step is known.
        goals: hindsight goals, or None; steps that are not transitions then have weight 0.

    Attributes:
        reward: transform of the rewards.
        picker: the transitions, or None if not needed.
        returns: the returns, or None if not needed.
    """

    def __init__(
        self,
        store: Store,
        transitions: Transitions | None,
        returns: Returns | None,
        frame_stack: int,
        end_is_known: bool,
        goals: GoalSampler | None = None,
    ) -> None:
        self._store, self._goals = store, goals
        self._transitions, self._returns = transitions, returns
        self._frame_stack, self._end_is_known = frame_stack, end_is_known
        self.picker: TransitionPicker | None = None
        self.returns: ReturnTable | None = None
        self._weights: Tensor | None = None
        self.scale_rewards(RewardTransform())

    def array(self, key: str) -> NDArray[np.float32]:
        """Return an array of all steps, such as 'rewards', as stored in the file."""
        rows = np.arange(len(self._store))
        values: NDArray[np.float32] = self._store.field(key, rows).cpu().numpy()
        return values

    def scale_rewards(self, reward: RewardTransform) -> None:
        """Scale the file's rewards by ``reward``, and reset all weights to 1."""
        self.reward = reward
        if self._returns is not None:
            rewards = self.array("rewards")
            self.returns = ReturnTable(
                reward(rewards) if self._returns.scaled else rewards,
                self.array("terminals"),
                self._store.demo_start,
                self._store.demo_end,
                self._returns,
            )
        if self._transitions is not None:
            wanted = self._transitions
            signals = [
                self._transition_table(self.array(key), replace(wanted, discount=discount))
                for key, discount in zip(wanted.signals, wanted.signal_discounts, strict=True)
            ]
            table = self._transition_table(reward(self.array("rewards")), wanted)
            start = self._store.demo_start
            self.picker = TransitionPicker(table, start, self._frame_stack, signals)
        self.weigh_steps(np.ones(len(self._store), dtype=np.float32))

    def _transition_table(
        self, rewards: NDArray[np.float32], wanted: Transitions
    ) -> TransitionTable:
        return transition_table(
            rewards,
            self.array("terminals"),
            self._store.demo_end,
            wanted,
            end_is_known=self._end_is_known and not wanted.next_actions,
        )

    def weigh_steps(self, weights: NDArray[np.float32]) -> None:
        """Set the weight of each of N steps; steps that are not transitions have weight 0."""
        if self.picker is not None:
            weights = weights * self.picker.table.usable
        if self._goals is not None:
            weights = weights * self._goals.usable
        equal = bool(np.all(weights == weights[0]))
        self._weights = None if equal else torch.from_numpy(weights)

    def add_to(self, batch: dict[str, Any], rows: Rows) -> None:
        """Add rewards, returns and weights of the windows' steps ``rows`` (B, T) to a batch."""
        if "rewards" in batch and not self.reward.is_identity:
            batch["rewards"] = self.reward(batch["rewards"])
        if self.returns is not None:
            batch.update(self.returns.at(rows))
        if self.picker is not None:
            batch.update(self.picker.numbers_at(rows[:, self._frame_stack - 1]))
        if self._weights is not None:
            batch["weight"] = self._weights[to_device(torch.from_numpy(rows), self._weights.device)]

    def to(self, device: torch.device | str) -> None:
        """Move all tables to a device."""
        for table in (self.picker, self.returns):
            if table is not None:
                table.to(device)
        if self._weights is not None:
            self._weights = self._weights.to(device)


class DemoOutcomes:
    """Success of each demo, and the steps that a person or expert corrected.

    If a file does not record whether a demo solves its task, the demo counts as solved.

    Args:
        sources: the files.
        store: the demos.
        wanted: settings, with the number of steps to the later observation.
        files: open files of the sources.
    """

    def __init__(
        self, sources: Sequence[DataSource], store: Store, wanted: Outcome, files: DataFiles
    ) -> None:
        self._lookahead = wanted.lookahead
        self._solved = np.ones(len(store.demos), dtype=bool)
        self._corrected = np.zeros(len(store), dtype=bool)
        for number, source in enumerate(sources):
            file = files.open(source.path)
            own = {demo.name: i for i, demo in enumerate(store.demos) if demo.source == number}
            for name, solved in outcomes(file, list(own)).items():
                at = own[name]
                self._solved[at] = solved is not False
                if file.has(name, "interventions"):
                    rows = slice(store.demo_start[at], store.demo_end[at])
                    self._corrected[rows] = file.read(name, "interventions").reshape(-1) > 0

    def add_to(self, batch: dict[str, Any], now: Rows, window: WindowRows, read: Gatherer) -> None:
        """Add ``outcome`` (B, 3) and, if wanted, ``later_obs`` of the steps ``now`` (B,) to a batch; see Outcome."""
        left = window.last[:, 0] - now
        numbers = np.stack([left, self._solved[window.demo], self._corrected[now]], axis=-1)
        like = batch["actions"]
        batch["outcome"] = to_device(torch.from_numpy(numbers.astype(np.float32)), like.device)
        if self._lookahead is not None:
            rows = np.minimum(now[:, None] + self._lookahead, window.last)
            later = read.observations(rows)
            batch["later_obs"] = {key: value[:, 0] for key, value in later.items()}


def demo_outcomes(
    wanted: Outcome | None, sources: Sequence[DataSource], store: Store, files: DataFiles
) -> DemoOutcomes | None:
    """Return the outcomes of demos, or None if the algorithm does not need them."""
    return None if wanted is None else DemoOutcomes(sources, store, wanted, files)
