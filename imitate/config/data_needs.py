"""Data that an algorithm needs in addition to windows of observations and actions."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Transitions:
    """Rewards, next observations and discounts, which make each sample a transition of one or several steps.

    Attributes:
        discount: factor per environment step, in [0, 1].
        n_step: number of steps whose rewards are summed before the TD target bootstraps; fewer at the end of a demo.
        next_actions: add the action that was taken in the next state.
        infinite_horizon: multiply the reward at a terminal by 1 / (1 - discount), as if it were received forever.
        signals: name of the demo array of each named reward, "rewards" or "signals/NAME"; empty if there are none.
        signal_discounts: discount factor of each named reward.
        chunks: add all ``n_step`` actions of the transition to the batch.
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
    """Returns, that is the discounted sums of rewards from each step of a window to the end of its demo.

    Attributes:
        discount: factor per environment step, in [0, 1].
        continue_truncated: if the last step of a demo is not terminal, assume that its reward is repeated forever;
            if false, assume rewards of 0.
        scaled: sum the rewards after the scaling of ``train.reward``; if false, as stored in the file.
    """

    discount: float
    continue_truncated: bool = False
    scaled: bool = True


@dataclass(frozen=True)
class Subgoals:
    """Subgoals: observations at a later step of the demo; past its end, the observations of its last step.

    Attributes:
        keys: observation keys.
        horizon: number of steps between the sample's step and the subgoal.
        every: return the observations 1 to ``horizon`` steps ahead, ``{key: (B, horizon, ...)}``; if false, only those
            of the last step, ``{key: (B, ...)}``.
    """

    keys: tuple[str, ...]
    horizon: int
    every: bool = False


@dataclass(frozen=True)
class GoalShares:
    """Distribution of hindsight goals: states of the data that samples are given as goals.

    A goal is the sample's own state, any state of the data, or a later state of the same demo, with the probabilities
    ``current``, ``random`` and ``1 - current - random``.

    Attributes:
        current: probability of the sample's own state.
        random: probability of any state of the data.
        geometric: draw the number of steps to a later state from the geometric distribution with parameter
            1 - discount, limited to the demo's last state; if false, draw uniformly from the later states.
    """

    current: float
    random: float
    geometric: bool


@dataclass(frozen=True)
class HindsightGoals:
    """Hindsight goals for the value function and the policy, drawn for each batch by :mod:`imitate.data.batches.goals`.

    Attributes:
        keys: observation keys of a goal.
        value: distribution of the goals for the value function.
        actor: distribution of the goals for the policy.
        discount: factor per environment step, in [0, 1).
        subgoal_steps: number of steps to a subgoal of a hierarchical policy; None for no subgoals.
    """

    keys: tuple[str, ...]
    value: GoalShares
    actor: GoalShares
    discount: float
    subgoal_steps: int | None = None


@dataclass(frozen=True)
class Outcome:
    """Outcome of each sample's demo, and optionally a later state of the demo.

    Batches then have ``outcome`` (B, 3): the number of steps from the sample's step to the last step of the demo, 1 if
    the demo solves its task, and 1 if a person or expert corrected the sample's action (step array ``interventions``).
    With ``lookahead`` they also have ``later_obs`` {key: (B, ...)}.

    Attributes:
        lookahead: number of steps to the later state, at most to the demo's last state; None for no later state.
    """

    lookahead: int | None = None


@dataclass(frozen=True)
class Sequences:
    """Sequences of replayed steps with the recurrent state that the policy had at their first step.

    Attributes:
        length: number of steps of a sequence, without ``burn_in``.
        burn_in: number of earlier steps that update the recurrent state but are not learned from.
    """

    length: int
    burn_in: int


@dataclass(frozen=True)
class FollowingSteps:
    """Successive transitions from a sample's step on, for auxiliary losses and models.

    Batches then have ``following``: ``obs`` {key: (B, K, ...)} after each of the K steps, ``actions`` (B, K, A),
    ``mask`` (B, K) false if the episode has ended or the observation after the step is unknown, ``rewards`` (B, K),
    and ``ends`` (B, K) 1 at a terminal step of the episode, even if the observation after it is unknown, else 0.

    Attributes:
        number: number of steps K.
        rewards: true to add ``rewards``.
        ends: true to add ``ends``.
    """

    number: int = 1
    rewards: bool = False
    ends: bool = False

    @property
    def step_keys(self) -> tuple[str, ...]:
        """Names of the step arrays that are read from a file."""
        return (*["rewards"] * self.rewards, *["terminals"] * self.ends)


@dataclass(frozen=True)
class DataNeeds:
    """Data that an algorithm learns from, in addition to the windows of observations and actions of every batch.

    Attributes:
        transitions: next observations, rewards and terminals, loaded whatever the section ``train`` requests; None if
            not needed.
        returns: ``returns (B, T)`` and the index of each step in its demo, ``step (B, T)``; None if not needed.
        subgoals: later observations; None if not needed.
        goals: hindsight goals and next observations; None if not needed.
        outcome: outcomes of demos; None if not needed.
        sequences: sequences that a replay buffer returns as samples; None for single steps.
        observed_steps: number of first steps of a window whose images are read (vectors are read for all steps); None
            for all steps.
        environment_rewards: true if the algorithm learns from the rewards of demos and environments; false if it makes
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
        largest: largest absolute value of the return from any step to the end of its demo.
    """

    best: float
    largest: float


class TrainingSet(Protocol):
    """Interface of the training data from which an algorithm's section computes values of keys that are null."""

    @property
    def return_statistics(self) -> ReturnStatistics:
        """Statistics of the returns.

        Raises:
            DatasetError: the algorithm's :class:`DataNeeds` have no ``returns``.
        """

    @property
    def tasks(self) -> tuple[str, ...]:
        """Language instructions, in the order of ``task_id``."""

    def __len__(self) -> int:
        """Number of samples."""
