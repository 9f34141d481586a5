"""Slot ``memory`` of an algorithm in online RL: a recurrent network after its encoder, and its section ``algo.rnn``.

The recurrent state is part of the policy's state. Collected steps contain the state before the step among their extras,
under :data:`STORED` and its name. There are two ways to make sequences of these steps: ``RolloutMemory``
(``recurrent_rollouts.py``) cuts whole rollouts, ``ReplayedMemory`` (``recurrent_replay.py``) samples sequences from a
replay buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from imitate.algo.base.policy_state import InnerState
from imitate.config import BaseConfig, DataNeeds, Section, Sequences
from imitate.config.data_needs import Returns
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.rnn import RNN, RNNState
from imitate.system.wording import counted

STORED = "memory/"
"""Prefix of the recurrent states among a step's extras."""


class MemoryConfig(Section):
    """Recurrent network after the encoder, trained on sequences of ``train.seq_length`` steps."""

    enabled: bool = Field(False, description="use a recurrent network after the encoder")
    rnn_type: Literal["LSTM", "GRU"] = Field("GRU", description="kind of cell")
    hidden_dim: int = Field(64, ge=1, description="size of the hidden state of each layer")
    num_layers: int = Field(1, ge=1, description="number of stacked layers")

    def make(self, input_dim: int) -> RNN:
        """Create a network for ``input_dim`` features per step."""
        return RNN(input_dim, self.hidden_dim, self.num_layers, self.rnn_type)

    def problems(self, config: BaseConfig) -> list[str]:
        """List settings of the shared sections that cannot be combined with a memory."""
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
    """Memory that is trained on sequences of a replay buffer, or on windows of demonstrations."""

    burn_in: int = Field(
        8,
        ge=0,
        description="number of steps before a sequence that only update its recurrent state, "
        "which was stored with older weights; they are not learned from. Offline: the first "
        "steps of a window that begins inside a demonstration",
    )

    def data_needs(self, needs: DataNeeds, config: BaseConfig) -> DataNeeds:
        """Extend the data needs of an algorithm by those of this memory: sequences, or windows with numbered steps."""
        if not self.enabled:
            return needs
        if config.train.online.enabled:
            return replace(needs, sequences=Sequences(config.train.seq_length, self.burn_in))
        # returns contain the step numbers, which show where a demonstration begins
        return replace(needs, returns=Returns(discount=1.0), observed_steps=None)

    def problems(self, config: BaseConfig) -> list[str]:
        """List settings that cannot be combined with this memory."""
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
                "algo.infinite_horizon is true, which a memory cannot learn from demonstrations: set it to false"
            )
        return problems

    def _online_problems(self, config: BaseConfig) -> list[str]:
        online, problems = config.train.online, []
        if online.prioritized.enabled:
            problems.append(
                "train.online.prioritized.enabled is true, but sequences are drawn uniformly: set it to false"
            )
        if online.hindsight.enabled:
            problems.append(
                "train.online.hindsight.enabled is true, but stored states of algo.rnn depend on the goal that was "
                "pursued: set it to false"
            )
        if online.demo_ratio > 0 or online.pretrain_updates > 0:
            problems.append(
                "train.online: demo_ratio and pretrain_updates want demonstrations, which have no stored states for "
                "algo.rnn: set both to 0"
            )
        return problems


class Memory:
    """Recurrent network after an encoder: construction, state and steps.

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
            state: state of the policy, which contains that of :meth:`initial_state`.
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
    """Rename a state's parts for the extras of a step."""
    return {STORED + name: value for name, value in state.items()}


def from_stored(step: Mapping[str, Any]) -> RNNState:
    """Extract the state from the extras of a step, or from a batch of steps."""
    return {
        key.removeprefix(STORED): value for key, value in step.items() if key.startswith(STORED)
    }
