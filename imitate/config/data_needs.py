"""Data that an algorithm needs beside windows of observations and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Transitions:
    """Rewards, next observations and discounts: each sample becomes a transition of one or several steps.

    Attributes:
        discount: factor per environment step, in [0, 1].
        n_step: steps whose rewards are summed before the TD target bootstraps; fewer where the demo ends before.
        next_actions: add the action that was taken in the next state.
        infinite_horizon: count the reward at a terminal 1 / (1 - discount) times, as if it were received forever.
    """

    discount: float = 0.99
    n_step: int = 1
    next_actions: bool = False
    infinite_horizon: bool = False


@dataclass(frozen=True)
class Returns:
    """Returns: the sum of rewards from each step of a window to the end of its demo.

    Attributes:
        discount: factor per environment step, in [0, 1].
        continue_truncated: after a demo whose last step is no terminal, repeat its last reward forever; false: 0.
        scaled: sum the rewards after ``train.reward``; false: as the file has them.
    """

    discount: float
    continue_truncated: bool = False
    scaled: bool = True


@dataclass(frozen=True)
class Subgoals:
    """Later observations of the same demo; past its end those of its last step.

    Attributes:
        keys: observation keys.
        horizon: steps ahead of the sample's step.
        every: ``{key: (B, horizon, ...)}``, 1 to ``horizon`` steps ahead; false: ``{key: (B, ...)}``, the last alone.
    """

    keys: tuple[str, ...]
    horizon: int
    every: bool = False


@dataclass(frozen=True)
class Sequences:
    """Sequences of replayed steps with the recurrent state that the policy had at their first step.

    Attributes:
        length: steps of a sequence, without ``burn_in``.
        burn_in: steps before them that update the recurrent state and are not learned from.
    """

    length: int
    burn_in: int


@dataclass(frozen=True)
class DataNeeds:
    """Data that an algorithm learns from, beside the windows of observations and actions that every batch has.

    Attributes:
        transitions: next observations, rewards and terminals, loaded whatever ``train`` says; None: not needed.
        returns: ``returns (B, T)`` and the number of each step in its demo, ``step (B, T)``; None: not needed.
        subgoals: later observations; None: not needed.
        sequences: form of the samples of a replay buffer; None: single steps.
        observed_steps: steps of a window, from the first, whose images are read (the vectors of all are); None: all.
        environment_rewards: rewards of demos and environments are learned from; false: the algorithm makes its own, so
            that demos need none.
    """

    transitions: Transitions | None = None
    returns: Returns | None = None
    subgoals: Subgoals | None = None
    sequences: Sequences | None = None
    observed_steps: int | None = None
    environment_rewards: bool = True


class ReturnStatistics(Protocol):
    """Statistics of the returns of the training data; they follow :attr:`DataNeeds.returns`.

    Attributes:
        best: highest return of a whole demo.
        largest: largest magnitude of a return from any step on.
    """

    best: float
    largest: float


class TrainingSet(Protocol):
    """The part of :class:`imitate.data.SequenceDataset` from which an algorithm's section takes values."""

    @property
    def return_statistics(self) -> ReturnStatistics:
        """Statistics of the returns.

        Raises:
            DatasetError: the algorithm's :class:`DataNeeds` have no ``returns``.
        """

    def __len__(self) -> int:
        """Number of samples."""
