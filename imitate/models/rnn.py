"""Recurrent network whose state is a dict of tensors with leading batch dimension."""

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from imitate.functional.transfer import to_device
from imitate.models.precision import CPU_COMPUTES_BF16

RNNState = dict[str, Tensor]
"""``{"h": (B, L, H)}`` and for an LSTM also ``"c": (B, L, H)``; L is the number of layers times directions."""


class RNN(nn.Module):
    """LSTM or GRU over windows, and over single steps when acting.

    A single step on the CPU without gradients calls the cell functions with the same weights, because torch's LSTM
    rearranges its weights in every call, which makes a step ten times slower for hidden size 400.

    Args:
        input_dim: number of features per step.
        hidden_dim: size of the hidden state of each layer.
        num_layers: number of stacked layers.
        rnn_type: kind of cell.
        bidirectional: process windows in both directions. This suits only whole windows, because in single steps the
            backward direction lacks the future steps.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int,
        num_layers: int,
        rnn_type: Literal["LSTM", "GRU"] = "LSTM",
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        kind = {"LSTM": nn.LSTM, "GRU": nn.GRU}[rnn_type]
        self.nets: nn.LSTM | nn.GRU = kind(
            input_dim, hidden_dim, num_layers, batch_first=True, bidirectional=bidirectional
        )
        self.is_lstm = rnn_type == "LSTM"
        self.bidirectional = bidirectional
        self.hidden_dim = hidden_dim
        self.num_layers = num_layers
        self.output_dim = hidden_dim * (2 if bidirectional else 1)

    def initial_state(self, batch_size: int) -> RNNState:
        """Return the initial state of B new sequences: zeros."""
        weight: Tensor = self.nets.all_weights[0][0]
        layers = self.num_layers * (2 if self.bidirectional else 1)
        zeros = weight.new_zeros(batch_size, layers, self.hidden_dim)
        return {"h": zeros, "c": zeros} if self.is_lstm else {"h": zeros}

    def forward(self, x: Tensor, state: RNNState | None = None) -> tuple[Tensor, RNNState]:
        """Compute outputs and states over a window.

        Args:
            x: (B, T, input_dim).
            state: from :meth:`initial_state` or the previous window; None for zeros.

        Returns:
            outputs of the last layer (B, T, output_dim), and the state after the last step.
        """
        if self._can_step(x):
            return self._step(x, self.initial_state(x.shape[0]) if state is None else state)
        y, last = self._run(x, state)
        names = ("h", "c") if self.is_lstm else ("h",)
        tensors = last if self.is_lstm else (last,)
        return y, {k: s.transpose(0, 1) for k, s in zip(names, tensors, strict=True)}

    def state_after(self, x: Tensor, lengths: Tensor, state: RNNState) -> RNNState:
        """Return the state after the first ``lengths`` steps of windows.

        Args:
            x: (B, T, input_dim).
            lengths: (B,) number of steps of each window, 0 to T, on the CPU, as torch requires.
            state: state before the windows, which is returned unchanged where ``lengths`` is 0.
        """
        counts = lengths.clamp(min=1)
        packed = pack_padded_sequence(x, counts, batch_first=True, enforce_sorted=False)
        _, last = self._run(packed, state)
        tensors = last if self.is_lstm else (last,)
        some = to_device(lengths > 0, x.device).view(-1, 1, 1)
        return {
            name: torch.where(some, after.transpose(0, 1), old)
            for (name, old), after in zip(state.items(), tensors, strict=True)
        }

    def _run(self, x: Any, state: RNNState | None) -> tuple[Any, Any]:
        """Call torch's network on a window (B, T, D), packed or not.

        If the recurrent kernels of a device do not compute in bfloat16, autocast is disabled for them.
        """
        kind = x.data.device.type
        if not has_bf16_kernels(kind) and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self._run(x.float(), state)
        if state is None:
            return cast(tuple[Any, Any], self.nets(x))
        layers_first = tuple(s.transpose(0, 1).contiguous() for s in state.values())
        return cast(
            tuple[Any, Any], self.nets(x, layers_first if self.is_lstm else layers_first[0])
        )

    def _can_step(self, x: Tensor) -> bool:
        return (
            x.shape[1] == 1
            and not torch.is_grad_enabled()
            and not self.bidirectional
            and x.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu")
        )

    def _step(self, x: Tensor, state: RNNState) -> tuple[Tensor, RNNState]:
        """Compute one step (T = 1) with the cell functions."""
        out = x[:, 0]
        new_h, new_c = [], []
        hidden = state["h"].unbind(1)
        memory = state["c"].unbind(1) if self.is_lstm else hidden
        for weights, h, c in zip(self.nets.all_weights, hidden, memory, strict=True):
            if self.is_lstm:
                out, cell = torch.lstm_cell(out, (h, c), *weights)
                new_c.append(cell)
            else:
                out = torch.gru_cell(out, h, *weights)
            new_h.append(out)
        new_state = {"h": torch.stack(new_h, 1)}
        if self.is_lstm:
            new_state["c"] = torch.stack(new_c, 1)
        return out.unsqueeze(1), new_state


def has_bf16_kernels(kind: str) -> bool:
    """Return True if the recurrent kernels of a type of device ('cpu', 'cuda', 'mps') compute in bfloat16.

    On CUDA, cuDNN computes in float16 under any autocast, in which small gradients become 0 without a scaler; its
    float32 kernels use tensor cores too, in TF32. On a CPU, oneDNN refuses bfloat16 if the processor lacks the
    instructions.
    """
    if kind == "cpu":
        return CPU_COMPUTES_BF16
    return kind != "cuda"
