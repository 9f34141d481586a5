"""Slot ``memory`` of an algorithm in online RL: a recurrent network after its encoder, and its section ``algo.rnn``.

The recurrent state is part of the policy's state. Collected steps contain the state before the step among their extras,
under :data:`STORED` and its name. There are two ways to make sequences of these steps: ``RolloutMemory`` cuts whole
rollouts, and ``ReplayedMemory`` samples sequences from a replay buffer.

``ReplayedMemory`` is a recurrent encoder of an actor and critics, trained on replayed sequences with stored states:
Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019 (R2D2), who
introduced stored states and burn-in. The algorithm's losses do not change; they see recurrent features instead of
observations.

One recurrent network after an encoder computes the features of each step. It is part of the critics and trained by
their losses, because the value of an action depends most on the past. The actor uses the features without gradient,
since two losses on one memory interfere with each other (Ni et al., ICML 2022, arXiv:2110.05038, use two memories
instead). The target critics have their own recurrent network, which follows the online network and starts from the same
stored state. Both states are first updated over ``algo.rnn.burn_in`` steps, without gradient.

Prepared batches of B sequences, each within one episode, with up to L steps that the losses use:

    before      {key: (B, U, ...)} observations before the sequence, of which the first ``burn_in`` (B,) count
    memory {name: (B, layers, H)} recurrent state before the first of these steps
    obs         {key: (B, L + n, ...)} observations of the sequence and after it
    actions, rewards, discounts      (B, L, ...) as in :mod:`imitate.algo.base.actor_critic`
    ahead       (B, L) number of steps to the observation from which a step's value is bootstrapped
    mask        (B, L) false beyond the end of the episode
    weight      (B, L) weights of the steps in the losses, or None

In offline training, the sequences are windows of ``train.seq_length`` steps of demonstrations, which begin with an
empty memory.

``RolloutMemory`` is the memory of an algorithm that learns from whole rollouts. One recurrent network is between the
encoder and the hidden layers of both policy and value (:class:`~imitate.models.actor.PolicyAndValue`). The recurrent
state before each step is stored when the step is taken. Sequences have at most ``train.seq_length`` steps of one
episode and begin with the stored state; minibatches consist of whole sequences. Beside the keys of
:mod:`imitate.algo.base.on_policy`, batches have the following keys for each of their B steps, which are ordered by
sequence:

    place           (B,) number of the step in its sequence
    sequence        (B,) number of the sequence, in a rollout
    memory          {name: (B, L, H)} state of the recurrent network before the step

Only the recurrent network sees padding, after the ends of shorter sequences; its outputs at padded steps are dropped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Batch
from imitate.algo.base.policy_state import InnerState
from imitate.config import BaseConfig, DataNeeds, Section, Sequences
from imitate.config.data_needs import Returns
from imitate.config.observation import EncodersConfig
from imitate.errors import DatasetError
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.observation import ObservationEncoder
from imitate.models.rnn import RNN, RNNState
from imitate.system.text import counted

STORED = "memory/"
"""Prefix of the keys under which a step's extras contain recurrent states."""


class MemoryConfig(Section):
    """Recurrent network after the encoder, trained on sequences of ``train.seq_length`` steps."""

    enabled: bool = Field(False, description="use a recurrent network after the encoder")
    rnn_type: Literal["LSTM", "GRU"] = Field("GRU", description="type of the recurrent cell")
    hidden_dim: int = Field(64, ge=1, description="size of the hidden state of each layer")
    num_layers: int = Field(1, ge=1, description="number of stacked layers")

    def make(self, input_dim: int) -> RNN:
        """Create a network for ``input_dim`` features per step."""
        return RNN(input_dim, self.hidden_dim, self.num_layers, self.rnn_type)

    def problems(self, config: BaseConfig) -> list[str]:
        """Return messages for settings that cannot be combined with a recurrent network."""
        train, problems = config.train, []
        if not self.enabled:
            return []
        if train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but a recurrent policy has a memory of its own: set it to 1"
            )
        if train.seq_length == 1:
            problems.append(
                "train.seq_length is 1, so a recurrent policy would have no gradient over time: set it to the number "
                "of steps of a sequence, such as 16"
            )
        return problems


class ReplayedMemoryConfig(MemoryConfig):
    """Recurrent network that is trained on sequences of a replay buffer, or on windows of demonstrations."""

    burn_in: int = Field(
        8,
        ge=0,
        description="number of steps before each sequence that only update the recurrent state, because the stored "
        "state was computed by older weights; losses leave these steps out. Offline: the first steps of a window that "
        "begins inside a demonstration",
    )

    def data_needs(self, needs: DataNeeds, config: BaseConfig) -> DataNeeds:
        """Add sequences, or windows with numbered steps, to the data that an algorithm requests."""
        if not self.enabled:
            return needs
        if config.train.online.enabled:
            return replace(needs, sequences=Sequences(config.train.seq_length, self.burn_in))
        # requested because batches with returns also contain step numbers, which show where a demonstration begins
        return replace(needs, returns=Returns(discount=1.0), observed_steps=None)

    def problems(self, config: BaseConfig) -> list[str]:
        """Return messages for settings that cannot be combined with a recurrent network on sequences."""
        problems = super().problems(config)
        if not self.enabled:
            return []
        online = config.train.online.enabled
        return problems + (
            self._online_problems(config) if online else self._offline_problems(config)
        )

    def _offline_problems(self, config: BaseConfig) -> list[str]:
        problems, length = [], config.train.seq_length
        if length > 1 and self.burn_in + 1 >= length:
            problems.append(
                f"algo.rnn.burn_in is {self.burn_in}, which leaves none of the {counted(length, 'step')} of "
                "train.seq_length to "
                f"learn from: set it to at most {length - 2}, or raise train.seq_length"
            )
        if config.algo["n_step"] > 1:
            problems.append(
                f"algo.n_step is {config.algo['n_step']}, but a memory learns single steps of demonstrations: set it "
                "to 1"
            )
        if config.algo["infinite_horizon"]:
            problems.append(
                "algo.infinite_horizon is true, which offline training with algo.rnn does not support: set it to false"
            )
        return problems

    def _online_problems(self, config: BaseConfig) -> list[str]:
        online, problems = config.train.online, []
        if online.hindsight.enabled:
            problems.append(
                "train.online.hindsight.enabled is true, but stored states of algo.rnn depend on the goal that was "
                "pursued: set it to false"
            )
        return problems


class RecurrentMemory:
    """State and steps of a policy with a recurrent network after its encoder.

    Args:
        config: section ``algo.rnn``.
    """

    def __init__(self, config: MemoryConfig) -> None:
        self.config = config

    def initial_state(self, rnn: RNN, batch_size: int) -> InnerState:
        """Return the recurrent part of the initial state of B policies."""
        return {"rnn": rnn.initial_state(batch_size)}

    def step(
        self,
        encoder: GroupEncoder,
        rnn: RNN,
        obs: Obs,
        state: InnerState,
        goal: Obs | None = None,
        *,
        explore: bool = False,
    ) -> tuple[Tensor, InnerState, dict[str, Tensor]]:
        """Compute the features of one step of B policies, the next state, and the extras to store with the step.

        Args:
            encoder: encoder of observations.
            rnn: recurrent network after the encoder.
            obs: (B, ...) observations by key.
            state: state of the policy, which contains the recurrent state of :meth:`initial_state`.
            goal: (B, ...) goals by key.
            explore: true if the step is learned from, so that the state before it is stored.

        Returns:
            features (B, H), the whole next state, extras of the step.
        """
        before = state["rnn"]
        features, after = one_step(encoder, rnn, obs, before, goal)
        return features, {**state, "rnn": after}, to_stored(before) if explore else {}


def one_step(
    encoder: GroupEncoder, rnn: RNN, obs: Obs, state: RNNState, goal: Obs | None = None
) -> tuple[Tensor, RNNState]:
    """Return the features (B, H) of one step with observations (B, ...), and the next state."""
    features, after = rnn(encoder(obs, goal).unsqueeze(1), state)
    return features[:, 0], after


def to_stored(state: RNNState) -> RNNState:
    """Return a recurrent state with the keys that it has in the extras of a step."""
    return {STORED + name: value for name, value in state.items()}


def from_stored(step: Mapping[str, Any]) -> RNNState:
    """Extract the state from the extras of a step, or from a batch of steps."""
    return {
        key.removeprefix(STORED): value for key, value in step.items() if key.startswith(STORED)
    }


CRITICS = "known_to_critics"
"""Observation that contains the recurrent features for the critics, with gradient."""
ACTOR = "known_to_actor"
"""Observation that contains the recurrent features for the actor, without gradient."""


class RecurrentEncoder(nn.Module):
    """Encoder followed by a recurrent network."""

    def __init__(self, encoder: GroupEncoder, rnn: RNN) -> None:
        super().__init__()
        self.encoder, self.rnn = encoder, rnn

    def forward(
        self, obs: Obs, state: RNNState, goal: Obs | None = None
    ) -> tuple[Tensor, RNNState]:
        """Return features (B, T, H) of the steps of windows (B, T, ...), and the last state."""
        features: tuple[Tensor, RNNState] = self.rnn(self.encoder(obs, goal), state)
        return features

    @torch.no_grad()
    def burned_in(
        self, obs: Obs, steps: Tensor, state: RNNState, goal: Obs | None = None
    ) -> RNNState:
        """Return the state after the first ``steps`` (B,) steps of the windows (B, U, ...); ``steps`` is on the CPU."""
        if not int(steps.max()):
            return state
        return self.rnn.state_after(self.encoder(obs, goal), steps, state)

    def over(self, batch: Batch) -> Tensor:
        """Return features (B, L + n, H) of all steps of a batch of sequences, after the burn-in."""
        goal = batch["goal_obs"]
        state = self.burned_in(batch["before"], batch["burn_in"], batch["memory"], goal)
        return cast(Tensor, self(batch["obs"], state, goal)[0])


class ReplayedMemory(RecurrentMemory):
    """Memory of an algorithm with critics: selects sequences and converts them to transitions for the losses.

    Args:
        config: section ``algo.rnn``.
        n_step: n, number of steps of n-step returns.
        discount: discount factor per step.
    """

    def __init__(self, config: ReplayedMemoryConfig, n_step: int, discount: float) -> None:
        super().__init__(config)
        self._burn_in = config.burn_in
        self._n_step, self._discount = n_step, discount

    def encoder(self, encoder: GroupEncoder) -> RecurrentEncoder:
        """Create a recurrent network after an encoder of observations."""
        return RecurrentEncoder(encoder, self.config.make(encoder.output_dim))

    def reader(self, features: str) -> GroupEncoder:
        """Create the encoder of a network that sees :data:`CRITICS` or :data:`ACTOR` instead of observations."""
        shapes = {features: (self.config.hidden_dim,)}
        return GroupEncoder(ObservationEncoder(shapes, {features: "low_dim"}, EncodersConfig()))

    def select(self, batch: Batch, encoder: RecurrentEncoder) -> Batch:
        """Select prepared sequences, from a replay buffer's batch or from windows of a dataset."""
        if "ahead" not in batch:
            batch = self._sequences_of(batch, encoder)
        burn_in = next(iter(batch["obs"].values())).shape[1]
        burn_in -= batch["actions"].shape[1] + self._n_step
        names = ("actions", "discounts", "ahead", "mask")
        return {
            "burn_in": batch["burn_in"].cpu(),  # torch wants the lengths of sequences on the CPU
            "before": {key: value[:, :burn_in] for key, value in batch["obs"].items()},
            "obs": {key: value[:, burn_in:] for key, value in batch["obs"].items()},
            "memory": from_stored(batch),
            "goal_obs": batch.get("goal_obs"),
            "rewards": batch["n_step_rewards"],
            "weight": batch.get("weight"),
            **{name: batch[name] for name in names},
        }

    def _sequences_of(self, batch: Batch, encoder: RecurrentEncoder) -> Batch:
        """Convert windows of T observations to sequences of T - 1 steps, which begin with an empty memory.

        A step is learned from if it is a terminal or the next step is in the window, unless the window begins within a
        demonstration and the step is one of the first ``burn_in``. If the batch has no ``step``, all windows count as
        beginnings.
        """
        ends = batch.get("terminals", batch.get("dones"))
        if ends is None or "rewards" not in batch or self._n_step > 1:
            raise DatasetError(
                "an algorithm with algo.rnn learns from windows with rewards and ends and needs algo.n_step 1: set it "
                "to 1 and make the dataset by build_datasets(config), or set train.online.enabled to true"
            )
        rewards, ends = batch["rewards"][:, :-1], ends[:, :-1]
        real = batch.get("pad_mask", torch.ones_like(batch["rewards"])) > 0
        mask = real[:, :-1] & (real[:, 1:] | (ends > 0))
        if "step" in batch:
            place = torch.arange(rewards.shape[1], device=rewards.device)
            mask &= (batch["step"][:, :1] == 0) | (place >= self._burn_in)
        weight = batch.get("weight")
        state = encoder.rnn.initial_state(len(rewards))
        return {
            "obs": batch["obs"],
            "goal_obs": batch.get("goal_obs"),
            "actions": batch["actions"][:, :-1],
            "n_step_rewards": rewards,
            "discounts": self._discount * (1.0 - ends),
            "ahead": torch.ones_like(rewards, dtype=torch.long),
            "mask": mask,
            "weight": None if weight is None else weight[:, :-1],
            "burn_in": torch.zeros(len(rewards), dtype=torch.long),
            **to_stored(state),
        }

    def transitions(
        self,
        batch: Batch,
        online: RecurrentEncoder,
        target: RecurrentEncoder,
        kept: tuple[str, ...] = (),
    ) -> Batch:
        """Convert the steps of sequences to transitions with recurrent features instead of observations.

        Args:
            batch: from :meth:`select`.
            online: the critics' encoder, which receives gradients through :data:`CRITICS` of ``obs``.
            target: the target critics' encoder.
            kept: observations that are kept beside the features, such as a mask of actions.

        Returns:
            a batch as in :mod:`imitate.algo.base.actor_critic`, with ``target_obs``, the target critics' features at
            the steps, and ``first``, true for the first step of each sequence.
        """
        features = online.over(batch)
        with torch.no_grad():
            of_targets = target.over(batch)
        sequence, step = batch["mask"].nonzero(as_tuple=True)
        after = step + batch["ahead"][sequence, step]
        now = features[sequence, step]
        return {
            "obs": {
                CRITICS: now,
                ACTOR: now.detach(),
                **{key: batch["obs"][key][sequence, step] for key in kept},
            },
            "next_obs": {
                CRITICS: of_targets[sequence, after],
                ACTOR: features.detach()[sequence, after],
                **{key: batch["obs"][key][sequence, after] for key in kept},
            },
            "target_obs": {CRITICS: of_targets[sequence, step]},
            "goal_obs": None,
            "weight": None if batch["weight"] is None else batch["weight"][sequence, step],
            "first": step == 0,
            **{name: batch[name][sequence, step] for name in ("actions", "rewards", "discounts")},
        }


def state_shapes(encoder: RecurrentEncoder) -> dict[str, tuple[int, ...]]:
    """Return the shape (layers, H) of each tensor of one policy's recurrent state, by name."""
    state: dict[str, Any] = encoder.rnn.initial_state(1)
    return {name: tuple(value.shape[1:]) for name, value in state.items()}


class RolloutMemory(RecurrentMemory):
    """Memory of an algorithm with rollouts: cuts them into sequences and computes their features.

    Args:
        config: section ``algo.rnn``.
        seq_length: largest number of steps of a sequence.
    """

    def __init__(self, config: MemoryConfig, seq_length: int) -> None:
        super().__init__(config)
        self._seq_length = seq_length

    def stored(self, rollout: Batch, device: torch.device) -> RNNState:
        """Return the states {name: (T N, L, H)} before all steps of a raw rollout."""
        return {
            name: torch.from_numpy(np.asarray(x).reshape(-1, *x.shape[2:])).to(device)
            for name, x in from_stored(rollout).items()
        }

    def of_rollout(self, rollout: Batch, device: torch.device) -> Batch:
        """Return ``sequence``, ``place`` and ``memory`` of all T N steps of a raw rollout."""
        ends = rollout["terminals"] | rollout["timeouts"]
        sequence, place = sequences(ends, rollout["mask"], self._seq_length)
        numbers = {"sequence": sequence, "place": place}
        return {
            **{k: torch.from_numpy(x.reshape(-1)).to(device) for k, x in numbers.items()},
            "memory": self.stored(rollout, device),
        }

    def of_windows(self, count: int, steps: int, rnn: RNN) -> Batch:
        """Return ``place`` and an initial ``memory`` for ``count`` windows of ``steps`` steps."""
        memory = rnn.initial_state(count * steps)
        device = memory["h"].device
        return {"place": torch.arange(steps, device=device).repeat(count), "memory": memory}

    def features(self, encoder: GroupEncoder, rnn: RNN, batch: Batch) -> Tensor:
        """Return features (B, H) of all steps of several sequences.

        Args:
            encoder: encoder of observations.
            rnn: recurrent network after the encoder.
            batch: ``obs``, ``place``, and ``memory``, of which only the states at the start of sequences are used.
        """
        place, inputs = batch["place"], encoder(batch["obs"])
        sequence = (place == 0).cumsum(0) - 1
        # both numbers are copied to the CPU at once
        last, longest = torch.stack((sequence[-1], place.max())).tolist()
        windows = inputs.new_zeros(last + 1, longest + 1, inputs.shape[-1])
        windows = windows.index_put((sequence, place), inputs)
        row = torch.arange(len(place), device=place.device)
        begins = row.new_full((last + 1,), len(place)).scatter_reduce(0, sequence, row, "amin")
        outputs, _ = rnn(windows, {name: x[begins] for name, x in batch["memory"].items()})
        at_steps: Tensor = outputs[sequence, place]
        return at_steps

    def minibatches(self, batch: Batch, batch_size: int) -> Iterator[Tensor]:
        """Yield the row numbers of whole sequences in random order, about ``batch_size`` steps each."""
        sequence = batch["sequence"].cpu()
        lengths = sequence.bincount()
        shuffled = torch.randperm(len(lengths))
        order = torch.argsort(shuffled.argsort()[sequence], stable=True).to(
            batch["sequence"].device
        )
        ends, size = lengths[shuffled].cumsum(0), len(sequence)
        parts = max(1, round(size / batch_size))
        nearest = (int((ends - size * part / parts).abs().argmin()) for part in range(1, parts))
        edges = sorted({0, size, *(int(ends[place]) for place in nearest)})
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            yield order[start:stop]


def sequences(
    ends: NDArray[np.bool_], mask: NDArray[np.bool_], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut the rollouts of several environments into sequences.

    Args:
        ends: (T, N) true where an episode ended with a step.
        mask: (T, N) false where there is no experience; the other steps belong to whole or unfinished episodes.
        length: largest number of steps of a sequence.

    Returns:
        for each step the index of its sequence and the step's index in the sequence, (T, N) each; undefined where
        ``mask`` is false.
    """
    steps = np.arange(len(ends))[:, None]
    begins = np.concatenate([np.ones_like(ends[:1]), ends[:-1]])
    since: NDArray[Any] = steps - np.maximum.accumulate(np.where(begins, steps, 0), axis=0)
    place = since % length
    first = (place == 0) & mask
    number = first.T.reshape(-1).cumsum().reshape(first.T.shape).T - 1
    return number, place
