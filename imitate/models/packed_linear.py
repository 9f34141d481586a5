"""Linear layers that are fast for the few rows that a policy acts on, on the CPU.

For the few rows of a window oneDNN multiplies with a matrix that lies in blocks up to twice as fast as torch's default
does; the sums are the same up to the order of their terms. One row takes as long as reading the matrix, in any layout.
In bfloat16 half as much is read, and weights and inputs are rounded to 8 binary digits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

MOST_ROWS = 64
FEWEST_WEIGHTS = 2**16
"""Below, the blocks do not pay for the call, in which torch looks at every argument."""


class PackedLinear(nn.Linear):
    """An ``nn.Linear`` with the weights of another one, and a second copy of them in blocks for few rows.

    The copy is made at the first call without gradients, and anew whenever the weights have changed.

    Args:
        original: its parameters are shared.
        dtype: of the copy.
    """

    def __init__(self, original: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = original.in_features, original.out_features
        self.weight, self.bias = original.weight, original.bias
        self.training = original.training
        self.dtype = dtype
        self._blocks: tuple[Tensor, Tensor | None] | None = None
        self._copied: tuple[int, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``(*B, D)`` to ``(*B, E)``."""
        rows = x.numel() // self.in_features
        if torch.is_grad_enabled() or not self._gains(rows):
            return F.linear(x, self.weight, self.bias)
        weight, bias = self._packed(rows)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self.dtype), weight, bias, "none", [], ""
        )
        return y.to(x.dtype)

    def _gains(self, rows: int) -> bool:
        fewest = 2 if self.dtype is torch.float32 else 1
        return fewest <= rows <= MOST_ROWS

    def _packed(self, rows: int) -> tuple[Tensor, Tensor | None]:
        state = (self.weight._version, self.weight.data_ptr())
        if self._blocks is None or state != self._copied:
            weight = self.weight.detach().to(self.dtype)
            bias = None if self.bias is None else self.bias.detach().to(self.dtype)
            self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight, rows), bias
            self._copied = state
        return self._blocks


def pack_linears(net: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Put a :class:`PackedLinear` in the place of each large ``nn.Linear``, on a CPU where torch has oneDNN.

    Parameters and names of the state stay.
    """
    if not _available():
        return
    for module in list(net.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and _is_large(child.weight):
                setattr(module, name, PackedLinear(child, dtype))


def _is_large(weight: Tensor) -> bool:
    """Return True where blocks pay off and a change of the weights can be noticed."""
    on_cpu = weight.device.type == "cpu" and weight.dtype is torch.float32
    return on_cpu and not weight.is_inference() and weight.numel() >= FEWEST_WEIGHTS


def _available() -> bool:
    # What torch's own compiler uses; older builds, and those for other processors, may lack it.
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
