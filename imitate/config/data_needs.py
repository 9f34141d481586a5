"""Data that an algorithm needs in addition to windows of observations and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Transitions:
    """Rewards, next observations and discounts: each sample becomes a transition of one or several steps.

    Attributes:
        discount: factor per environment step, in [0, 1].
        n_step: number of steps whose rewards are summed before the TD target bootstraps; fewer at the end of a demo.
        next_actions: add the action that was taken in the next state.
        infinite_horizon: multiply the reward at a terminal by 1 / (1 - discount), as if it were received forever.
        signals: array of a demo with each of the named rewards: "rewards", or "signals/NAME".
        signal_discounts: discount of each of the named rewards, if there are any.
        chunks: add the ``n_step`` actions of the transition.
    """

    discount: float = 0.99
    n_step: int = 1
    next_actions: bool = False
    infinite_horizon: bool = False
    signals: tuple[str, ...] = ()
    signal_discounts: tuple[float, ...] = ()
    chunks: bool = False


@dataclass(frozen=True)
class Returns:
    """Returns: the sum of rewards from each step of a window to the end of its demo.

    Attributes:
        discount: factor per environment step, in [0, 1].
        continue_truncated: after a demo whose last step is not terminal, repeat the last reward forever; false: assume
            0.
        scaled: sum the rewards after the scaling of ``train.reward``; false: as stored in the file.
    """

    discount: float
    continue_truncated: bool = False
    scaled: bool = True


@dataclass(frozen=True)
class Subgoals:
    """Later observations of the same demo; past its end, the observations of its last step.

    Attributes:
        keys: observation keys.
        horizon: number of steps between the sample's step and the subgoal.
        every: return all observations ``{key: (B, horizon, ...)}``, 1 to ``horizon`` steps ahead; false: only the last
            one, ``{key: (B, ...)}``.
    """

    keys: tuple[str, ...]
    horizon: int
    every: bool = False


@dataclass(frozen=True)
class GoalShares:
    """Distribution of hindsight goals: states of the data that samples are given as goals.

    A goal is the sample's own state, any state of the data, or a later state of the same demo; the latter has the rest
    of the probability.

    Attributes:
        current: probability of the sample's own state.
        random: probability of a state of the whole data.
        geometric: number of steps to a later state is geometric with parameter 1 - discount, and the demo's last state
            replaces states after it; false: uniform over the later states.
    """

    current: float
    random: float
    geometric: bool


@dataclass(frozen=True)
class HindsightGoals:
    """Goals of values and of the policy, drawn anew for each batch: :mod:`imitate.data.batches.goals`.

    Attributes:
        keys: observation keys of a goal.
        value: distribution of the goals of values.
        actor: distribution of the goals of the policy.
        discount: factor per environment step, in [0, 1).
        subgoal_steps: number of steps to a subgoal of a hierarchy; None: no subgoals.
    """

    keys: tuple[str, ...]
    value: GoalShares
    actor: GoalShares
    discount: float
    subgoal_steps: int | None = None


@dataclass(frozen=True)
class Outcome:
    """Outcome of the demo of a sample, and a later state of it.

    Batches then have ``outcome`` (B, 3): number of steps from the sample's to the last of the demo, 1 if the demo
    solves its task, 1 if a person or expert corrected the sample's action (step array ``interventions``); and with
    ``lookahead`` ``later_obs`` {key: (B, ...)}.

    Attributes:
        lookahead: number of steps to the later state, whose place the demo's last state takes after its end; None: no
            later state.
    """

    lookahead: int | None = None


@dataclass(frozen=True)
class Sequences:
    """Sequences of replayed steps with the recurrent state that the policy had at their first step.

    Attributes:
        length: steps of a sequence, without ``burn_in``.
        burn_in: number of earlier steps that update the recurrent state but are not learned from.
    """

    length: int
    burn_in: int


@dataclass(frozen=True)
class FollowingSteps:
    """Transitions that follow each other from a sample's step on, for auxiliary losses and models.

    Batches then have ``following``: ``obs`` {key: (B, K, ...)} after each of the K steps, ``actions`` (B, K, A),
    ``mask`` (B, K) false where the episode has ended or the observation after the step is unknown, ``rewards`` (B, K),
    and ``ends`` (B, K) 1 at a terminal step of the episode, even if the observation after it is unknown, else 0.

    Attributes:
        number: K, number of steps.
        rewards: add the rewards.
        ends: add the ends.
    """

    number: int = 1
    rewards: bool = False
    ends: bool = False

    @property
    def step_keys(self) -> tuple[str, ...]:
        """Step arrays of a file that are read."""
        return (*["rewards"] * self.rewards, *["terminals"] * self.ends)


@dataclass(frozen=True)
class DataNeeds:
    """Data that an algorithm learns from, in addition to the windows of observations and actions of every batch.

    Attributes:
        transitions: next observations, rewards and terminals, loaded regardless of ``train``; None: not needed.
        returns: ``returns (B, T)`` and the number of each step in its demo, ``step (B, T)``; None: not needed.
        subgoals: later observations; None: not needed.
        goals: hindsight goals and next observations; None: not needed.
        outcome: outcomes of demos; None: not needed.
        sequences: form of the samples of a replay buffer; None: single steps.
        observed_steps: number of steps, from the first of a window, whose images are read (vectors are read for all
            steps); None: all.
        environment_rewards: true if the algorithm learns from the rewards of demos and environments; false: it makes
            its own rewards, so that demos need none.
    """

    transitions: Transitions | None = None
    returns: Returns | None = None
    subgoals: Subgoals | None = None
    goals: HindsightGoals | None = None
    outcome: Outcome | None = None
    sequences: Sequences | None = None
    observed_steps: int | None = None
    environment_rewards: bool = True


class ReturnStatistics(Protocol):
    """Statistics of the returns of the training data; the returns are defined by :attr:`DataNeeds.returns`.

    Attributes:
        best: highest return of a whole demo.
        largest: largest magnitude of the return from any step on.
    """

    best: float
    largest: float


class TrainingSet(Protocol):
    """The part of :class:`imitate.data.SequenceDataset` that an algorithm's section reads values from."""

    @property
    def return_statistics(self) -> ReturnStatistics:
        """Statistics of the returns.

        Raises:
            DatasetError: the algorithm's :class:`DataNeeds` have no ``returns``.
        """

    @property
    def tasks(self) -> tuple[str, ...]:
        """Instructions, in the order of ``task_id``."""

    def __len__(self) -> int:
        """Number of samples."""
