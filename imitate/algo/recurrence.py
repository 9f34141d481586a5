"""The section ``algo.rnn`` of algorithms that learn by practice, and what it needs of the other sections."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from imitate.config import Section
from imitate.models.rnn import RNN


class MemoryConfig(Section):
    """A recurrent network behind the encoder, which learns from sequences of ``train.seq_length`` steps."""

    enabled: bool = Field(False, description="whether the policy remembers what it saw")
    rnn_type: Literal["LSTM", "GRU"] = Field("GRU", description="kind of cell")
    hidden_dim: int = Field(64, ge=1, description="size of the hidden state of each layer")
    num_layers: int = Field(1, ge=1, description="stacked layers")

    def make(self, input_dim: int) -> RNN:
        """The network for so many features per step."""
        return RNN(input_dim, self.hidden_dim, self.num_layers, self.rnn_type)

    def problems(self, config: Any) -> list[str]:
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
