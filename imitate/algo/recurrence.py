"""The section ``algo.rnn`` of online RL, and its conflicts with other sections.

States of the recurrent network come with the steps that they belong to, under :data:`STORED` and their name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from imitate.config import BaseConfig, Section
from imitate.models.rnn import RNN, RNNState

STORED = "memory/"


class MemoryConfig(Section):
    """A recurrent network behind the encoder, which learns from sequences of ``train.seq_length`` steps."""

    enabled: bool = Field(False, description="whether the policy remembers what it saw")
    rnn_type: Literal["LSTM", "GRU"] = Field("GRU", description="kind of cell")
    hidden_dim: int = Field(64, ge=1, description="size of the hidden state of each layer")
    num_layers: int = Field(1, ge=1, description="stacked layers")

    def make(self, input_dim: int) -> RNN:
        """The network for so many features per step."""
        return RNN(input_dim, self.hidden_dim, self.num_layers, self.rnn_type)

    def problems(self, config: BaseConfig) -> list[str]:
        """Settings of the shared sections that do not go with a memory."""
        train, problems = config.train, []
        if not self.enabled:
            return []
        if train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but a recurrent policy remembers by itself: set it to 1"
            )
        if train.seq_length == 1:
            problems.append(
                "train.seq_length is 1, so a recurrent policy would learn to remember nothing: set it to the number "
                "of steps over which it is to learn what to remember, such as 16"
            )
        return problems


class ReplayedMemoryConfig(MemoryConfig):
    """A memory that learns from remembered sequences."""

    burn_in: int = Field(
        8,
        ge=0,
        description="steps before a sequence that bring the state up to date, without being learned from; it is "
        "stored as it was when the step was taken, with older weights",
    )

    def problems(self, config: BaseConfig) -> list[str]:
        """As in the base class."""
        online, problems = config.train.online, super().problems(config)
        if not self.enabled:
            return []
        if not online.enabled:
            problems.append(
                f"algo.rnn.enabled is true, but {config.algo_name} learns its memory online only: set "
                "train.online.enabled to true, or take bc with algo.rnn for demonstrations alone"
            )
        if online.prioritized.enabled:
            problems.append(
                "train.online.prioritized.enabled is true, but sequences are drawn uniformly: set it to false"
            )
        if online.hindsight.enabled:
            problems.append(
                "train.online.hindsight.enabled is true, but stored states of algo.rnn know of the goal that was "
                "pursued: set it to false"
            )
        if online.demo_ratio > 0 or online.pretrain_updates > 0:
            problems.append(
                "train.online: demo_ratio and pretrain_updates want demonstrations, which have no stored states for "
                "algo.rnn: set both to 0"
            )
        return problems


def to_stored(state: RNNState) -> RNNState:
    """A state under the names that steps have it under."""
    return {STORED + name: value for name, value in state.items()}


def from_stored(step: Mapping[str, Any]) -> RNNState:
    """The state among what else a step, or a batch of them, has."""
    return {
        key.removeprefix(STORED): value for key, value in step.items() if key.startswith(STORED)
    }
